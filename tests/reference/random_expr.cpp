// Expressions grow from the root by weighted choice, through the C++ builder. Each name gets tables
// of the extents that it needs, in a random integer type. Parameters are chosen so that masks are
// seldom trivial at the lengths of tests. The file is long since every name of the language has an
// entry here.
#include "random_expr.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "fdma/masks/mask_builder.hpp"

namespace fdma::reference {
namespace {

using mask::BoolExpr;
using mask::IntExpr;

class Generator {
 public:
  Generator(std::uint64_t seed, const RandomMaskOptions& options)
      : state_(seed), options_(options) {}

  RandomMask run();

 private:
  // SplitMix64 gives the same numbers on every platform; the standard's distributions need not.
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {  // both inclusive
    if (high <= low) return low;
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }

  void choose_shape();
  std::int64_t min_kv_len() const {
    return *std::min_element(out_.shape.kv_lens.begin(), out_.shape.kv_lens.end());
  }

  // Adds a table and returns its name.
  std::string add_table(bool is_boolean, std::vector<std::int64_t> extents, std::int64_t low,
                        std::int64_t high);
  std::string add_values(bool is_boolean, std::vector<std::int64_t> extents,
                         const std::vector<std::int64_t>& values);
  std::vector<std::int64_t> with_batch(std::vector<std::int64_t> extents);
  std::string ids_table(std::int64_t num_docs);
  std::string lengths_table();
  std::string cu_seqlens_table();
  std::string parents_table();
  std::string per_element_table();

  IntExpr integer(int depth);
  IntExpr index_below(std::int64_t extent, int depth);
  IntExpr leaf();
  IntExpr look_up(int depth);
  BoolExpr condition(int depth);
  BoolExpr comparison(int depth);
  BoolExpr quantifier(int depth);
  BoolExpr test(int depth);
  BoolExpr named();
  BoolExpr named_with_tables(std::int64_t which);
  IntExpr parameter(std::int64_t low, std::int64_t high);
  mask::Bound bound(std::int64_t low, std::int64_t high);

  std::uint64_t state_;
  RandomMaskOptions options_;
  RandomMask out_;
  int num_tables_ = 0;
  std::vector<std::string> loops_;
};

void Generator::choose_shape() {
  MaskShape& shape = out_.shape;
  shape.num_batches = chance(50) ? 1 : between(1, options_.max_batches);
  shape.num_heads = chance(50) ? 1 : between(1, options_.max_heads);
  const auto lengths = [&](bool is_uniform) {
    std::vector<std::int64_t> all;
    const std::int64_t count = is_uniform ? 1 : shape.num_batches;
    for (std::int64_t i = 0; i < count; ++i)
      all.push_back(chance(5) ? between(0, 2) : between(1, options_.max_len));
    return all;
  };
  const bool is_uniform = shape.num_batches == 1 || chance(50);
  shape.q_lens = lengths(is_uniform);
  shape.kv_lens = chance(40) ? shape.q_lens : lengths(is_uniform);
}

std::string Generator::add_values(bool is_boolean, std::vector<std::int64_t> extents,
                                  const std::vector<std::int64_t>& values) {
  const std::string name = fmt::format("t{}", num_tables_++);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const bool is_signed = chance(60) || (!values.empty() && *low < 0);
  constexpr DType kSigned[] = {DType::int8, DType::int16, DType::int32, DType::int64};
  constexpr DType kUnsigned[] = {DType::uint8, DType::uint16, DType::uint32, DType::uint64};
  const bool fits_a_byte = values.empty() || (*low >= -128 && *high <= 127);
  const auto width = static_cast<std::size_t>(between(fits_a_byte ? 0 : 1, 3));
  const DType dtype = is_boolean ? DType::boolean : is_signed ? kSigned[width] : kUnsigned[width];
  out_.tables.add(name, dtype, extents, values);
  return name;
}

std::string Generator::add_table(bool is_boolean, std::vector<std::int64_t> extents,
                                 std::int64_t low, std::int64_t high) {
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) count *= extent;
  std::vector<std::int64_t> values;
  // Half of the tables have long runs of equal values; the others are noise.
  const int keep_percent = chance(50) ? 80 : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool keep = i > 0 && chance(keep_percent);
    values.push_back(keep ? values.back() : between(low, high));
  }
  return add_values(is_boolean, std::move(extents), values);
}

std::vector<std::int64_t> Generator::with_batch(std::vector<std::int64_t> extents) {
  if (chance(40)) extents.insert(extents.begin(), out_.shape.num_batches);
  return extents;
}

