// SuiteMask: a mask specification with the tables and lengths that it is bound to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma::suite {

/// An owned table, row-major. `integers`, `booleans` or `floats` is filled, for dtype int32,
/// boolean or float32 (scores of topk).
struct SuiteTable {
  DType dtype = DType::int32;
  std::vector<std::int64_t> extents;
  std::vector<std::int32_t> integers;
  std::vector<std::uint8_t> booleans;
  std::vector<float> floats;

  /// The entry at index i of an integer or boolean table.
  std::int64_t at(std::int64_t i) const {
    const auto index = static_cast<std::size_t>(i);
    return dtype == DType::boolean ? booleans[index] : integers[index];
  }
  TensorView view() const;  ///< borrows
};

/// 1-dimensional tables.
SuiteTable integers(std::vector<std::int32_t> values);
SuiteTable booleans(std::vector<std::uint8_t> values);
SuiteTable floats(std::vector<float> values);

struct SuiteMask {
  std::string name;
  std::string spec;
  MaskShape shape;
  std::map<std::string, SuiteTable, std::less<>> tables;

  Tables bound_tables() const;  ///< borrows
};

/// A mask with q_len = kv_len = n, one batch element and one head.
SuiteMask make_square(std::string name, std::string spec, std::int64_t n);

/// Random numbers by SplitMix64. They are the same on every platform; those of the standard
/// distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// Uniform in [0, bound); bound > 0. The bias is below bound / 2^64.
  std::int64_t below(std::int64_t bound);

 private:
  std::uint64_t state_;
};

/// `count` random positive lengths that add up to `total`; count <= total.
std::vector<std::int32_t> random_lengths(std::int64_t total, std::int64_t count, Random& random);

}  // namespace fdma::suite
