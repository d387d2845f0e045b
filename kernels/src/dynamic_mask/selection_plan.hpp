// Plans for attention on a GPU over a selection that is known only there: the plan does not contain
// the selection.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::dynamic_mask {

/// A plan for sm90 whose work tiles read what selection leaves on the device.
///
/// gather: a work tile has one segment, a kv index list. It is the list of its (batch element, KV
/// head, tile row), at row * num_tiles + tile. The plan has no lists, only their capacities. scan:
/// a work tile has one segment, the column tiles that M shows to the tile row. Table `row` of the
/// plan has one interval for each key, at row * kv_len + key. all: the plan of M.
struct SelectionPlan {
  AttentionPlan plan;
  SelectionReading reading = SelectionReading::all;
  std::int32_t num_tiles = 0;     ///< of the longest batch element
  std::int64_t most_entries = 0;  ///< of a kv index list
  /// [rows * num_tiles + 1] where lists begin; for gather
  std::vector<std::int64_t> first_entries;
  double predicted_us = 0;
};

/// The plan with the least predicted time, or that of spec.reading, over all numbers of query heads
/// that may share a tile. The masks of `rows` are of the one-interval class.
///
/// Errors  those of make_plan; invalid_argument: reading = all where a query sees more than w keys
Result<SelectionPlan> plan_selection(const DynamicMaskSpec& spec, const TopkRows& rows);

/// The score of attention that adds `bias`.
inline ScoreSpec score_of(ScoreBias bias) { return {.key_bias = bias != ScoreBias::none}; }

/// M of every (batch element, KV head), as a mask of heads_q heads.
BlockMask mask_of_rows(const AttentionShape& shape, const std::vector<ColumnIntervals>& masks,
                       const std::vector<std::int32_t>& mask_of, BlockShape block);

}  // namespace fdma::dynamic_mask