// A table of document ids. Documents are consecutive or interleaved, with padding now and then.
std::string Generator::ids_table(std::int64_t num_docs) {
  const std::vector<std::int64_t> extents = with_batch({out_.shape.max_kv_len()});
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) count *= extent;
  const bool is_interleaved = chance(30), has_padding = chance(40);
  std::vector<std::int64_t> ids;
  std::int64_t id = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % extents.back() == 0) id = 0;
    if (is_interleaved)
      id = between(0, num_docs - 1);
    else if (chance(15))
      id = std::min(id + 1, num_docs - 1);
    ids.push_back(has_padding && chance(10) ? between(-2, -1) : id);
  }
  return add_values(false, extents, ids);
}

std::string Generator::lengths_table() {
  const std::int64_t docs = between(1, 5);
  const std::vector<std::int64_t> extents = with_batch({docs});
  const std::int64_t rows = extents.size() == 2 ? extents[0] : 1;
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < rows; ++b) {
    std::int64_t left = extents.size() == 2 ? out_.shape.kv_len(b) : min_kv_len();
    for (std::int64_t d = 0; d < docs; ++d) {
      lengths.push_back(between(0, left));
      left -= lengths.back();
    }
  }
  return add_values(false, extents, lengths);
}

std::string Generator::cu_seqlens_table() {
  const std::int64_t docs = between(0, 4);
  const std::vector<std::int64_t> extents = with_batch({docs + 1});
  const std::int64_t rows = extents.size() == 2 ? extents[0] : 1;
  std::vector<std::int64_t> bounds;
  for (std::int64_t b = 0; b < rows; ++b) {
    const std::int64_t end = extents.size() == 2 ? out_.shape.kv_len(b) : min_kv_len();
    bounds.push_back(0);
    for (std::int64_t d = 0; d < docs; ++d) bounds.push_back(between(bounds.back(), end));
  }
  return add_values(false, extents, bounds);
}

std::string Generator::parents_table() {
  const std::int64_t n = between(1, std::max<std::int64_t>(1, out_.shape.max_kv_len()));
  const std::vector<std::int64_t> extents = with_batch({n});
  const std::int64_t rows = extents.size() == 2 ? extents[0] : 1;
  std::vector<std::int64_t> parents;
  for (std::int64_t row = 0; row < rows; ++row) {
    const bool is_reversed = chance(30);  // children before parents
    for (std::int64_t i = 0; i < n; ++i) {
      if (chance(15))
        parents.push_back(-1);
      else
        parents.push_back(is_reversed ? (i + 1 < n ? between(i + 1, n - 1) : -1)
                                      : between(std::max<std::int64_t>(-1, i - 4), i - 1));
    }
  }
  return add_values(false, extents, parents);
}

// A number of keys for each batch element. It is seldom below 0 or above the element's kv_len.
std::string Generator::per_element_table() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < out_.shape.num_batches; ++b)
    lengths.push_back(between(chance(2) ? -1 : 0, out_.shape.kv_len(b) + (chance(2) ? 1 : 0)));
  return add_values(false, {out_.shape.num_batches}, lengths);
}

// ---- integers

IntExpr Generator::leaf() {
  const std::int64_t longest = std::max(out_.shape.max_q_len(), out_.shape.max_kv_len());
  switch (between(0, 11)) {
    case 0:
    case 1:
    case 2:
      return mask::q;
    case 3:
    case 4:
    case 5:
      return mask::k;
    case 6:
      return mask::pos;
    case 7:
      if (!loops_.empty())
        return mask::loop(loops_[static_cast<std::size_t>(
            between(0, static_cast<std::int64_t>(loops_.size()) - 1))]);
      return mask::b;
    case 8:
      return mask::h;
    case 9:
      return chance(50) ? IntExpr(mask::q_len) : IntExpr(mask::kv_len);
    default:
      return between(-3, longest + 3);
  }
}

// An index of a table. It is inside the extent unless undefined cells are allowed.
IntExpr Generator::index_below(std::int64_t extent, int depth) {
  const IntExpr index = integer(depth);
  if (options_.allow_undefined && chance(30)) return index;
  if (chance(30)) return mask::clamp(index, 0, extent - 1);
  return index % extent;
}

IntExpr Generator::look_up(int depth) {
  const std::int64_t rank = between(0, 3);
  std::vector<std::int64_t> extents;
  std::vector<IntExpr> indices;
  for (std::int64_t i = 0; i < rank; ++i) {
    extents.push_back(between(1, 12));
    indices.push_back(index_below(extents.back(), depth - 1));
  }
  const mask::TableExpr table = mask::table(add_table(false, extents, -4, 40));
  switch (rank) {
    case 0:
      return table;
    case 1:
      return table(indices[0]);
    case 2:
      return table(indices[0], indices[1]);
    default:
      return table(indices[0], indices[1], indices[2]);
  }
}

