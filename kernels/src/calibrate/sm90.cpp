// Calibration on the GPU, for each direction, dtype and head size:
//   1. Short calls. The overlap masks (masks.hpp) are run with so many heads that every
//      multiprocessor gets the same work. They take turns, round after round, and the median of device
//      events counts. Before each sample the card rests, so that it runs at full clocks. It then makes
//      one call that does not count while the host queues those that do. Backward calls get the
//      transposed masks, which the plan transposes again to rows. The time of the kernels around the
//      main one, by the bandwidth of memory (query_passes.hpp), is subtracted. Where the kernel
//      gathers, the gather masks join the same rounds.
//   2. Long calls. Full tiles, and index tiles, are run in sequences of calls without a pause, up to a
//      third of a second, to measure how far the power limit lowers the clock.
// The fits follow (sm90_fit.hpp). Main memory is measured first, by a copy.
#include "calibrate/sm90.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "calibrate/inputs.hpp"
#include "calibrate/masks.hpp"
#include "calibrate/sm90_fit.hpp"
#include "calibrate/sm90_tensors.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/prepared_plan.hpp"
#include "plan/query_passes.hpp"

namespace fdma {
namespace {

constexpr BlockShape kTile{128, 128};
constexpr int kRounds = 25;
constexpr int kQuickRounds = 7;
/// Short calls run several times between two events, for about this time.
constexpr double kSampleUs = 300;
constexpr int kMaxLaunches = 8;
/// Rest of the card for each launch of a sample.
constexpr std::chrono::milliseconds kRest{1};
/// Rest after long calls, until the card is cool and fast again.
constexpr std::chrono::milliseconds kLongRest{300};
constexpr double kWarmUpUs = 2e5;
/// Durations of long calls in microseconds; each kind runs several times within kLongCallsUs.
constexpr double kLongUs[] = {1e3, 3e3, 1e4, 3e4, 1e5, 3e5};
constexpr double kQuickLongUs[] = {1e4, 1e5};
constexpr double kLongCallsUs = 3.5e5;
constexpr int kLongSamples[] = {3, 15};
constexpr std::int64_t kCopyBytes = std::int64_t{256} << 20;
constexpr int kCopies = 9;

/// How many tiles ahead work tiles are taken. In sm90/forward/load.cuh a work tile is taken when
/// the last tile but one of the work tile before is about to be loaded, into the stage of a tile
/// whose scores were just computed. In sm90/backward/load.cuh it is taken when the last tile but
/// two is about to be loaded. Then two steps of 64 queries (of 128 up to head size 64; one step
/// above head size 128) are loaded and not computed yet.
double tiles_ahead(Direction direction, std::int32_t head_dim) {
  if (direction == Direction::backward) {
    return 2.5 + (head_dim <= 64 ? 2 : head_dim <= 128 ? 1 : 0.5);
  }
  const double stages = head_dim <= 64 ? 4 : head_dim <= 128 ? 2 : 1;
  return stages + 1.5;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A mask's plan on the device, and the times of its calls.
struct Workload {
  EvenCall call;
  AttentionShape shape;
  std::unique_ptr<PreparedPlan> plan;
  DeviceMemory workspace;
  std::vector<double> samples_us;

  /// `mask` is the mask that the call gets.
  static Result<Workload> make(const BlockMask& mask, const AttentionShape& shape, bool is_all,
                               ColumnMode columns, int num_workers, Direction direction) {
    PlanOptions options;
    options.direction = direction;
    options.backend = Backend::sm90;
    options.num_workers = num_workers;
    options.split = SplitMode::never;
    options.pack = PackMode::never;
    options.columns = columns;
    FDMA_TRY(AttentionPlan plan, make_plan(mask, shape, {}, options));
    EvenCall call = even_call(plan, std::get<SegmentPlan>(plan.form), num_workers, is_all);
    FDMA_TRY(std::unique_ptr<PreparedPlan> prepared, prepare(std::move(plan)));
    FDMA_TRY(DeviceMemory workspace, DeviceMemory::allocate(prepared->workspace_bytes()));
    return Workload{call, shape, std::move(prepared), std::move(workspace), {}};
  }
};

/// LongCall::kernel of a kernel's full tiles and of its index tiles.
std::size_t tiles_of(std::size_t kernel) { return 2 * kernel; }
std::size_t chunks_of(std::size_t kernel) { return 2 * kernel + 1; }

/// Calibrates the kernels of one direction, dtype and head size.
class KernelCalibration {
 public:
  KernelCalibration(const CalibrateOptions& options, Direction direction, int num_workers,
                    double memory_bytes_per_us, StreamTimer& timer)
      : options_(options),
        direction_(direction),
        num_workers_(num_workers),
        memory_bytes_per_us_(memory_bytes_per_us),
        timer_(timer) {}

  Result<KernelCosts> run(DType dtype, std::int32_t head_dim, std::vector<LongCall>& long_calls,
                          std::size_t kernel) {
    FDMA_TRY_VOID(make_workloads(dtype, head_dim));
    FDMA_TRY_VOID(warm_up());
    FDMA_TRY_VOID(time_short_calls());
    std::vector<EvenCall> calls;
    for (const Workload& workload : workloads_) {
      calls.push_back(workload.call);
      calls.back().us -= query_pass_us(workload.shape);
    }
    const EvenCosts costs = fit_even_calls(calls, kTile);
    FDMA_TRY_VOID(time_long_calls(
        longest([](const EvenCall& call) { return call.of(PlanSegmentKind::full); }), long_calls,
        tiles_of(kernel)));
    if (costs.tile.can_gather()) {
      FDMA_TRY_VOID(time_long_calls(longest([](const EvenCall& call) { return call.index_tiles; }),
                                    long_calls, chunks_of(kernel)));
    }
    std::this_thread::sleep_for(kLongRest);
    KernelCosts result{direction_, dtype, head_dim, costs.launch_us, {costs.tile}};
    result.overlaps_masks = true;
    result.ahead_us = tiles_ahead(direction_, head_dim) * costs.tile.full.compute_us;
    return assumed_costs(std::move(result), Backend::sm90);
  }

 private:
  Result<void> make_workloads(DType dtype, std::int32_t head_dim) {
    const std::int32_t heads =
        num_workers_ / std::gcd(num_workers_, static_cast<int>(kOverlapTileRows));
    std::vector<OverlapMask> masks = overlap_masks();
    if (direction_ == Direction::forward &&
        head_dim <= Backend::sm90.traits().max_gather_head_dim) {
      for (OverlapMask& each : gather_masks()) masks.push_back(std::move(each));
    }
    std::vector<AttentionShape> shapes;
    for (OverlapMask& each : masks) {
      if (direction_ == Direction::backward) {
        FDMA_TRY(each.mask, transpose(each.mask));
      }
      shapes.push_back(calibration_shape(each.mask, dtype, head_dim, heads));
    }
    FDMA_TRY(tensors_, CalibrationTensors::make(shapes, direction_));
    for (std::size_t i = 0; i < masks.size(); ++i) {
      const ColumnMode columns =
          masks[i].kind == PlanSegmentKind::gather ? ColumnMode::gather : ColumnMode::scan;
      FDMA_TRY(Workload workload, Workload::make(masks[i].mask, shapes[i], masks[i].is_all, columns,
                                                 num_workers_, direction_));
      workloads_.push_back(std::move(workload));
    }
    return {};
  }

  Result<void> check_cancelled() const {
    const bool is_cancelled = options_.is_cancelled != nullptr && *options_.is_cancelled;
    return is_cancelled ? Result<void>(calibration_interrupted()) : Result<void>();
  }

  double query_pass_us(const AttentionShape& shape) const {
    if (direction_ == Direction::forward) return 0;
    return static_cast<double>(query_pass_bytes(shape)) / memory_bytes_per_us_;
  }

  Result<void> launch(const Workload& workload) const {
    if (direction_ == Direction::backward) {
      return workload.plan->backward(tensors_->backward_views(workload.shape),
                                     {workload.workspace.data()});
    }
    return workload.plan->forward(tensors_->forward_views(workload.shape),
                                  {workload.workspace.data()});
  }

  /// Microseconds of one call: the mean of `launches` calls without a pause, after `rest`.
  Result<double> sample(const Workload& workload, int launches, std::chrono::milliseconds rest,
                        bool is_queued) {
    FDMA_TRY_VOID(check_cancelled());
    std::this_thread::sleep_for(rest);
    if (is_queued) FDMA_TRY_VOID(launch(workload));
    FDMA_TRY_VOID(timer_.start());
    for (int i = 0; i < launches; ++i) FDMA_TRY_VOID(launch(workload));
    FDMA_TRY_VOID(timer_.stop());
    FDMA_TRY(const double seconds, timer_.seconds());
    return seconds * 1e6 / launches;
  }

  Result<void> warm_up() {
    double us = 0;
    while (us < kWarmUpUs) {
      for (Workload& workload : workloads_) {
        FDMA_TRY(workload.call.us, sample(workload, kMaxLaunches, {}, false));
        us += workload.call.us * kMaxLaunches;
      }
    }
    return {};
  }

  Result<void> time_short_calls() {
    const int rounds = options_.quick ? kQuickRounds : kRounds;
    for (int round = 0; round < rounds; ++round) {
      for (Workload& workload : workloads_) {
        const int launches =
            std::clamp(static_cast<int>(kSampleUs / workload.call.us), 1, kMaxLaunches);
        FDMA_TRY(const double us, sample(workload, launches, kRest * launches, true));
        workload.samples_us.push_back(us);
      }
    }
    for (Workload& workload : workloads_) workload.call.us = median(workload.samples_us);
    return {};
  }

  /// The workload with the largest `amount`.
  template <class Amount>
  const Workload& longest(Amount amount) const {
    return *std::max_element(
        workloads_.begin(), workloads_.end(),
        [&](const Workload& a, const Workload& b) { return amount(a.call) < amount(b.call); });
  }

  Result<void> time_long_calls(const Workload& workload, std::vector<LongCall>& calls,
                               std::size_t kernel) {
    const double once_us = workload.call.us;
    std::vector<double> lengths_us(std::begin(kLongUs), std::end(kLongUs));
    if (options_.quick) lengths_us.assign(std::begin(kQuickLongUs), std::end(kQuickLongUs));
    for (const double length_us : lengths_us) {
      std::this_thread::sleep_for(kLongRest);
      const int launches = std::max(1, static_cast<int>(length_us / once_us));
      std::vector<double> samples_us;
      double spent_us = 0;
      const auto is_enough = [&] {
        const auto count = static_cast<int>(samples_us.size());
        return count >= kLongSamples[1] || (count >= kLongSamples[0] && spent_us > kLongCallsUs);
      };
      while (!is_enough()) {
        FDMA_TRY(const double us, sample(workload, launches, kRest, false));
        samples_us.push_back(us);
        spent_us += us * launches;
      }
      const double us = median(samples_us);
      calls.push_back({kernel, once_us * launches, us / once_us - 1});
    }
    return {};
  }

  const CalibrateOptions& options_;
  Direction direction_;
  int num_workers_;
  double memory_bytes_per_us_;
  StreamTimer& timer_;
  std::optional<CalibrationTensors> tensors_;
  std::vector<Workload> workloads_;
};

/// Bytes read and written per microsecond by a copy.
Result<double> time_memory(StreamTimer& timer) {
  FDMA_TRY(DeviceMemory from, DeviceMemory::allocate(kCopyBytes));
  FDMA_TRY(DeviceMemory to, DeviceMemory::allocate(kCopyBytes));
  std::vector<double> samples_us;
  for (int i = 0; i < kCopies; ++i) {
    FDMA_TRY_VOID(copy_on_device(to.data(), from.data(), kCopyBytes));  // keeps the host ahead
    FDMA_TRY_VOID(timer.start());
    FDMA_TRY_VOID(copy_on_device(to.data(), from.data(), kCopyBytes));
    FDMA_TRY_VOID(timer.stop());
    FDMA_TRY(const double seconds, timer.seconds());
    samples_us.push_back(seconds * 1e6);
  }
  return 2.0 * static_cast<double>(kCopyBytes) / median(samples_us);
}

}  // namespace

Result<DeviceProfile> calibrate_sm90(const CalibrateOptions& options) {
  for (const BlockShape tile : options.tiles) {
    if (tile == kTile) continue;
    return Error{ErrorCode::unsupported, fmt::format("tiles: sm90 computes 128x128, got {}x{}",
                                                     tile.block_q, tile.block_kv)};
  }
  FDMA_TRY(const std::string device_name, current_device_name());
  FDMA_TRY(const int num_workers, current_device_multiprocessors());
  FDMA_TRY(StreamTimer timer, StreamTimer::make());
  DeviceProfile profile;
  profile.name = "calibrated-sm90";
  profile.source = fmt::format(
      "fdma-maskc calibrate, {} with {} multiprocessors{}; what plans add to their work tiles is "
      "carried over",
      device_name, num_workers, options.quick ? ", quick" : "");
  profile.is_provisional = false;
  profile.backend = Backend::sm90;
  profile.num_workers = num_workers;
  profile.stripe_rows = kTile.block_q;
  FDMA_TRY(profile.memory_bytes_per_us, time_memory(timer));
  std::vector<LongCall> long_calls;
  const int total = static_cast<int>(options.directions.size() * options.dtypes.size() *
                                     options.head_dims.size());
  for (const Direction direction : options.directions) {
    for (const DType dtype : options.dtypes) {
      for (const std::int32_t head_dim : options.head_dims) {
        const auto done = static_cast<int>(profile.kernels.size());
        if (options.progress) options.progress(done, total);
        KernelCalibration calibration(options, direction, num_workers, profile.memory_bytes_per_us,
                                      timer);
        FDMA_TRY(KernelCosts kernel,
                 calibration.run(dtype, head_dim, long_calls, profile.kernels.size()));
        profile.kernels.push_back(std::move(kernel));
      }
    }
  }
  const Slowdown slowdown = fit_slowdown(long_calls, 2 * profile.kernels.size());
  profile.burst_us = slowdown.burst_us;
  profile.sustained_us = slowdown.sustained_us;
  for (std::size_t i = 0; i < profile.kernels.size(); ++i) {
    profile.kernels[i].sustained_slowdown = slowdown.shares[tiles_of(i)];
    profile.kernels[i].gather_slowdown = slowdown.shares[chunks_of(i)];
  }
  if (options.progress) options.progress(total, total);
  FDMA_TRY_VOID(validate(profile));
  return profile;
}

}  // namespace fdma
