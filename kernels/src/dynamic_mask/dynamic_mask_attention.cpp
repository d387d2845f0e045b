// Dynamic Mask Attention: the code common to all backends, and the choice of the backend.
#include "fdma/kernels/dynamic_mask_attention.hpp"

#include <fmt/format.h>

#include <limits>
#include <new>
#include <utility>

#include "cuda/gpu_library.hpp"
#include "dynamic_mask/device_call.hpp"
#include "dynamic_mask/host_call.hpp"
#include "dynamic_mask/selection_plan.hpp"
#include "plan/full_mask.hpp"

namespace fdma {

struct DynamicMaskAttention::Impl {
  DynamicMaskSpec spec;
  TopkRows rows;                                        ///< cpu: the masks; sm90: lengths only
  std::unique_ptr<dynamic_mask::DeviceCall> on_device;  ///< sm90 only
};

namespace {

// Key k is seen from query k - (kv_len - q_len) on.
ColumnIntervals causal_mask(std::int64_t q_len, std::int64_t kv_len) {
  ColumnIntervals causal{q_len, kv_len, {0}, {}};
  for (std::int64_t key = 0; key < kv_len; ++key) {
    const std::int64_t begin = std::max<std::int64_t>(key - (kv_len - q_len), 0);
    if (begin < q_len) {
      causal.intervals.push_back(
          {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(q_len)});
    }
    causal.offsets.push_back(static_cast<std::int64_t>(causal.intervals.size()));
  }
  return causal;
}

// Makes one causal mask for each pair of lengths.
void set_causal(const AttentionShape& shape, TopkRows& rows) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const auto same =
        std::find_if(rows.masks.begin(), rows.masks.end(), [&](const ColumnIntervals& mask) {
          return mask.q_len == shape.q_len(b) && mask.kv_len == shape.kv_len(b);
        });
    const auto index = static_cast<std::int32_t>(same - rows.masks.begin());
    if (same == rows.masks.end()) {
      rows.masks.push_back(causal_mask(shape.q_len(b), shape.kv_len(b)));
    }
    rows.mask_of.insert(rows.mask_of.end(), static_cast<std::size_t>(shape.heads_kv), index);
  }
}

Result<void> set_masks(DynamicMaskSpec& spec, TopkRows& rows) {
  const AttentionShape& shape = spec.shape;
  rows.masks = std::move(spec.masks);
  rows.mask_of = std::move(spec.mask_of);
  if (rows.masks.size() == 1 && rows.mask_of.empty()) {
    rows.mask_of.assign(static_cast<std::size_t>(rows.num_rows()), 0);
  }
  if (static_cast<std::int64_t>(rows.mask_of.size()) != rows.num_rows()) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("mask_of: expected {} masks, one per batch element and KV head, got {}",
                    rows.num_rows(), rows.mask_of.size())};
  }
  for (std::size_t row = 0; row < rows.mask_of.size(); ++row) {
    const std::int32_t index = rows.mask_of[row];
    if (index < 0 || static_cast<std::size_t>(index) >= rows.masks.size()) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("mask_of[{}]: expected an index below {}, got {}", row,
                               rows.masks.size(), index)};
    }
    const ColumnIntervals& mask = rows.masks[static_cast<std::size_t>(index)];
    const auto b = static_cast<std::int64_t>(row) / shape.heads_kv;
    if (mask.q_len != shape.q_len(b) || mask.kv_len != shape.kv_len(b)) {
      return Error{
          ErrorCode::shape_mismatch,
          fmt::format("masks[{}]: expected {} queries and {} keys as batch element {} has, "
                      "got {} and {}",
                      index, shape.q_len(b), shape.kv_len(b), b, mask.q_len, mask.kv_len)};
    }
  }
  return {};
}

Result<std::unique_ptr<DynamicMaskAttention::Impl>> prepare(DynamicMaskSpec spec, Stream stream) {
  if (spec.w < 1) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("keep_window_size: expected at least 1, got {}", spec.w)};
  }
  FDMA_TRY_VOID(validate(spec.shape));
  auto impl = std::make_unique<DynamicMaskAttention::Impl>();
  TopkRows& rows = impl->rows;
  rows.num_batches = spec.shape.batch;
  rows.num_heads_kv = spec.shape.heads_kv;
  rows.kv_len = spec.shape.max_kv_len();
  if (spec.masks.empty() && spec.mask_of.empty()) {
    set_causal(spec.shape, rows);
  } else {
    FDMA_TRY_VOID(set_masks(spec, rows));
  }
  impl->spec = std::move(spec);
  if (impl->spec.backend.traits().device == Device::cuda) {
    FDMA_TRY_VOID(check_backend(impl->spec.backend));
    FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
    FDMA_TRY(impl->on_device, gpu->dynamic_mask.prepare(impl->spec, rows, stream));
    rows.masks.clear();
  } else {
    const ScoreSpec score = dynamic_mask::score_of(impl->spec.bias);
    PlanOptions options;
    options.profile = impl->spec.profile;
    FDMA_TRY(const AttentionPlan plan,
             make_plan(full_mask(impl->spec.shape, {128, 128}), impl->spec.shape, score, options));
    static_cast<void>(plan);
  }
  return Result<std::unique_ptr<DynamicMaskAttention::Impl>>(std::move(impl));
}

}  // namespace

