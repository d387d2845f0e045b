// The parts that the checks of results share: the choice of rows, and plain sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "cli/outcome.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "run/tensor_error.hpp"

namespace fdma::maskc {

class Progress;

/// The most multiplications, approximately, that a check of everything may cost.
inline constexpr std::int64_t kMaxProducts = std::int64_t{1} << 31;
/// The least number of rows that a check of selected rows compares.
inline constexpr std::int64_t kMinRowsChecked = 64;

/// The rows of a tensor [batch, len, heads, dim] in which tiles have `tile_rows` rows.
struct RowSpace {
  std::int64_t batch = 1, heads = 1, tile_rows = 128;
  std::function<std::int64_t(std::int64_t b)> length;

  std::int64_t num_rows() const;
};

/// All rows, or `num_rows` of them. The selection takes heads in turn. In each head it takes the
/// first row, the last row, and then alternately the first row of a tile, the last row of a tile
/// and any row.
std::vector<TensorRow> rows_to_check(const RowSpace& space, std::int64_t num_rows);

/// The segment masks of the groups that rows need; each is made once. Borrows the mask.
class GroupsOfRows {
 public:
  explicit GroupsOfRows(const BlockMask& mask) : mask_(mask) {}
  /// Makes the segment mask of the group of a batch element and query head. Not thread-safe.
  void make(std::int64_t batch, std::int64_t head);
  const SegmentMask& of(std::int64_t batch, std::int64_t head) const;

 private:
  std::int32_t group_of(std::int64_t batch, std::int64_t head) const;

  const BlockMask& mask_;
  std::map<std::int32_t, SegmentMask> groups_;
};

/// Calls work(i, worker) for every i of [0, count) on `num_workers` threads. Failure: unsupported,
/// if a thread ran out of memory.
Status check_each(std::int64_t count, int num_workers, Progress& progress,
                  const std::function<void(std::int64_t i, int worker)>& work);

/// Loads row `position` of a head as numbers.
void load_row(const TensorView& tensor, std::int64_t b, std::int64_t position, std::int64_t head,
              std::int64_t count, float* values);
/// An element of a float32 tensor [batch, head, position].
float element_at(const TensorView& tensor, std::int64_t b, std::int64_t head,
                 std::int64_t position);

/// Sums in eight lanes, as a vector unit would.
float dot32(const float* a, const float* b, std::int64_t n);
double dot64(const float* a, const float* b, std::int64_t n);

/// Turns the logits of one row into weights, in place, and returns log(sum(exp(logits))). If every
/// logit is -inf, the weights are 0. If one logit is NaN, all weights are NaN.
template <class T>
T softmax(T* logits, std::size_t count);
extern template float softmax(float*, std::size_t);
extern template double softmax(double*, std::size_t);

/// The scale as calls use it, rounded to float; 0 stands for 1 / sqrt(head_dim).
inline float scale_of(float softmax_scale, const AttentionShape& shape) {
  return softmax_scale != 0 ? softmax_scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

/// A scaled product under a softcap (0: none), and its derivative.
template <class T>
T capped(T product, T cap) {
  return cap == 0 ? product : cap * std::tanh(product / cap);
}
template <class T>
T slope_of_capped(T product, T cap) {
  if (cap == 0) return 1;
  const T t = std::tanh(product / cap);
  return 1 - t * t;
}

}  // namespace fdma::maskc
