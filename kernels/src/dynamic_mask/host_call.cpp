// Dynamic Mask Attention on the CPU. Rows are selected in parallel; attention then runs over the
// plan of the kept keys.
#include "dynamic_mask/host_call.hpp"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "dynamic_mask/call_check.hpp"
#include "dynamic_mask/selection_plan.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/select/select_topk.hpp"
#include "fdma/select/zoh_backward.hpp"
#include "fdma/select/zoh_scores.hpp"
#include "selection/topk/topk_rows.hpp"

namespace fdma::dynamic_mask {
namespace {

ColumnIntervals without_zero_scores(const ColumnIntervals& kept, const std::vector<float>& scores) {
  ColumnIntervals left{kept.q_len, kept.kv_len, {0}, {}};
  for (std::size_t key = 0; key + 1 < kept.offsets.size(); ++key) {
    if (scores[key] != 0) {
      left.intervals.insert(left.intervals.end(), kept.intervals.begin() + kept.offsets[key],
                            kept.intervals.begin() + kept.offsets[key + 1]);
    }
    left.offsets.push_back(static_cast<std::int64_t>(left.intervals.size()));
  }
  return left;
}

// Selects keys in one row of scores; returns the queries that keep each key.
Result<ColumnIntervals> select_row(const DynamicMaskSpec& spec, const TopkRows& rows,
                                   const TensorView& scores, std::int64_t row) {
  const auto mask = static_cast<std::size_t>(rows.mask_of[static_cast<std::size_t>(row)]);
  const ColumnIntervals& among = rows.masks[mask];
  const float* data = static_cast<const float*>(scores.data) +
                      row / rows.num_heads_kv * scores.strides[0] +
                      row % rows.num_heads_kv * scores.strides[1];
  const std::vector<float> values(data, data + among.kv_len);
  Result<ColumnIntervals> kept = select_topk(values, spec.w, among);
  if (!kept) {
    return Error{kept.error().code,
                 fmt::format("batch element {}, KV head {}: {}", row / rows.num_heads_kv,
                             row % rows.num_heads_kv, kept.error().message)};
  }
  return spec.drops_zero_scores ? without_zero_scores(*kept, values) : *std::move(kept);
}

Result<std::vector<ColumnIntervals>> select_rows(const DynamicMaskSpec& spec, const TopkRows& rows,
                                                 const TensorView& scores, int num_threads) {
  std::vector<std::optional<Result<ColumnIntervals>>> selected(
      static_cast<std::size_t>(rows.num_rows()));
  in_arena(num_threads, [&] {
    parallel_for(std::size_t{0}, selected.size(), [&](std::size_t row) {
      selected[row] = select_row(spec, rows, scores, static_cast<std::int64_t>(row));
    });
  });
  std::vector<ColumnIntervals> kept;
  for (std::optional<Result<ColumnIntervals>>& row : selected) {
    if (!*row) return std::move(*row).error();
    kept.push_back(**std::move(row));
  }
  return kept;
}

Result<void> write_kept(const std::vector<ColumnIntervals>& rows, std::int64_t kv_len,
                        Interval* out) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::int64_t key = 0; key < kv_len; ++key, ++out) {
      *out = {0, 0};
      const auto at = static_cast<std::size_t>(key);
      if (key >= rows[row].kv_len) continue;
      const std::int64_t begin = rows[row].offsets[at];
      const std::int64_t count = rows[row].offsets[at + 1] - begin;
      if (count > 1) {
        return Error{ErrorCode::unsupported,
                     fmt::format("kept: key {} of row {} is kept by {} intervals of queries, and "
                                 "one can be told; leave kept out",
                                 key, row, count)};
      }
      if (count == 1) *out = rows[row].intervals[static_cast<std::size_t>(begin)];
    }
  }
  return {};
}

void fill_rows(const MutableTensorView& scores, float value) {
  for (std::int64_t b = 0; b < scores.extents[0]; ++b) {
    for (std::int64_t h = 0; h < scores.extents[1]; ++h) {
      std::fill_n(static_cast<float*>(scores.data) + b * scores.strides[0] + h * scores.strides[1],
                  scores.extents[2], value);
    }
  }
}

void copy_scores(const TensorView& from, const MutableTensorView& to) {
  for (std::int64_t b = 0; b < from.extents[0]; ++b) {
    for (std::int64_t h = 0; h < from.extents[1]; ++h) {
      const float* row =
          static_cast<const float*>(from.data) + b * from.strides[0] + h * from.strides[1];
      std::copy_n(row, from.extents[2],
                  static_cast<float*>(to.data) + b * to.strides[0] + h * to.strides[1]);
    }
  }
}

