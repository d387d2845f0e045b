// Groups of KV heads whose work tiles share a cache: the bytes that work tiles of a plan read in
// succession, and how many KV heads the cache holds.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Bytes of one column of the plan's mask, for one KV head: its rows of k and v; in a backward plan
/// the rows of q and dout and the fp32 accumulators of dq of all its query heads.
inline std::int64_t column_bytes(const PlanHeader& header) {
  const AttentionShape& shape = header.shape;
  const std::int64_t head_dim = shape.head_dim, head_dim_v = shape.head_dim_v;
  if (!header.is_backward()) {
    return head_dim * size_bytes(shape.k_dtype) + head_dim_v * size_bytes(shape.v_dtype);
  }
  return shape.group_size() * (head_dim * (size_bytes(shape.q_dtype) + size_bytes(DType::float32)) +
                               head_dim_v * size_bytes(shape.out_dtype));
}

/// Number of KV heads in L2 at a time: the data that their work tiles read in succession fits in
/// `l2_bytes`.
inline std::int64_t heads_in_l2(const PlanHeader& header, std::int64_t l2_bytes) {
  const std::int64_t columns =
      header.is_backward() ? header.shape.max_q_len() : header.shape.max_kv_len();
  const std::int64_t head_bytes = std::max<std::int64_t>(1, columns * column_bytes(header));
  return std::max<std::int64_t>(1, l2_bytes / head_bytes);
}

/// The choice of `num_taken` of `num_kv_heads` KV heads at a time, with what L2 misses are predicted
/// to cost under a full mask.
inline PlanDecision l2_decision(const PlanHeader& header, std::int64_t num_taken,
                                std::int64_t num_kv_heads, std::int64_t l2_bytes,
                                const CostModel& costs, std::int32_t num_workers) {
  const double columns = static_cast<double>(header.is_backward() ? header.shape.max_q_len()
                                                                  : header.shape.max_kv_len());
  const double rows = static_cast<double>(header.is_backward() ? header.shape.max_kv_len()
                                                               : header.shape.max_q_len());
  const double work_tiles = std::ceil(rows / header.mask_tile().block_q) *
                            static_cast<double>(header.shape.batch) * header.shape.heads_q /
                            header.heads_per_tile;
  const auto alternative = [&](std::int64_t heads) {
    const double bytes = static_cast<double>(heads * column_bytes(header)) * columns;
    return PlanAlternative{fmt::format("{} of {} KV heads", heads, num_kv_heads),
                           work_tiles * costs.l2_misses_us(bytes, columns) / num_workers,
                           {}};
  };
  PlanDecision decision{"heads in L2",
                        {alternative(num_taken)},
                        0,
                        fmt::format("what is read again fits in {} bytes", l2_bytes)};
  if (num_taken < num_kv_heads) decision.alternatives.push_back(alternative(num_kv_heads));
  return decision;
}

}  // namespace fdma