IntExpr Generator::integer(int depth) {
  if (depth <= 0 || chance(25)) return leaf();
  const std::int64_t which = between(0, 15);
  if (which >= 14) return look_up(depth);
  if (which == 8) return mask::int_(condition(depth - 1));
  const IntExpr x = integer(depth - 1);
  if (which == 0) return -x;
  if (which == 1) return mask::abs(x);
  if (which == 2) return x * between(-3, 5);
  if (which == 3 || which == 4) {
    const IntExpr divisor =
        options_.allow_undefined && chance(20) ? leaf() : IntExpr(between(1, 9));
    return which == 3 ? x / divisor : x % divisor;
  }
  if (which == 5 || which == 6) {
    const IntExpr count = options_.allow_undefined && chance(20) ? leaf() : IntExpr(between(0, 4));
    return which == 5 ? mask::shl(x, count) : mask::shr(x, count);
  }
  if (which == 7) {
    const std::int64_t low = between(-3, 20);
    return mask::clamp(x, low, between(low, 40));
  }
  const IntExpr y = integer(depth - 1);
  switch (which) {
    case 9:
      return x + y;
    case 10:
      return x - y;
    case 11:
      return chance(50) ? mask::min(x, y) : mask::max(x, y);
    case 12: {
      const BoolExpr c = condition(depth - 1);
      return mask::where(c, x, y);
    }
    default: {
      const std::int64_t bits = between(0, 2);
      return bits == 0 ? mask::bitand_(x, y) : bits == 1 ? mask::bitor_(x, y) : mask::bitxor(x, y);
    }
  }
}

// ---- conditions

BoolExpr Generator::comparison(int depth) {
  const IntExpr x = integer(depth);
  const IntExpr y = integer(depth);
  switch (between(0, 6)) {
    case 0:
      return x < y;
    case 1:
      return x <= y;
    case 2:
      return x == y;
    case 3:
      return x != y;
    case 4:
      return x >= y;
    case 5:
      return x > y;
    default: {  // a chain
      const IntExpr z = integer(depth - 1);
      return (x <= y) & (y < z);
    }
  }
}

BoolExpr Generator::quantifier(int depth) {
  const std::string name(1, static_cast<char>('i' + loops_.size()));
  if (loops_.size() >= 2) return comparison(depth);
  const std::int64_t count = between(0, 4);
  loops_.push_back(name);
  const BoolExpr body = condition(depth - 1);
  loops_.pop_back();
  return chance(50) ? mask::any_of(name, count, body) : mask::all_of(name, count, body);
}

BoolExpr Generator::test(int depth) {
  const std::int64_t rank = between(1, 2);
  const std::int64_t rows = between(1, 12), columns = between(1, 12);
  const IntExpr i = index_below(rows, depth - 1);
  if (rank == 1) return mask::table(add_table(true, {rows}, 0, 1))(i);
  const IntExpr j = index_below(columns, depth - 1);
  return mask::table(add_table(true, {rows, columns}, 0, 1))(i, j);
}

BoolExpr Generator::condition(int depth) {
  if (options_.allow_names && chance(depth <= 0 ? 50 : 25)) return named();
  if (depth <= 0) return comparison(0);
  const std::int64_t which = between(0, 15);
  if (which <= 3) return comparison(depth - 1);
  if (which == 4) return quantifier(depth);
  if (which == 5) return test(depth);
  if (which == 6) return BoolExpr(chance(50));
  const BoolExpr x = condition(depth - 1);
  if (which == 7) return ~x;
  if (which == 8 && options_.allow_at) {
    const IntExpr row = integer(depth - 2);
    const IntExpr key = integer(depth - 2);
    return mask::at(x, row, key);
  }
  const BoolExpr y = condition(depth - 1);
  if (which <= 11) return x & y;
  if (which <= 13) return x | y;
  if (which == 14) return chance(50) ? x ^ y : x == y;
  const BoolExpr c = condition(depth - 1);
  return mask::where(c, x, y);
}

// ---- named masks

IntExpr Generator::parameter(std::int64_t low, std::int64_t high) {
  const std::int64_t value = between(low, high);
  if (chance(80)) return value;
  if (chance(50)) return mask::table(add_values(false, {}, {value}));
  return value + mask::h % 3;
}

// A bound. Now and then it is below what the name allows, which is an error.
mask::Bound Generator::bound(std::int64_t low, std::int64_t high) {
  if (chance(15)) return mask::inf;
  return parameter(chance(2) ? -2 : low, high);
}

BoolExpr Generator::named() {
  switch (between(0, 25)) {
    case 0:
      return mask::causal();
    case 1:
      return mask::window(bound(1, 20));
    case 2: {
      const mask::Bound left = bound(0, 12);
      const mask::Bound right = bound(0, 12);
      return mask::window(left, right);
    }
    case 3: {
      const mask::Bound w = bound(1, 25);
      return mask::dilated(w, parameter(1, 5));
    }
    case 4:
      return mask::chunked(parameter(1, 12));
    case 5:
      return mask::block_causal(parameter(1, 12));
    case 6:
      return mask::global(parameter(0, 6));
    case 7:
      return mask::sink(bound(0, 6));
    case 8:
      if (chance(50)) return mask::prefix(mask::min(parameter(0, 20), mask::kv_len));
      return mask::prefix(parameter(0, min_kv_len()));
    default:
      return named_with_tables(between(0, 16));
  }
}

