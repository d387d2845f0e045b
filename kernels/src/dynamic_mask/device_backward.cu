// The launches of a backward call: kv worklists (five launches, or six with an accumulation order),
// attention (six, and one for the zero-fill counters; three for M), and gradients of scores.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "cuda/cuda_error.hpp"
#include "dynamic_mask/call_check.hpp"
#include "dynamic_mask/device_backward.hpp"
#include "dynamic_mask/selection_plan.hpp"
#include "fdma/kernels/zoh_backward_device.hpp"
#include "plan/full_mask.hpp"
#include "plan/sm90_tile.hpp"
#include "sm90/backward/attention_backward.hpp"
#include "sm90/backward/workspace.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr std::int64_t kAlignment = 256;

// The plan of M, or a plan of which only the header is read.
Result<AttentionPlan> plan_of(const DynamicMaskSpec& spec, const TopkRows& rows, bool is_all) {
  PlanOptions options;
  options.backend = Backend::sm90;
  options.direction = Direction::backward;
  options.columns = ColumnMode::scan;
  options.profile = spec.profile;
  const BlockShape tile{kSm90TileRows, kSm90TileKeys};
  const ScoreSpec score = score_of(spec.bias);
  if (is_all) {
    return make_plan(mask_of_rows(spec.shape, rows.masks, rows.mask_of, tile), spec.shape, score,
                     options);
  }
  FDMA_TRY(AttentionPlan plan, make_plan(full_mask(spec.shape, tile), spec.shape, score, options));
  plan.form = SegmentPlan();
  plan.counts = {};
  return Result<AttentionPlan>(std::move(plan));
}

// Workspace bytes of the gradients of scores, enough for either form of dt_proj.
std::int64_t zoh_bytes(const AttentionShape& shape) {
  ZohShape zoh;
  zoh.num_batches = shape.batch;
  zoh.kv_len = shape.max_kv_len();
  zoh.num_heads_kv = shape.heads_kv;
  zoh.head_dim = shape.head_dim_v;
  std::int64_t bytes = 0;
  for (const bool is_per_head : {true, false}) {
    zoh.is_per_head = is_per_head;
    bytes = std::max(bytes, zoh_backward_workspace_bytes(zoh));
  }
  return bytes;
}

bool has_short_rows(const AttentionShape& shape) {
  return std::any_of(shape.kv_lens.begin(), shape.kv_lens.end(),
                     [&](std::int64_t kv_len) { return kv_len < shape.max_kv_len(); });
}

// Whether the main kernel clears accumulators beside its work tiles (ZeroFill), for worklists
// without an order. Those of the next KV head are cleared in time if the work tiles of one head
// keep all multiprocessors busy.
bool has_zero_fill(const KvWorklistRoom& room) {
  const std::int64_t live_tiles = std::min(room.w, room.kv_len) / kWorklistTile;
  return !room.has_order && room.num_rows > 1 && room.num_segments() * live_tiles >= kSm90Workers;
}

// Zeroes all of dscores. Attention then writes the part below the lengths.
Result<void> zero_scores(const MutableTensorView& dscores, Stream stream) {
  const auto bytes = [](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(float);
  };
  for (std::int64_t b = 0; b < dscores.extents[0]; ++b) {
    float* const first = static_cast<float*>(dscores.data) + b * dscores.strides[0];
    FDMA_TRY_VOID(gpu::check_cuda(
        cudaMemset2DAsync(first, bytes(dscores.strides[1]), 0, bytes(dscores.extents[2]),
                          static_cast<std::size_t>(dscores.extents[1]), stream),
        "cudaMemset2DAsync"));
  }
  return {};
}

}  // namespace

Result<DeviceBackward> DeviceBackward::make(const DynamicMaskSpec& spec, const TopkRows& rows,
                                            SelectionReading reading, Stream stream) {
  const AttentionShape& shape = spec.shape;
  const bool is_all = reading == SelectionReading::all;
  FDMA_TRY(const AttentionPlan plan, plan_of(spec, rows, is_all));
  PrepareOptions options;
  options.deterministic = is_all;
  FDMA_TRY(std::unique_ptr<gpu::DevicePlan> uploaded, gpu::upload(plan, stream, options));
  std::optional<KvWorklistRoom> room;
  if (!is_all) {
    room = kv_worklist_room(rows.num_rows(), shape.max_q_len(), rows.kv_len, spec.w,
                            shape.group_size());
  }
  DeviceBackward made(std::move(uploaded), room);
  BackwardOptions ordinary, deterministic;
  deterministic.deterministic = true;
  made.layout_ = made.make_layout(spec, ordinary);
  made.deterministic_layout_ = made.make_layout(spec, deterministic);
  return Result<DeviceBackward>(std::move(made));
}

KvWorklistRoom DeviceBackward::room(const BackwardOptions& options) const {
  KvWorklistRoom room = *room_;
  room.has_order = options.deterministic;
  return room;
}

