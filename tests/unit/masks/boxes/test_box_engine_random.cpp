// Compares the box engine with the cell-by-cell evaluator on random programs: every operator,
// tables, loops, overflow and undefined cells.
#include <gtest/gtest.h>

#include <random>

#include "boxes/box_fixture.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "lower/engines.hpp"

namespace fdma::box_test {
namespace {

class RandomProgram {
 public:
  RandomProgram(std::uint32_t seed, std::int64_t q_len, std::int64_t kv_len)
      : random_(seed), builder_(q_len, kv_len) {
    const auto values = [&](std::int64_t count, std::int64_t lo, std::int64_t hi) {
      std::vector<std::int64_t> out;
      for (std::int64_t i = 0; i < count; ++i) out.push_back(between(lo, hi));
      return out;
    };
    tables_.push_back(builder_.table("ids", {kv_len}, values(kv_len, -1, 4), DType::int32));
    tables_.push_back(builder_.table("wide", {q_len}, values(q_len, -900, 900), DType::int16));
    tables_.push_back(builder_.table("pairs", {5, 7}, values(35, -3, 9), DType::int8));
    tables_.push_back(builder_.runs("runs", {3, 40, q_len + kv_len}, {0, 5, 2}));
    tables_.push_back(builder_.table("huge", {3}, {INT64_MAX, INT64_MIN, 1}));
    tables_.push_back(builder_.table("one", {}, values(1, 0, 50)));
    tests_.push_back(builder_.table("flags", {kv_len}, values(kv_len, 0, 1), DType::boolean));
    tests_.push_back(builder_.table("tiles", {9, 11}, values(99, 0, 1), DType::boolean));
    tests_.push_back(
        builder_.table("dense", {q_len, kv_len}, values(q_len * kv_len, 0, 1), DType::boolean));
  }

  const IrProgram& make(int depth) { return builder_.finish(condition(depth)); }

 private:
  std::int64_t between(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random_);
  }

  IrId lookup(IrOp op, const std::vector<std::int64_t>& tables, int depth) {
    const auto table = tables[static_cast<std::size_t>(between(0, std::ssize(tables) - 1))];
    const int rank = builder_.program.tables[static_cast<std::size_t>(table)].rank;
    if (rank == 0) return builder_.add(op, {}, table);
    const auto index = [&] {
      switch (between(0, 4)) {
        case 0:
          return builder_.q();
        case 1:
          return builder_.k();
        case 2:
          return builder_.add(IrOp::floor_div, {builder_.q(), builder_.number(16)});
        case 3:
          return builder_.add(IrOp::floor_div, {builder_.k(), builder_.number(16)});
        default:
          return integer(depth - 1);
      }
    };
    if (rank == 1) return builder_.add(op, {index()}, table);
    const IrId first = index();
    return builder_.add(op, {first, index()}, table);
  }

  IrId integer(int depth) {
    if (depth <= 0 || between(0, 9) == 0) {
      switch (between(0, loops_.empty() ? 5 : 6)) {
        case 0:
        case 1:
          return builder_.q();
        case 2:
        case 3:
          return builder_.k();
        case 4:
          return builder_.number(between(-5, 70));
        case 5:
          return builder_.number(between(1, 9));
        default:
          return builder_.add(IrOp::loop, {},
                              loops_[static_cast<std::size_t>(between(0, std::ssize(loops_) - 1))]);
      }
    }
    const IrOp operators[] = {IrOp::add, IrOp::sub,     IrOp::sub,    IrOp::mul,    IrOp::floor_div,
                              IrOp::mod, IrOp::min,     IrOp::max,    IrOp::shl,    IrOp::shr,
                              IrOp::add, IrOp::bit_and, IrOp::bit_or, IrOp::bit_xor};
    switch (between(0, 9)) {
      case 0: {
        const IrId c = condition(depth - 1);
        const IrId a = integer(depth - 1);
        return builder_.add(IrOp::where, {c, a, integer(depth - 1)});
      }
      case 1:
        return builder_.add(IrOp::from_bool, {condition(depth - 1)});
      case 2:
        return lookup(IrOp::lookup, tables_, depth);
      case 3:
        return builder_.add(IrOp::abs, {integer(depth - 1)});
      default: {
        const IrOp op = operators[between(0, 13)];
        const IrId a = integer(depth - 1);
        const bool is_constant = between(0, 1) == 0;
        return builder_.add(
            op, {a, is_constant ? builder_.number(between(1, 12)) : integer(depth - 1)});
      }
    }
  }

  IrId condition(int depth) {
    if (depth <= 0) return builder_.add(IrOp::less_equal, {builder_.k(), builder_.q()});
    switch (between(0, 11)) {
      case 0:
      case 1: {
        const IrOp op = between(0, 1) == 0 ? IrOp::logical_and : IrOp::logical_or;
        const IrId a = condition(depth - 1);
        return builder_.add(op, {a, condition(depth - 1)});
      }
      case 2: {
        const IrId a = condition(depth - 1);
        return builder_.add(IrOp::logical_xor, {a, condition(depth - 1)});
      }
      case 3:
        return builder_.add(IrOp::logical_not, {condition(depth - 1)});
      case 4: {
        const IrId c = condition(depth - 1);
        const IrId a = condition(depth - 1);
        return builder_.add(IrOp::where_condition, {c, a, condition(depth - 1)});
      }
      case 5:
        return lookup(IrOp::test, tests_, depth);
      case 6: {
        if (loops_.size() > 1) return condition(depth - 1);
        const IrId bound = builder_.number(between(0, 4));
        loops_.push_back(next_loop_++);
        const IrId body = condition(depth - 1);
        const std::int64_t variable = loops_.back();
        loops_.pop_back();
        return builder_.add(between(0, 1) == 0 ? IrOp::any_of : IrOp::all_of, {bound, body},
                            variable);
      }
      default: {
        const IrOp operators[] = {IrOp::less, IrOp::less_equal, IrOp::equal, IrOp::not_equal};
        const IrId a = integer(depth - 1);
        return builder_.add(operators[between(0, 3)], {a, integer(depth - 1)});
      }
    }
  }