std::string_view to_string(ScoreBias bias) {
  switch (bias) {
    case ScoreBias::exp:
      return "exp";
    case ScoreBias::log:
      return "log";
    case ScoreBias::none:
      return "none";
  }
  return "unknown";
}

Result<ScoreBias> parse_score_bias(std::string_view name) {
  for (const ScoreBias bias : {ScoreBias::exp, ScoreBias::log, ScoreBias::none}) {
    if (to_string(bias) == name) return bias;
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("bias: expected exp, log or none, got '{}'", name)};
}

std::string_view to_string(SelectionReading reading) {
  switch (reading) {
    case SelectionReading::automatic:
      return "automatic";
    case SelectionReading::gather:
      return "gather";
    case SelectionReading::scan:
      return "scan";
    case SelectionReading::all:
      return "all";
  }
  return "unknown";
}

DynamicMaskAttention::DynamicMaskAttention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DynamicMaskAttention::DynamicMaskAttention(DynamicMaskAttention&&) noexcept = default;
DynamicMaskAttention& DynamicMaskAttention::operator=(DynamicMaskAttention&&) noexcept = default;
DynamicMaskAttention::~DynamicMaskAttention() = default;

Result<DynamicMaskAttention> DynamicMaskAttention::make(DynamicMaskSpec spec, Stream stream) {
  try {
    FDMA_TRY(std::unique_ptr<Impl> impl, prepare(std::move(spec), stream));
    return DynamicMaskAttention(std::move(impl));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "dynamic_mask_attention: no host memory for its plan"};
  }
}

const DynamicMaskSpec& DynamicMaskAttention::spec() const { return impl_->spec; }
SelectionReading DynamicMaskAttention::reading() const {
  return impl_->on_device ? impl_->on_device->reading() : SelectionReading::scan;
}
std::int32_t DynamicMaskAttention::heads_per_tile() const {
  return impl_->on_device ? impl_->on_device->heads_per_tile() : 1;
}
int DynamicMaskAttention::device() const {
  return impl_->on_device ? impl_->on_device->device() : -1;
}
std::int64_t DynamicMaskAttention::size_bytes() const {
  return impl_->on_device ? impl_->on_device->size_bytes() : 0;
}
std::int64_t DynamicMaskAttention::workspace_bytes() const {
  return impl_->on_device ? impl_->on_device->workspace_bytes() : 0;
}

Result<void> DynamicMaskAttention::run(const DynamicMaskTensors& tensors, void* workspace,
                                       std::uint32_t* status, Stream stream,
                                       const DynamicMaskOptions& options) const {
  if (impl_->on_device) {
    return impl_->on_device->run(tensors, workspace, status, stream, options);
  }
  try {
    return dynamic_mask::run_on_host(impl_->spec, impl_->rows, tensors, options.attention);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "dynamic_mask_attention: no host memory"};
  }
}

std::int64_t DynamicMaskAttention::backward_workspace_bytes(const BackwardOptions& options) const {
  return impl_->on_device ? impl_->on_device->backward_workspace_bytes(options) : 0;
}

Result<void> DynamicMaskAttention::backward(const DynamicMaskBackwardTensors& tensors,
                                            void* workspace, Stream stream,
                                            const BackwardOptions& options) const {
  if (!impl_->spec.has_gradients) {
    return Error{ErrorCode::invalid_argument,
                 "backward: was prepared without gradients; set DynamicMaskSpec::has_gradients"};
  }
  if (impl_->on_device) return impl_->on_device->backward(tensors, workspace, stream, options);
  try {
    return dynamic_mask::backward_on_host(impl_->spec, impl_->rows, tensors, options);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "dynamic_mask_attention: no host memory"};
  }
}

Result<BlockMask> DynamicMaskAttention::to_mask(const Interval* kept, BlockShape block,
                                                Stream stream) const {
  FDMA_TRY_VOID(validate(block));
  const AttentionShape& shape = impl_->spec.shape;
  try {
    std::vector<ColumnIntervals> masks;
    if (impl_->on_device) {
      FDMA_TRY(masks, impl_->on_device->to_host(kept, stream));
    } else {
      masks = dynamic_mask::kept_columns(shape, kept);
    }
    std::vector<std::int32_t> mask_of(masks.size());
    for (std::size_t row = 0; row < mask_of.size(); ++row) {
      mask_of[row] = static_cast<std::int32_t>(row);
    }
    return dynamic_mask::mask_of_rows(shape, masks, mask_of, block);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "to_mask: no host memory for the mask"};
  }
}

}  // namespace fdma
