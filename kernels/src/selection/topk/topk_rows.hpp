// The rows of a selection on the GPU: what the host prepares and checks, and how results become
// masks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/device_topk.hpp"
#include "selection/topk/topk_segments.hpp"

namespace fdma::zoh {

/// The key segments of all rows: those to sort first, then those that are kept as a whole. Both
/// parts are ordered by row, then by key.
struct CutRows {
  std::vector<KeySegment> key_segments;
  std::int64_t num_sorted = 0;
  std::int64_t most_parts = 1;          ///< parts of the longest group
  std::vector<Interval> queries;        ///< [masks, kv_len], {0, 0} past a mask's kv_len
  std::vector<std::uint16_t> ordinals;  ///< [masks, kv_len]
};

/// Errors  those of DeviceTopk::make that need no GPU
Result<CutRows> cut_rows(const TopkRows& rows, std::int64_t w);

/// shape_mismatch, invalid_argument, unsupported: not float32 [batch, heads, kv_len] on a device.
Result<void> check_topk_scores(const TensorView& scores, std::int64_t num_batches,
                               std::int64_t num_heads, std::int64_t kv_len);

/// Converts rows of [rows, kv_len] intervals to masks: empty intervals are left out, others are cut
/// at each row's lengths.
std::vector<ColumnIntervals> columns_of_rows(std::span<const Interval> kept, std::int64_t kv_len,
                                             std::span<const std::int64_t> q_len_of,
                                             std::span<const std::int64_t> kv_len_of);

}  // namespace fdma::zoh
