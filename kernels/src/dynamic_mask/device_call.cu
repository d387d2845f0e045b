// The launches of a call: scores (one), selection (two or three, and one that drops keys), kv index
// lists (two), attention (one to three). Results pass from one to the next through the workspace.
#include <cuda_runtime.h>

#include <algorithm>
#include <optional>
#include <string>

#include "cuda/cuda_error.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/gpu_library.hpp"
#include "dynamic_mask/call_check.hpp"
#include "dynamic_mask/device_backward.hpp"
#include "dynamic_mask/device_call.hpp"
#include "dynamic_mask/device_kv_index_lists.hpp"
#include "dynamic_mask/selection_plan.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/zoh_device.hpp"
#include "sm90/forward/attention_forward.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr int kDropThreads = 256;

// Removes keys whose score is 0 from the kept ones. A thread has one key of a row.
__global__ void __launch_bounds__(kDropThreads)
    drop_zero_scores(int2* kept, const float* scores, std::int64_t num_keys, std::int64_t kv_len,
                     std::int32_t num_heads, std::int64_t batch_stride, std::int64_t head_stride) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kDropThreads + threadIdx.x;
  if (at >= num_keys) return;
  const std::int64_t row = at / kv_len, key = at % kv_len;
  const float score = scores[row / num_heads * batch_stride + row % num_heads * head_stride + key];
  if (score == 0) kept[at] = make_int2(0, 0);
}

// Offsets in the workspace, in bytes.
struct Layout {
  std::int64_t scores = 0, kept = 0, scratch = 0, lists = 0, keys = 0, rows = 0, attention = 0;
  std::int64_t bytes = 0;
};

class Sm90Call final : public DeviceCall {
 public:
  Sm90Call(const DynamicMaskSpec& spec, const TopkRows& rows, DeviceTopk topk,
           std::unique_ptr<gpu::DevicePlan> plan, DeviceMemory memory,
           const SelectionPlan& selection, std::optional<DeviceBackward> backward)
      : spec_(spec),
        num_rows_(rows.num_rows()),
        kv_len_(rows.kv_len),
        topk_(std::move(topk)),
        plan_(std::move(plan)),
        memory_(std::move(memory)),
        backward_(std::move(backward)),
        reading_(selection.reading),
        heads_per_tile_(selection.plan.heads_per_tile),
        block_q_(selection.plan.tile.block_q),
        num_tiles_(selection.num_tiles),
        most_entries_(selection.most_entries),
        num_entries_(selection.first_entries.empty() ? 0 : selection.first_entries.back()) {
    spec_.masks.clear();
    set_layout();
  }

  SelectionReading reading() const override { return reading_; }
  std::int32_t heads_per_tile() const override { return heads_per_tile_; }
  int device() const override { return plan_->device; }
  std::int64_t size_bytes() const override {
    return topk_.size_bytes() + plan_->size_bytes + first_entries_bytes() + q_lens_bytes() +
           (backward_ ? backward_->size_bytes() : 0);
  }
  std::int64_t workspace_bytes() const override { return layout_.bytes; }
  Result<std::vector<ColumnIntervals>> to_host(const Interval* kept, Stream stream) const override {
    return topk_.to_host(kept, stream);
  }

  std::int64_t backward_workspace_bytes(const BackwardOptions& options) const override {
    return backward_ ? backward_->workspace_bytes(options) : 0;
  }
  Result<void> backward(const DynamicMaskBackwardTensors& tensors, void* workspace, Stream stream,
                        const BackwardOptions& options) const override {
    return backward_->run(spec_, tensors, q_lens(), workspace, stream, options);
  }