DeviceBackward::Layout DeviceBackward::make_layout(const DynamicMaskSpec& spec,
                                                   const BackwardOptions& options) const {
  const AttentionShape& shape = spec.shape;
  Layout layout;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t at = layout.bytes;
    layout.bytes += ceil_div(bytes, kAlignment) * kAlignment;
    return at;
  };
  layout.scores = take(shape.batch * shape.heads_kv * shape.max_kv_len() * 4);
  layout.zoh = take(zoh_bytes(shape));
  layout.attention = take(sm90::backward_workspace_bytes(*plan_));
  if (!room_) return layout;
  const KvWorklistRoom room = this->room(options);
  const std::int64_t sum_bytes = room.accum_capacity() * sm90::backward_dim(shape) * 4;
  layout.scratch = take(room.workspace_bytes());
  layout.keys = take(room.keys_capacity() * static_cast<std::int64_t>(sizeof(WorklistEntry)));
  layout.work_tiles =
      take(room.work_tiles_capacity() * static_cast<std::int64_t>(sizeof(KvWorkTile)));
  layout.num_work_tiles = take(4);
  layout.accum_keys = take(room.accum_capacity() * static_cast<std::int64_t>(sizeof(AccumKey)));
  layout.num_accum_rows = take(room.num_rows * 4);
  if (has_zero_fill(room)) {
    layout.zero_counters =
        take(room.num_rows * static_cast<std::int64_t>(sizeof(sm90::ZeroFillCounters)));
  }
  layout.dk_accum = take(sum_bytes);
  layout.dv_accum = take(sum_bytes);
  if (!room.has_order) return layout;
  layout.dbias_accum = take(room.accum_capacity() * 4);
  layout.first_positions = take(room.work_tiles_capacity() * 4);
  layout.positions = take(room.positions_capacity() * 4);
  return layout;
}

Result<void> DeviceBackward::run(const DynamicMaskSpec& spec,
                                 const DynamicMaskBackwardTensors& tensors,
                                 const std::int32_t* q_lens, void* workspace, Stream stream,
                                 const BackwardOptions& options) const {
  FDMA_TRY_VOID(check_backward(spec, tensors, options, Device::cuda));
  const Layout& places = layout(options);
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % kAlignment != 0) {
    return Error{ErrorCode::invalid_argument, "workspace: expected " +
                                                  std::to_string(places.bytes) +
                                                  " bytes of device memory at a multiple of 256"};
  }
  if (room_ && tensors.kept.data == nullptr) {
    return Error{ErrorCode::invalid_argument,
                 "kept: is missing; the forward call writes it where it is asked for"};
  }
  char* const base = static_cast<char*>(workspace);
  MutableTensorView dscores = tensors.dscores;
  if (dscores.data == nullptr) {
    dscores = scores_view(spec, base + places.scores, Device::cuda);
  }
  const bool has_bias = spec.bias != ScoreBias::none;
  const bool is_read = tensors.dt_proj.data != nullptr || tensors.dscores.data != nullptr;
  if (is_read && (!has_bias || has_short_rows(spec.shape))) {
    FDMA_TRY_VOID(zero_scores(dscores, stream));
  }
  const BackwardTensors attention = backward_tensors(spec, tensors, dscores);
  if (room_) {
    FDMA_TRY_VOID(attend_to_worklist(attention, static_cast<const Interval*>(tensors.kept.data),
                                     q_lens, base, stream, options));
  } else {
    FDMA_TRY_VOID(
        sm90::attention_backward(*plan_, attention, {base + places.attention, stream}, options));
  }
  if (tensors.dt_proj.data == nullptr) return {};
  return zoh_scores_backward(zoh_tensors(spec, tensors, dscores), zoh_mode_of(spec.bias),
                             base + places.zoh, stream);
}

Result<void> DeviceBackward::attend_to_worklist(const BackwardTensors& tensors,
                                                const Interval* kept, const std::int32_t* q_lens,
                                                char* base, Stream stream,
                                                const BackwardOptions& options) const {
  const Layout& places = layout(options);
  KvWorklistCall call;
  call.room = room(options);
  call.kept = kept;
  call.q_lens = q_lens;
  call.heads_kv = plan_->shape.heads_kv;
  call.workspace = base + places.scratch;
  call.keys = reinterpret_cast<WorklistEntry*>(base + places.keys);
  call.work_tiles = reinterpret_cast<KvWorkTile*>(base + places.work_tiles);
  call.num_work_tiles = reinterpret_cast<std::int32_t*>(base + places.num_work_tiles);
  call.accum_keys = reinterpret_cast<AccumKey*>(base + places.accum_keys);
  call.num_accum_rows = reinterpret_cast<std::int32_t*>(base + places.num_accum_rows);
  sm90::BackwardWorklist worklist{};
  worklist.keys = call.keys;
  worklist.work_tiles = call.work_tiles;
  worklist.num_work_tiles = call.num_work_tiles;
  worklist.max_work_tiles = call.room.work_tiles_capacity();
  worklist.sums.keys = call.accum_keys;
  worklist.sums.dk = reinterpret_cast<float*>(base + places.dk_accum);
  worklist.sums.dv = reinterpret_cast<float*>(base + places.dv_accum);
  worklist.sums.rows_of_group = call.room.sum_rows();
  worklist.sums.num_rows = call.num_accum_rows;
  worklist.sums.num_groups = static_cast<std::int32_t>(call.room.num_rows);
  worklist.seen = kept;
  if (options.deterministic) {
    call.first_positions = reinterpret_cast<std::int32_t*>(base + places.first_positions);
    call.positions = reinterpret_cast<std::int32_t*>(base + places.positions);
    worklist.sums.dbias = reinterpret_cast<float*>(base + places.dbias_accum);
    worklist.first_positions = call.first_positions;
    worklist.positions = call.positions;
  }
  if (has_zero_fill(call.room)) {
    worklist.zero_counters = reinterpret_cast<sm90::ZeroFillCounters*>(base + places.zero_counters);
  }
  FDMA_TRY_VOID(make_kv_worklist_on_device(call, stream));
  BackwardOptions chosen = options;
  if (chosen.delta_source == fdma::DeltaSource::automatic)
    chosen.delta_source = fdma::DeltaSource::output;
  return sm90::attention_backward_with_worklist(*plan_, tensors, {base + places.attention, stream},
                                                chosen, worklist);
}

}  // namespace fdma::dynamic_mask
