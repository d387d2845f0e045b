#include "suite_mask.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace fdma::suite {

TensorView SuiteTable::view() const {
  const void* data = integers.data();
  if (dtype == DType::boolean) data = booleans.data();
  if (dtype == DType::float32) data = floats.data();
  return make_contiguous_view(data, dtype, static_cast<int>(extents.size()), extents.data());
}

SuiteTable integers(std::vector<std::int32_t> values) {
  SuiteTable table;
  table.extents = {static_cast<std::int64_t>(values.size())};
  table.integers = std::move(values);
  return table;
}

SuiteTable booleans(std::vector<std::uint8_t> values) {
  SuiteTable table;
  table.dtype = DType::boolean;
  table.extents = {static_cast<std::int64_t>(values.size())};
  table.booleans = std::move(values);
  return table;
}

SuiteTable floats(std::vector<float> values) {
  SuiteTable table;
  table.dtype = DType::float32;
  table.extents = {static_cast<std::int64_t>(values.size())};
  table.floats = std::move(values);
  return table;
}

Tables SuiteMask::bound_tables() const {
  Tables bound;
  for (const auto& [table_name, table] : tables) bound.emplace(table_name, table.view());
  return bound;
}

SuiteMask make_square(std::string name, std::string spec, std::int64_t n) {
  SuiteMask mask;
  mask.name = std::move(name);
  mask.spec = std::move(spec);
  mask.shape.q_lens = {n};
  mask.shape.kv_lens = {n};
  return mask;
}

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15U;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

std::int64_t Random::below(std::int64_t bound) {
  return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
}

std::vector<std::int32_t> random_lengths(std::int64_t total, std::int64_t count, Random& random) {
  // count - 1 distinct cuts of [1, total).
  std::set<std::int64_t> cuts;
  while (static_cast<std::int64_t>(cuts.size()) < count - 1) {
    cuts.insert(1 + random.below(total - 1));
  }
  std::vector<std::int32_t> lengths;
  std::int64_t begin = 0;
  for (const std::int64_t cut : cuts) {
    lengths.push_back(static_cast<std::int32_t>(cut - begin));
    begin = cut;
  }
  lengths.push_back(static_cast<std::int32_t>(total - begin));
  return lengths;
}

}  // namespace fdma::suite
