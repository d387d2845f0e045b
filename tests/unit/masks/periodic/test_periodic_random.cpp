// Periodic form against box form, which shares no decision with it, on random expressions of
// moduli, digits, shifts, clamps, look-ups and named masks.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

class RandomText {
 public:
  explicit RandomText(std::uint64_t seed) : random_(seed) {}

  std::int64_t between(std::int64_t lo, std::int64_t hi) {
    return lo + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(hi - lo + 1));
  }

  std::string condition(int depth) {
    if (depth <= 0) return comparison(0);
    switch (between(0, 9)) {
      case 0:
      case 1:
      case 2:
        return "(" + condition(depth - 1) + " & " + condition(depth - 1) + ")";
      case 3:
      case 4:
        return "(" + condition(depth - 1) + " | " + condition(depth - 1) + ")";
      case 5:
        return "(" + condition(depth - 1) + " ^ " + condition(depth - 1) + ")";
      case 6:
        return "~" + condition(depth - 1);
      case 7:
        return name();
      default:
        return comparison(depth);
    }
  }

  bool uses_flags() const { return uses_flags_; }
  bool uses_numbers() const { return uses_numbers_; }

 private:
  std::string number(std::int64_t lo, std::int64_t hi) { return std::to_string(between(lo, hi)); }
  // A period: mostly short, or a length that blocks divide.
  std::string period() {
    static constexpr std::int64_t kEven[] = {2, 4, 8, 16, 32, 64, 96, 128, 256};
    return between(0, 2) > 0 ? number(1, 12) : std::to_string(kEven[between(0, 8)]);
  }
  std::string name() {
    switch (between(0, 5)) {
      case 0:
        return "causal";
      case 1:
        return "window(" + number(1, 400) + ")";
      case 2:
        return "dilated(" + number(1, 300) + ", " + number(1, 6) + ")";
      case 3:
        return "chunked(" + period() + ")";
      case 4:
        return "block_causal(" + period() + ")";
      default:
        return "sink(" + number(0, 50) + ")";
    }
  }
  std::string comparison(int depth) {
    static constexpr const char* kOperators[] = {"<", "<=", "==", "!=", ">", ">="};
    if (between(0, 11) == 0) {
      uses_flags_ = true;
      return "@flags[(" + integer(depth) + ") % 24]";
    }
    const std::string op = kOperators[between(0, 5)];
    const std::string right = between(0, 1) == 0 ? integer(depth - 1) : number(-3, 9);
    return "(" + integer(depth) + " " + op + " " + right + ")";
  }
  std::string axis() {
    switch (between(0, 5)) {
      case 0:
      case 1:
        return "q";
      case 2:
      case 3:
        return "k";
      case 4:
        return "pos";
      default:
        return "(q - k)";
    }
  }
  std::string integer(int depth) {
    if (depth <= 0) return between(0, 2) > 0 ? axis() + " % " + period() : axis();
    const auto inner = [&] { return "(" + integer(depth - 1) + ")"; };
    switch (between(0, 15)) {
      case 0:
      case 1:
        return inner() + " % " + period();
      case 2:
      case 3:
        return inner() + " // " + period();
      case 4:
        return inner() + " + " + inner();
      case 5:
        return inner() + " - " + inner();
      case 6:
        return inner() + " * " + number(-3, 5);
      case 7:
        return "abs" + inner();
      case 8:
        return "min(" + integer(depth - 1) + ", " + integer(depth - 1) + ")";
      case 9:
        return "clamp(" + integer(depth - 1) + ", " + number(-9, 20) + ", " + number(21, 300) + ")";
      case 10:
        return "shr(" + integer(depth - 1) + ", " + number(0, 5) + ")";
      case 11: {
        static constexpr const char* kBits[] = {"bitand", "bitor", "bitxor"};
        return std::string(kBits[between(0, 2)]) + "(" + integer(depth - 1) + ", " +
               number(-20, 40) + ")";
      }
      case 12:
        return "where(" + condition(depth - 1) + ", " + integer(depth - 1) + ", " +
               integer(depth - 1) + ")";
      case 13:
        return "(" + inner() + " * " + inner() + ") % " + period();
      case 14:
        uses_numbers_ = true;
        return "@numbers[" + inner() + " % 10]";
      default:
        return "(" + axis() + " // " + period() + ") % " + period();
    }
  }

  std::mt19937_64 random_;
  bool uses_flags_ = false;
  bool uses_numbers_ = false;
};

struct Counts {
  int compared = 0;
  int declined = 0;
  int undefined = 0;
};

void check(std::uint64_t seed, Counts& counts) {
  RandomText random(seed);
  const std::string text = random.condition(static_cast<int>(random.between(1, 4)));
  static constexpr std::int32_t kSides[] = {16, 32, 48, 64, 128, 256};
  const BlockShape block{kSides[random.between(0, 5)], kSides[random.between(0, 5)]};
  const std::int64_t most = seed % 16 == 0 ? 1500 : 500;
  const std::int64_t q_len = random.between(1, most);
  const std::int64_t kv_len = random.between(0, 2) == 0 ? q_len : random.between(1, most);
  reference::TableSet tables;
  const auto fill = [&](const char* name, DType dtype, int size, std::int64_t lo, std::int64_t hi) {
    std::vector<std::int64_t> values;
    for (int i = 0; i < size; ++i) values.push_back(random.between(lo, hi));
    tables.add(name, dtype, {size}, values);
  };
  if (random.uses_flags()) fill("flags", DType::boolean, 24, 0, 1);
  if (random.uses_numbers()) fill("numbers", DType::int32, 10, -5, 9);
  const std::string what = text + ", " + std::to_string(q_len) + " x " + std::to_string(kv_len) +
                           ", blocks " + std::to_string(block.block_q) + " x " +
                           std::to_string(block.block_kv) + ", seed " + std::to_string(seed);
  const auto expr = parse_mask(text);
  ASSERT_TRUE(expr) << what << ": " << expr.error().message;
  LowerOptions options;
  options.block = block;
  options.num_threads = 1;
  options.engine = LoweringEngine::box;
  const MaskShape shape{1, 1, {q_len}, {kv_len}};
  const auto box = compile(*expr, tables.views(), shape, options);
  options.engine = LoweringEngine::periodic;
  const auto periodic = compile(*expr, tables.views(), shape, options);
  if (!box) {
    EXPECT_FALSE(periodic) << what;
    ++counts.undefined;
    return;
  }
  if (!periodic) {
    EXPECT_EQ(periodic.error().code, ErrorCode::unsupported) << what;
    ++counts.declined;
    return;
  }
  ++counts.compared;
  const SegmentMask& expected = std::get<std::vector<SegmentMask>>(box->groups)[0];
  const SegmentMask& got = std::get<std::vector<SegmentMask>>(periodic->groups)[0];
  ASSERT_TRUE(expand_patterns(got) == expected) << what;
}

TEST(PeriodicForm, EqualsBoxFormOnRandomExpressions) {
  // FDMA_RANDOM_MASKS: how many instead.
  const char* asked = std::getenv("FDMA_RANDOM_MASKS");
  const std::int64_t count = asked != nullptr ? std::atoll(asked) : 2000;
  Counts counts;
  for (std::int64_t seed = 0; seed < count && !HasFatalFailure(); ++seed) {
    check(static_cast<std::uint64_t>(seed), counts);
  }
  RecordProperty("compared", counts.compared);
  std::printf("compared %d, declined %d, undefined %d\n", counts.compared, counts.declined,
              counts.undefined);
  EXPECT_GT(counts.compared, count / 2);
}

}  // namespace
}  // namespace fdma
