// What checks of results have in common: which rows are compared, and plain sums.
#pragma once

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

/// A check of everything may cost about so many multiplications.
inline constexpr std::int64_t kMaxProducts = std::int64_t{1} << 31;
/// Otherwise at least so many rows are compared.
inline constexpr std::int64_t kMinRowsChecked = 64;

/// Rows of a tensor [batch, len, heads, dim] in which tiles of `tile_rows` begin.
struct RowSpace {
  std::int64_t batch = 1, heads = 1, tile_rows = 128;
  std::function<std::int64_t(std::int64_t b)> length;

  std::int64_t num_rows() const;
};

/// All rows, or `num_rows` of them: heads in turn, and in each the first row, the last, then by
/// turns the first row of a tile, the last row of a tile and any row.
std::vector<TensorRow> rows_to_check(const RowSpace& space, std::int64_t num_rows);

/// Segment masks of the groups that rows need, each made once. Borrows the mask.
class GroupsOfRows {
 public:
  explicit GroupsOfRows(const BlockMask& mask) : mask_(mask) {}
  /// Makes the group of a batch element and query head; not from several threads.
  void make(std::int64_t batch, std::int64_t head);
  const SegmentMask& of(std::int64_t batch, std::int64_t head) const;

 private:
  std::int32_t group_of(std::int64_t batch, std::int64_t head) const;

  const BlockMask& mask_;
  std::map<std::int32_t, SegmentMask> groups_;
};

/// Calls work(i, worker) for every i of [0, count) on `num_workers` threads. Failure: unsupported,
/// if one ran out of memory.
Status check_each(std::int64_t count, int num_workers, Progress& progress,
                  const std::function<void(std::int64_t i, int worker)>& work);

/// Row `position` of a head, as numbers.
void load_row(const TensorView& tensor, std::int64_t b, std::int64_t position, std::int64_t head,
              std::int64_t count, float* values);
/// An element of a float32 tensor [batch, head, position].
float element_at(const TensorView& tensor, std::int64_t b, std::int64_t head,
                 std::int64_t position);

/// Sums in eight lanes, as a vector unit would.
float dot32(const float* a, const float* b, std::int64_t n);
double dot64(const float* a, const float* b, std::int64_t n);

/// Logits of one row as weights, in place; returns log(sum(exp(logits))). Where every logit is
/// -inf weights are 0, where one is NaN all are.
template <class T>
T softmax(T* logits, std::size_t count);
extern template float softmax(float*, std::size_t);
extern template double softmax(double*, std::size_t);

}  // namespace fdma::maskc