  Result<void> run(const DynamicMaskTensors& tensors, void* workspace, std::uint32_t* status,
                   Stream stream, const DynamicMaskOptions& options) const override {
    FDMA_TRY_VOID(check_call(spec_, tensors, options.attention, Device::cuda));
    if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % kAlignment != 0) {
      return Error{ErrorCode::invalid_argument, "workspace: expected " +
                                                    std::to_string(layout_.bytes) +
                                                    " bytes of device memory at a multiple of 256"};
    }
    char* const base = static_cast<char*>(workspace);
    const auto runs = [&](DynamicMaskStage stage) {
      return options.first <= stage && stage <= options.last;
    };
    const TensorView scores = scores_of(tensors, base);
    auto* const kept = tensors.kept.data != nullptr
                           ? static_cast<Interval*>(tensors.kept.data)
                           : reinterpret_cast<Interval*>(base + layout_.kept);
    if (runs(DynamicMaskStage::scores)) FDMA_TRY_VOID(make_scores(tensors, base, stream));
    const bool is_selecting = reading_ != SelectionReading::all || tensors.kept.data != nullptr;
    if (runs(DynamicMaskStage::selection) && is_selecting) {
      FDMA_TRY_VOID(topk_.select(scores, kept, base + layout_.scratch, status, stream));
      if (spec_.drops_zero_scores) FDMA_TRY_VOID(drop_zero_fill(scores, kept, stream));
    }
    if (runs(DynamicMaskStage::lists) && reading_ == SelectionReading::gather) {
      FDMA_TRY_VOID(make_head_worklist(kept, base, status, stream));
    }
    if (!runs(DynamicMaskStage::attention)) return {};
    return attend(attention_tensors(spec_, tensors, scores), kept, base, stream, options.attention);
  }

 private:
  std::int64_t first_entries_bytes() const {
    return reading_ == SelectionReading::gather ? (num_rows_ * num_tiles_ + 1) * 8 : 0;
  }
  std::int64_t q_lens_bytes() const { return num_rows_ * 4; }

  void set_layout() {
    const auto take = [&](std::int64_t bytes) {
      const std::int64_t at = layout_.bytes;
      layout_.bytes += ceil_div(bytes, kAlignment) * kAlignment;
      return at;
    };
    const bool is_gather = reading_ == SelectionReading::gather;
    layout_.scores = take(num_rows_ * kv_len_ * 4);
    layout_.kept = take(num_rows_ * kv_len_ * static_cast<std::int64_t>(sizeof(Interval)));
    layout_.scratch = take(std::max(topk_.workspace_bytes(),
                                    is_gather ? lists_workspace_bytes(num_rows_, kv_len_) : 0));
    if (is_gather) {
      layout_.lists = take(num_rows_ * num_tiles_ *
                           static_cast<std::int64_t>(sizeof(gpu::KvIndexListOnDevice)));
      layout_.keys = take(num_entries_ * 4);
      layout_.rows = take(num_entries_ * static_cast<std::int64_t>(sizeof(RowRange)));
    }
    layout_.attention = take(sm90::forward_workspace_bytes(*plan_));
  }

  // Where the call writes the scores that it makes.
  MutableTensorView made_scores_of(const DynamicMaskTensors& tensors, char* base) const {
    if (tensors.made_scores.data != nullptr) return tensors.made_scores;
    return scores_view(spec_, base + layout_.scores, Device::cuda);
  }
  TensorView scores_of(const DynamicMaskTensors& tensors, char* base) const {
    if (tensors.scores.data != nullptr) return tensors.scores;
    return made_scores_of(tensors, base);
  }

  Result<void> make_scores(const DynamicMaskTensors& tensors, char* base, Stream stream) const {
    const TensorView& scores = tensors.scores;
    const MutableTensorView& wanted = tensors.made_scores;
    if (scores.data == nullptr) {
      return zoh_scores(values_of(spec_, tensors.kv.v), tensors.dt_proj, tensors.a_coef,
                        made_scores_of(tensors, base), zoh_mode_of(spec_.bias), stream);
    }
    if (wanted.data == nullptr) return {};
    for (std::int64_t b = 0; b < scores.extents[0]; ++b) {
      const auto bytes = [](std::int64_t elements) {
        return static_cast<std::size_t>(elements) * sizeof(float);
      };
      FDMA_TRY_VOID(gpu::check_cuda(
          cudaMemcpy2DAsync(
              static_cast<float*>(wanted.data) + b * wanted.strides[0], bytes(wanted.strides[1]),
              static_cast<const float*>(scores.data) + b * scores.strides[0],
              bytes(scores.strides[1]), bytes(scores.extents[2]),
              static_cast<std::size_t>(scores.extents[1]), cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpy2DAsync"));
    }
    return {};
  }

  Result<void> drop_zero_fill(const TensorView& scores, Interval* kept, Stream stream) const {
    const std::int64_t num_keys = num_rows_ * kv_len_;
    if (num_keys == 0) return {};
    const auto num_blocks = static_cast<unsigned>(ceil_div(num_keys, std::int64_t{kDropThreads}));
    drop_zero_scores<<<num_blocks, kDropThreads, 0, stream>>>(
        reinterpret_cast<int2*>(kept), static_cast<const float*>(scores.data), num_keys, kv_len_,
        spec_.shape.heads_kv, scores.strides[0], scores.strides[1]);
    return gpu::check_cuda(cudaGetLastError(), "launch of the kernel that drops keys");
  }

  const std::int64_t* first_entries() const {
    return static_cast<const std::int64_t*>(memory_.data());
  }
  const std::int32_t* q_lens() const {
    return reinterpret_cast<const std::int32_t*>(static_cast<const char*>(memory_.data()) +
                                                 first_entries_bytes());
  }

  Result<void> make_head_worklist(const Interval* kept, char* base, std::uint32_t* status,
                                  Stream stream) const {
    ListsCall call;
    call.kept = kept;
    call.num_rows = num_rows_;
    call.kv_len = kv_len_;
    call.first_entries = first_entries();
    call.q_lens = q_lens();
    call.num_tiles = num_tiles_;
    call.block_q = block_q_;
    call.batch_entries = batch_entries(most_entries_, block_q_);
    call.workspace = base + layout_.scratch;
    call.lists = reinterpret_cast<gpu::KvIndexListOnDevice*>(base + layout_.lists);
    call.keys = reinterpret_cast<std::int32_t*>(base + layout_.keys);
    call.rows = reinterpret_cast<RowRange*>(base + layout_.rows);
    call.status = status;
    call.counter = sm90::work_tile_counter(base + layout_.attention);
    return make_lists(call, stream);
  }

  Result<void> attend(const AttentionTensors& tensors, const Interval* kept, char* base,
                      Stream stream, const AttentionOptions& options) const {
    Launch launch{base + layout_.attention, stream};
    if (reading_ == SelectionReading::all) {
      return sm90::attention_forward(*plan_, tensors, launch, options);
    }
    gpu::KvIndexArrays made{};
    const bool is_gather = reading_ == SelectionReading::gather;
    if (is_gather) {
      made.lists = reinterpret_cast<const gpu::KvIndexListOnDevice*>(base + layout_.lists);
      made.keys = reinterpret_cast<const std::int32_t*>(base + layout_.keys);
      made.rows = reinterpret_cast<const uchar2*>(base + layout_.rows);
    } else {
      made.column_intervals = kept;
    }
    launch.is_kept = is_gather;  // the kernel that makes the lists has zeroed the counter
    return sm90::attention_forward_with_lists(*plan_, tensors, launch, options, made);
  }

  DynamicMaskSpec spec_;
  std::int64_t num_rows_, kv_len_;
  DeviceTopk topk_;
  std::unique_ptr<gpu::DevicePlan> plan_;
  DeviceMemory memory_;  // first_entries, q_lens
  std::optional<DeviceBackward> backward_;
  SelectionReading reading_;
  std::int32_t heads_per_tile_, block_q_, num_tiles_;
  std::int64_t most_entries_, num_entries_;
  Layout layout_;
};

// Uploads first_entries, followed by the q_len of each row.
Result<DeviceMemory> upload_lengths(const DynamicMaskSpec& spec, const SelectionPlan& selection,
                                    std::int64_t num_rows, Stream stream) {
  std::vector<std::int32_t> q_lens;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    q_lens.push_back(static_cast<std::int32_t>(spec.shape.q_len(row / spec.shape.heads_kv)));
  }
  const std::size_t entries_bytes = selection.first_entries.size() * sizeof(std::int64_t);
  const std::size_t lens_bytes = q_lens.size() * sizeof(std::int32_t);
  FDMA_TRY(DeviceMemory memory,
           DeviceMemory::allocate(static_cast<std::int64_t>(entries_bytes + lens_bytes)));
  char* const base = static_cast<char*>(memory.data());
  // The source is pageable memory, so it may be freed when each call returns.
  FDMA_TRY_VOID(gpu::check_cuda(cudaMemcpyAsync(base, selection.first_entries.data(), entries_bytes,
                                                cudaMemcpyHostToDevice, stream),
                                "cudaMemcpyAsync"));
  FDMA_TRY_VOID(gpu::check_cuda(cudaMemcpyAsync(base + entries_bytes, q_lens.data(), lens_bytes,
                                                cudaMemcpyHostToDevice, stream),
                                "cudaMemcpyAsync"));
  return Result<DeviceMemory>(std::move(memory));
}

Result<std::unique_ptr<DeviceCall>> make_device_call(const DynamicMaskSpec& spec,
                                                     const TopkRows& rows, Stream stream) {
  Result<DeviceTopk> topk = DeviceTopk::make(rows, spec.w, stream);
  if (!topk && topk.error().code == ErrorCode::unsupported) {
    return Error{ErrorCode::unsupported,
                 topk.error().message + "; or run dynamic_mask_attention with backend = cpu"};
  }
  if (!topk) return std::move(topk).error();
  FDMA_TRY(const SelectionPlan selection, plan_selection(spec, rows));
  FDMA_TRY(std::unique_ptr<gpu::DevicePlan> plan, gpu::upload(selection.plan, stream));
  FDMA_TRY(DeviceMemory memory, upload_lengths(spec, selection, rows.num_rows(), stream));
  std::optional<DeviceBackward> backward;
  if (spec.has_gradients) {
    FDMA_TRY(backward, DeviceBackward::make(spec, rows, selection.reading, stream));
  }
  return Result<std::unique_ptr<DeviceCall>>(
      std::make_unique<Sm90Call>(spec, rows, *std::move(topk), std::move(plan), std::move(memory),
                                 selection, std::move(backward)));
}

class Sm90DynamicMask final : public GpuDynamicMask {
 public:
  Result<std::unique_ptr<DeviceCall>> prepare(const DynamicMaskSpec& spec, const TopkRows& rows,
                                              Stream stream) const override {
    return make_device_call(spec, rows, stream);
  }
};

}  // namespace
}  // namespace fdma::dynamic_mask

namespace fdma {

const dynamic_mask::GpuDynamicMask& with_cuda::dynamic_mask() {
  static const dynamic_mask::Sm90DynamicMask dynamic_mask;
  return dynamic_mask;
}

}  // namespace fdma
