// Prepares and checks the rows of a selection on the host, and converts its results to masks.
#include "selection/topk/topk_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace fdma::zoh {
namespace {

Error mismatch(std::string message) { return {ErrorCode::shape_mismatch, std::move(message)}; }

Result<void> check_rows(const TopkRows& rows, std::int64_t w) {
  if (w < 1) {
    return Error{ErrorCode::invalid_argument, fmt::format("w: expected at least 1, got {}", w)};
  }
  if (rows.num_batches < 0 || rows.num_heads_kv < 0 || rows.kv_len < 0 ||
      rows.kv_len > kMaxLength) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rows: expected lengths of 0 or more, got {} x {} x {}",
                             rows.num_batches, rows.num_heads_kv, rows.kv_len)};
  }
  if (static_cast<std::int64_t>(rows.mask_of.size()) != rows.num_rows()) {
    return mismatch(
        fmt::format("mask_of: expected {} masks, one per batch element and KV head, "
                    "got {}",
                    rows.num_rows(), rows.mask_of.size()));
  }
  for (std::size_t i = 0; i < rows.mask_of.size(); ++i) {
    if (rows.mask_of[i] < 0 || static_cast<std::size_t>(rows.mask_of[i]) >= rows.masks.size()) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("mask_of[{}]: expected an index below {}, got {}", i,
                               rows.masks.size(), rows.mask_of[i])};
    }
  }
  for (std::size_t i = 0; i < rows.masks.size(); ++i) {
    if (rows.masks[i].kv_len > rows.kv_len) {
      return mismatch(fmt::format("masks[{}]: expected at most {} keys, got {}", i, rows.kv_len,
                                  rows.masks[i].kv_len));
    }
  }
  return {};
}

}  // namespace

Result<CutRows> cut_rows(const TopkRows& rows, std::int64_t w) {
  FDMA_TRY_VOID(check_rows(rows, w));
  CutRows result;
  const auto kv_len = static_cast<std::size_t>(rows.kv_len);
  std::vector<std::vector<KeySegment>> key_segments_of;
  for (const ColumnIntervals& among : rows.masks) {
    FDMA_TRY(CutMask mask, cut_mask(among, w));
    // No query sees keys past the mask's kv_len: they are one more range of keys to write.
    for (auto key = static_cast<std::int64_t>(mask.queries.size()); key < rows.kv_len;
         key += kKeySegmentSize) {
      const auto count =
          static_cast<std::int32_t>(std::min<std::int64_t>(kKeySegmentSize, rows.kv_len - key));
      mask.key_segments.push_back(
          {0, 0, static_cast<std::int32_t>(key), count, KeySegmentKind::all_kept, 0, 0, 0});
    }
    mask.queries.resize(kv_len, Interval{0, 0});
    mask.ordinals.resize(kv_len, 0);
    std::copy(mask.queries.begin(), mask.queries.end(), std::back_inserter(result.queries));
    std::copy(mask.ordinals.begin(), mask.ordinals.end(), std::back_inserter(result.ordinals));
    key_segments_of.push_back(std::move(mask.key_segments));
  }
  for (const bool sorted : {true, false}) {
    for (std::size_t row = 0; row < rows.mask_of.size(); ++row) {
      for (KeySegment key_segment : key_segments_of[static_cast<std::size_t>(rows.mask_of[row])]) {
        if ((key_segment.kind != KeySegmentKind::all_kept) != sorted) continue;
        key_segment.row = static_cast<std::int32_t>(row);
        key_segment.mask = rows.mask_of[row];
        if (sorted) {
          result.most_parts = std::max<std::int64_t>(
              result.most_parts, key_segment.num_before + key_segment.num_after + 1);
        }
        result.key_segments.push_back(key_segment);
      }
    }
    if (sorted) result.num_sorted = static_cast<std::int64_t>(result.key_segments.size());
  }
  if (result.most_parts > kMostParts) {
    return Error{ErrorCode::unsupported,
                 fmt::format("masks: a group of rows of {} keys, selection on the GPU takes {}; "
                             "select on the host (select_topk)",
                             result.most_parts * kKeySegmentSize, kMostParts * kKeySegmentSize)};
  }
  return result;
}

Result<void> check_topk_scores(const TensorView& scores, std::int64_t num_batches,
                               std::int64_t num_heads, std::int64_t kv_len) {
  if (scores.rank != 3 || scores.extents[0] != num_batches || scores.extents[1] != num_heads ||
      scores.extents[2] != kv_len) {
    return mismatch(
        fmt::format("scores: expected [batch, heads_kv, kv_len] = [{}, {}, {}], got [{}]",
                    num_batches, num_heads, kv_len,
                    fmt::join(scores.extents.begin(), scores.extents.begin() + scores.rank, ", ")));
  }
  if (scores.dtype != DType::float32) {
    return Error{ErrorCode::unsupported,
                 fmt::format("scores: expected float32, got {}", to_string(scores.dtype))};
  }
  if (scores.device != Device::cuda) {
    return Error{ErrorCode::unsupported,
                 "scores: on the host, but this selection runs on the GPU (select_topk runs on the "
                 "host)"};
  }
  const bool has_elements = num_batches * num_heads * kv_len > 0;
  if (has_elements && (scores.data == nullptr ||
                       reinterpret_cast<std::uintptr_t>(scores.data) % sizeof(float) != 0)) {
    return Error{ErrorCode::invalid_argument,
                 "scores: expected device memory at a multiple of 4 bytes"};
  }
  return {};
}

std::vector<ColumnIntervals> columns_of_rows(std::span<const Interval> kept, std::int64_t kv_len,
                                             std::span<const std::int64_t> q_len_of,
                                             std::span<const std::int64_t> kv_len_of) {
  std::vector<ColumnIntervals> masks;
  for (std::size_t row = 0; row < q_len_of.size(); ++row) {
    const auto row_kept = kept.subspan(row * static_cast<std::size_t>(kv_len),
                                       static_cast<std::size_t>(kv_len_of[row]));
    ColumnIntervals mask{q_len_of[row], kv_len_of[row], {0}, {}};
    mask.offsets.reserve(row_kept.size() + 1);
    for (const Interval& interval : row_kept) {
      if (interval.begin < interval.end) mask.intervals.push_back(interval);
      mask.offsets.push_back(static_cast<std::int64_t>(mask.intervals.size()));
    }
    masks.push_back(std::move(mask));
  }
  return masks;
}

}  // namespace fdma::zoh