  std::mt19937 random_;
  ProgramBuilder builder_;
  std::vector<std::int64_t> tables_;
  std::vector<std::int64_t> tests_;
  std::vector<std::int64_t> loops_;
  std::int64_t next_loop_ = 0;
};

/// Returns the mask that the builder makes of single cells.
SegmentMask build(const IrProgram& program, BlockShape block,
                  const std::vector<std::uint8_t>& cells) {
  SegmentBuilder builder(program.q_len, program.kv_len, block);
  const auto num_cols = static_cast<std::int32_t>(ceil_div(program.kv_len, block.block_kv));
  for (std::int64_t row = 0; row < ceil_div(program.q_len, block.block_q); ++row) {
    const TileRange all[] = {{0, num_cols, false}};
    builder.add_tile_row(
        all,
        [&](std::int32_t tile, std::uint64_t* words) {
          for (std::int64_t r = 0; r < block.block_q; ++r) {
            for (std::int64_t c = 0; c < block.block_kv; ++c) {
              const std::int64_t q = row * block.block_q + r;
              const std::int64_t k = std::int64_t{tile} * block.block_kv + c;
              if (q >= program.q_len || k >= program.kv_len) continue;
              if (cells[static_cast<std::size_t>(q * program.kv_len + k)] == 0) continue;
              const std::int64_t bit = r * block.block_kv + c;
              words[bit / 64] |= std::uint64_t{1} << (bit % 64);
            }
          }
        },
        true);
  }
  return builder.finish();
}

int num_undefined = 0;

void check(std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::int64_t lengths[] = {1, 3, 17, 33, 64, 65, 100, 130, 200};
  const std::int32_t sides[] = {16, 32, 48, 64};
  const std::int64_t q_len = lengths[random() % 9];
  const std::int64_t kv_len = lengths[random() % 9];
  const BlockShape block{sides[random() % 4], sides[random() % 4]};
  RandomProgram random_program(seed * 7919 + 1, q_len, kv_len);
  const IrProgram& program = random_program.make(2 + static_cast<int>(random() % 4));
  if (program.nodes.size() > 3000) return;

  std::vector<std::uint8_t> cells;
  std::int64_t first_undefined = -1;
  for (std::int64_t q = 0; q < q_len && first_undefined < 0; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k) {
      const auto value = evaluate_cell(program, q, k);
      if (!value) {
        first_undefined = q * kv_len + k;
        break;
      }
      cells.push_back(*value ? 1 : 0);
    }
  }
  const int num_threads = seed % 8 == 0 ? 3 : 1;
  WorkMeter meter;
  const Result<SegmentMask> lowered = lower_boxes(program, block, num_threads, meter);
  if (first_undefined >= 0) {
    ++num_undefined;
    ASSERT_FALSE(lowered) << "seed " << seed;
    EXPECT_EQ(lowered.error().code, ErrorCode::invalid_argument);
    const std::string place = "mask undefined at q = " + std::to_string(first_undefined / kv_len) +
                              ", k = " + std::to_string(first_undefined % kv_len) + ": ";
    ASSERT_EQ(lowered.error().message.substr(0, place.size()), place) << "seed " << seed;
    ASSERT_EQ(lowered.error().message.find("without a value"), std::string::npos);
    return;
  }
  ASSERT_TRUE(lowered) << "seed " << seed << ": " << lowered.error().message;
  ASSERT_EQ(cells_of(*lowered), cells) << "seed " << seed;
  ASSERT_EQ(*lowered, build(program, block, cells)) << "seed " << seed;
}

// Rows of more than 1024 tiles are divided into chunks, of which equal ones are visited once; those
// of fewer tiles are not.
void check_chunks(std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::int64_t q_lengths[] = {33, 64, 100};
  const std::int64_t kv_lengths[] = {16384, 16400, 17001};
  const std::int64_t q_len = q_lengths[random() % 3];
  const std::int64_t kv_len = kv_lengths[random() % 3];
  RandomProgram random_program(seed * 7919 + 1, q_len, kv_len);
  const IrProgram& program = random_program.make(2 + static_cast<int>(random() % 3));
  if (program.nodes.size() > 100) return;
  WorkMeter meter;
  const Result<SegmentMask> chunked = lower_boxes(program, {16, 16}, 1, meter);
  const Result<SegmentMask> whole = lower_boxes(program, {16, 64}, 1, meter);
  ASSERT_EQ(chunked.has_value(), whole.has_value()) << "seed " << seed;
  if (!chunked) {
    EXPECT_EQ(chunked.error().message, whole.error().message) << "seed " << seed;
    return;
  }
  ASSERT_EQ(cells_of(*chunked), cells_of(*whole)) << "seed " << seed;
}

TEST(LowerBoxes, ChunksOfRowsChangeNoCellOfRandomPrograms) {
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    check_chunks(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(LowerBoxes, EqualsCellByCellEvaluationOnRandomPrograms) {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    check(seed);
    if (HasFatalFailure()) return;
  }
  // The test is meaningful only if both outcomes are common.
  EXPECT_GT(num_undefined, 300);
  EXPECT_LT(num_undefined, 2700);
}

}  // namespace
}  // namespace fdma::box_test
