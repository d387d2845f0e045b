// Scores are random. Their selection leaves the kept keys in the workspace; then only the lists are
// made, several times.
#include "calibrate/sm90_lists.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "calibrate/inputs.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma {
namespace {

constexpr int kRounds = 25;
constexpr int kQuickRounds = 7;
constexpr int kLaunches = 8;
constexpr std::chrono::milliseconds kRest{8};
constexpr std::int32_t kHeadDim = 64;

struct Selection {
  std::int64_t tokens, w;
  std::int32_t heads;
};
constexpr Selection kSelections[] = {
    {4096, 128, 8}, {16384, 64, 32}, {32768, 64, 32}, {16384, 1024, 8}, {32768, 2048, 32}};

/// Device memory of one tensor, filled with normal values.
Result<MutableTensorView> add(std::vector<DeviceMemory>& memories, DType dtype,
                              const std::vector<std::int64_t>& extents) {
  std::int64_t bytes = size_bytes(dtype);
  for (const std::int64_t each : extents) bytes *= each;
  std::vector<std::uint8_t> values(static_cast<std::size_t>(bytes));
  fill_normal(values, dtype);
  FDMA_TRY(DeviceMemory memory, DeviceMemory::allocate(bytes));
  FDMA_TRY_VOID(copy_to_device(memory.data(), values.data(), bytes));
  MutableTensorView view = make_contiguous_mutable_view(
      memory.data(), dtype, static_cast<int>(extents.size()), extents.data());
  view.device = Device::cuda;
  memories.push_back(std::move(memory));
  return view;
}

Result<double> median_us(const Selection& selection, const CalibrateOptions& options,
                         StreamTimer& timer) {
  DynamicMaskSpec spec;
  spec.shape.heads_q = spec.shape.heads_kv = selection.heads;
  spec.shape.q_lens = spec.shape.kv_lens = {selection.tokens};
  spec.shape.head_dim = spec.shape.head_dim_v = kHeadDim;
  spec.shape.q_dtype = spec.shape.k_dtype = spec.shape.v_dtype = spec.shape.out_dtype =
      DType::bfloat16;
  spec.w = selection.w;
  spec.backend = Backend::sm90;
  spec.reading = SelectionReading::gather;
  FDMA_TRY(const DynamicMaskAttention attention, DynamicMaskAttention::make(spec));
  std::vector<DeviceMemory> memories;
  const std::vector<std::int64_t> rows{1, selection.tokens, selection.heads, kHeadDim};
  DynamicMaskTensors tensors;
  FDMA_TRY(const MutableTensorView q, add(memories, DType::bfloat16, rows));
  tensors.q = q.view();
  tensors.kv.k = tensors.kv.v = q.view();  // the lists read no keys
  FDMA_TRY(tensors.out, add(memories, DType::bfloat16, rows));
  FDMA_TRY(const MutableTensorView scores,
           add(memories, DType::float32, {1, selection.heads, selection.tokens}));
  tensors.scores = scores.view();
  FDMA_TRY(const DeviceMemory workspace, DeviceMemory::allocate(attention.workspace_bytes()));
  DynamicMaskOptions stages;
  stages.last = DynamicMaskStage::lists;
  const DynamicMaskOptions selection_too = stages;
  stages.first = DynamicMaskStage::lists;
  const auto launch = [&](const DynamicMaskOptions& which) {
    return attention.run(tensors, workspace.data(), nullptr, nullptr, which);
  };
  std::vector<double> samples_us;
  const int rounds = options.quick ? kQuickRounds : kRounds;
  for (int round = 0; round < rounds; ++round) {
    if (options.is_cancelled != nullptr && *options.is_cancelled) return calibration_interrupted();
    std::this_thread::sleep_for(kRest);
    // Selections keep the device busy while the host queues what counts.
    for (int i = 0; i < kLaunches; ++i) FDMA_TRY_VOID(launch(selection_too));
    FDMA_TRY_VOID(timer.start());
    for (int i = 0; i < kLaunches; ++i) FDMA_TRY_VOID(launch(stages));
    FDMA_TRY_VOID(timer.stop());
    FDMA_TRY(const double seconds, timer.seconds());
    samples_us.push_back(seconds * 1e6 / kLaunches);
  }
  const auto middle = samples_us.begin() + static_cast<std::ptrdiff_t>(samples_us.size() / 2);
  std::nth_element(samples_us.begin(), middle, samples_us.end());
  return *middle;
}

}  // namespace

Result<ListCosts> time_lists(const CalibrateOptions& options, StreamTimer& timer) {
  std::vector<ListsWork> calls;
  for (const Selection& each : kSelections) {
    ListsWork work = causal_lists(each.tokens, each.w, each.heads);
    FDMA_TRY(work.us, median_us(each, options, timer));
    calls.push_back(work);
  }
  return fit_lists(calls);
}

}  // namespace fdma