// The mask of all query heads.
BlockMask mask_of_kept(const AttentionShape& shape, std::vector<ColumnIntervals> kept) {
  BlockMask mask;
  mask.block = {128, 128};
  mask.shape = {shape.batch, shape.heads_q, shape.q_lens, shape.kv_lens};
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int32_t h = 0; h < shape.heads_q; ++h) {
      mask.group_of.push_back(
          static_cast<std::int32_t>(b * shape.heads_kv + h / shape.group_size()));
    }
  }
  mask.groups = std::move(kept);
  return mask;
}

// The kept keys of the forward call, as the host has them.
Result<std::vector<ColumnIntervals>> kept_of_call(const DynamicMaskSpec& spec, const TopkRows& rows,
                                                  const DynamicMaskBackwardTensors& tensors,
                                                  int num_threads) {
  if (tensors.kept.data == nullptr) return select_rows(spec, rows, tensors.scores, num_threads);
  return kept_columns(spec.shape, static_cast<const Interval*>(tensors.kept.data));
}

}  // namespace

std::vector<ColumnIntervals> kept_columns(const AttentionShape& shape, const Interval* kept) {
  const std::int64_t num_rows = shape.batch * shape.heads_kv, kv_len = shape.max_kv_len();
  std::vector<std::int64_t> q_lens, kv_lens;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    q_lens.push_back(shape.q_len(row / shape.heads_kv));
    kv_lens.push_back(shape.kv_len(row / shape.heads_kv));
  }
  return zoh::columns_of_rows({kept, static_cast<std::size_t>(num_rows * kv_len)}, kv_len, q_lens,
                              kv_lens);
}

Result<void> run_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                         const DynamicMaskTensors& tensors, const AttentionOptions& options) {
  FDMA_TRY_VOID(check_call(spec, tensors, options, Device::cpu));
  const MutableTensorView& wanted = tensors.made_scores;
  TensorView scores = tensors.scores;
  std::vector<float> memory;
  if (scores.data == nullptr) {
    MutableTensorView made = wanted;
    if (wanted.data == nullptr) {
      memory.resize(static_cast<std::size_t>(rows.num_rows() * rows.kv_len));
      made = scores_view(spec, memory.data(), Device::cpu);
    }
    FDMA_TRY_VOID(zoh_scores(values_of(spec, tensors.kv.v), tensors.dt_proj, tensors.a_coef, made,
                             {zoh_mode_of(spec.bias), options.num_threads}));
    scores = made;
  } else if (wanted.data != nullptr) {
    copy_scores(scores, wanted);
  }
  FDMA_TRY(const std::vector<ColumnIntervals> kept,
           select_rows(spec, rows, scores, options.num_threads));
  if (tensors.kept.data != nullptr) {
    FDMA_TRY_VOID(write_kept(kept, rows.kv_len, static_cast<Interval*>(tensors.kept.data)));
  }
  const BlockMask mask = mask_of_kept(spec.shape, kept);
  PlanOptions forward;
  forward.num_threads = options.num_threads;
  forward.profile = spec.profile;
  FDMA_TRY(const AttentionPlan plan, make_plan(mask, spec.shape, score_of(spec.bias), forward));
  return attention_forward(plan, attention_tensors(spec, tensors, scores), options);
}

Result<void> backward_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                              const DynamicMaskBackwardTensors& tensors,
                              const BackwardOptions& options) {
  FDMA_TRY_VOID(check_backward(spec, tensors, options, Device::cpu));
  FDMA_TRY(std::vector<ColumnIntervals> kept,
           kept_of_call(spec, rows, tensors, options.num_threads));
  PlanOptions backward;
  backward.direction = Direction::backward;
  backward.num_threads = options.num_threads;
  backward.profile = spec.profile;
  FDMA_TRY(const AttentionPlan plan, make_plan(mask_of_kept(spec.shape, std::move(kept)),
                                               spec.shape, score_of(spec.bias), backward));
  std::vector<float> memory;
  MutableTensorView dscores = tensors.dscores;
  if (dscores.data == nullptr) {
    memory.resize(static_cast<std::size_t>(rows.num_rows() * rows.kv_len));
    dscores = scores_view(spec, memory.data(), Device::cpu);
  } else {
    fill_rows(dscores, 0);
  }
  FDMA_TRY_VOID(attention_backward(plan, backward_tensors(spec, tensors, dscores), options));
  if (tensors.dt_proj.data == nullptr) return {};
  return zoh_scores_backward(zoh_tensors(spec, tensors, dscores),
                             {zoh_mode_of(spec.bias), options.num_threads});
}

}  // namespace fdma::dynamic_mask