BoolExpr Generator::named_with_tables(std::int64_t which) {
  const MaskShape& shape = out_.shape;
  const std::int64_t q_len = shape.max_q_len(), kv_len = shape.max_kv_len();
  const std::int64_t docs = between(1, 5);
  switch (which) {
    case 0:
      return mask::documents_ids(ids_table(docs));
    case 1:
      return mask::documents_lengths(lengths_table());
    case 2:
      return mask::documents_cu_seqlens(cu_seqlens_table());
    case 3: {
      const std::string a = add_table(false, with_batch({q_len}), -1, 3);
      return mask::documents_q_k_ids(a, add_table(false, with_batch({kv_len}), -1, 3));
    }
    case 4:
      return mask::prefix_table(per_element_table());
    case 5: {
      const std::string ids = ids_table(docs);
      return mask::prefix_documents(
          ids, add_table(false, with_batch({docs}), 0, std::min<std::int64_t>(min_kv_len(), 6)));
    }
    case 6: {
      const std::string ids = ids_table(docs);
      return mask::share_question(ids, add_table(false, with_batch({kv_len}), 0, 3));
    }
    case 7:
      return mask::causal_blockwise(ids_table(docs));
    case 8:
      return mask::global_table(add_table(true, with_batch({kv_len}), 0, 1));
    case 9:
      return mask::padding(per_element_table());
    case 10:
      return mask::padding(per_element_table(), chance(70) ? mask::Side::left : mask::Side::right);
    case 11:
    case 12: {
      const bool by_key = which == 11;
      const std::int64_t length = by_key ? kv_len : q_len, other = by_key ? q_len : kv_len;
      const std::int64_t n = between(1, 3);
      std::vector<std::int64_t> extents = {n, length};
      if (chance(40)) extents = {shape.num_batches, n, length};
      if (chance(20)) extents = {length};
      const std::string begin = add_table(false, extents, -2, other + 2);
      const std::string end = add_table(false, extents, -2, other + 2);
      return by_key ? mask::intervals(begin, end) : mask::rows(begin, end);
    }
    case 13:
    case 14: {
      const std::int64_t m = which == 13 ? between(1, 9) : 1, n = which == 13 ? between(1, 9) : 1;
      std::vector<std::int64_t> extents = {(q_len + m - 1) / m, (kv_len + n - 1) / n};
      if (chance(30)) extents.insert(extents.begin(), shape.num_heads);
      if (extents.size() == 3 || chance(30)) extents.insert(extents.begin(), shape.num_batches);
      const std::string table = add_table(true, extents, 0, 1);
      return which == 13 ? mask::tiles(table, m, n) : mask::bits(table);
    }
    case 15:
      return mask::tree(parents_table());
    default:
      break;
  }
  const bool is_uniform = shape.kv_lens.size() == 1 && kv_len > 0;
  if (is_uniform && kv_len % 2 == 0 && chance(50))
    return mask::block_diffusion(kv_len / 2, between(1, 6));
  if (!is_uniform) return mask::causal();
  std::int64_t height = between(1, 6);
  while (kv_len % height != 0) --height;
  const std::int64_t kh = between(1, height);
  if (chance(30)) {
    std::int64_t depth = between(1, 4);
    while (kv_len / height % depth != 0) --depth;
    const std::int64_t width = kv_len / height / depth;
    const std::int64_t kd = between(1, depth);
    return mask::natten3d(depth, height, width, kd, kh, between(1, width));
  }
  return mask::natten2d(height, kv_len / height, kh, between(1, kv_len / height));
}

RandomMask Generator::run() {
  choose_shape();
  const BoolExpr root = condition(options_.max_depth);
  Result<MaskExpr> expr = mask::build(root);
  // The choices above are well-typed and scoped, so building cannot fail.
  out_.expr = *std::move(expr);
  return std::move(out_);
}

}  // namespace

std::string RandomMask::describe() const {
  return fmt::format("{}\nq_len {}, kv_len {}, batch {}, heads {}\n{}", to_text(expr),
                     fmt::join(shape.q_lens, " "), fmt::join(shape.kv_lens, " "), shape.num_batches,
                     shape.num_heads, tables.describe());
}

RandomMask make_random_mask(std::uint64_t seed, const RandomMaskOptions& options) {
  return Generator(seed, options).run();
}

}  // namespace fdma::reference
