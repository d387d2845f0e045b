// Calibration on the GPU, for each direction, dtype and head size:
//   1. Short calls. The overlap masks (masks.hpp) are run with so many heads that every
//      multiprocessor gets the same work. They take turns, round after round, and the median of device
//      events counts. Before each sample the card rests, so that it runs at full clocks. It then makes
//      one call that does not count while the host queues those that do. Backward calls get the
//      transposed masks, which the plan transposes again to rows. The time of the kernels around the
//      main one, by the bandwidth of memory (query_passes.hpp), is subtracted. Where the kernel
//      gathers, the gather masks join the same rounds. So do pairs of calls that differ in what a
//      plan adds to its work tiles (added_costs.hpp): split rows and moved keys; backward, calls
//      whose sums of dq are ordered or whose delta is corrected; and calls that have one part of a
//      score (score_parts.hpp).
//   2. Long calls. Full tiles, and index tiles, are run in sequences of calls without a pause, up to a
//      third of a second, to measure how far the power limit lowers the clock.
// The fits follow (sm90_fit.hpp, added_costs.hpp). Main memory is measured first, by a copy, and kv
// index lists made on the device last (sm90_lists.hpp).
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

#include "calibrate/added_costs.hpp"
#include "calibrate/inputs.hpp"
#include "calibrate/masks.hpp"
#include "calibrate/score_parts.hpp"
#include "calibrate/sm90_fit.hpp"
#include "calibrate/sm90_lists.hpp"
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

/// A plan on the device, and the times of its calls.
struct Workload {
  AttentionShape shape;
  std::shared_ptr<const PreparedPlan> plan;
  DeviceMemory workspace;
  BackwardOptions backward;
  AttentionOptions forward;
  std::vector<double> samples_us;
  double us = 0;  ///< of one call

  static Result<Workload> make(std::shared_ptr<const PreparedPlan> prepared,
                               const BackwardOptions& backward = {}) {
    FDMA_TRY(DeviceMemory workspace, DeviceMemory::allocate(prepared->workspace_bytes()));
    AttentionShape shape = prepared->shape();
    return Workload{std::move(shape), std::move(prepared), std::move(workspace), backward, {}, {}};
  }
};

/// A plan of whole rows of one head each. `mask` is the mask that the call gets.
Result<AttentionPlan> plain_plan(const BlockMask& mask, const AttentionShape& shape,
                                 ColumnMode columns, int num_workers, Direction direction,
                                 const ScoreSpec& score = {}) {
  PlanOptions options;
  options.direction = direction;
  options.backend = Backend::sm90;
  options.num_workers = num_workers;
  options.split = SplitMode::never;
  options.pack = PackMode::never;
  options.columns = columns;
  return make_plan(mask, shape, score, options);
}

/// Shares of the time of work tiles, as KernelCosts has them.
struct BackwardShares {
  double ordered = 0, corrected = 0;
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
    for (std::size_t i = 0; i < even_calls_.size(); ++i) {
      even_calls_[i].us = workloads_[i].us - query_pass_us(workloads_[i].shape);
    }
    const EvenCosts costs = fit_even_calls(even_calls_, kTile);
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
    if (direction_ == Direction::backward) {
      const BackwardShares shares = backward_shares(costs.launch_us);
      result.ordered_share = shares.ordered;
      result.correction_share = shares.corrected;
    } else {
      const AddedCosts added = fit_added(added_work(), costs.tile.item_us);
      result.tiles.front().split_us = added.split_us;
      result.combine_us = added.combine_us;
      result.combine_row_us = added.combine_row_us;
      result.move_us = added.move_us;
      result.moved_key_us = added.moved_key_us;
    }
    set_score_shares(costs, result);
    return result;
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
    for (OverlapMask& each : masks) {
      if (direction_ == Direction::backward) {
        FDMA_TRY(each.mask, transpose(each.mask));
      }
      const ColumnMode columns =
          each.kind == PlanSegmentKind::gather ? ColumnMode::gather : ColumnMode::scan;
      FDMA_TRY(AttentionPlan plan,
               plain_plan(each.mask, calibration_shape(each.mask, dtype, head_dim, heads), columns,
                          num_workers_, direction_));
      even_calls_.push_back(
          even_call(plan, std::get<SegmentPlan>(plan.form), num_workers_, each.is_all));
      FDMA_TRY_VOID(add_workload(std::move(plan)));
    }
    if (direction_ == Direction::backward) {
      FDMA_TRY_VOID(add_share_calls(dtype, head_dim, heads));
    } else {
      FDMA_TRY(added_plans_, added_plans(dtype, head_dim, num_workers_));
      for (const AddedPlan& each : added_plans_) FDMA_TRY_VOID(add_workload(each.plan));
    }
    first_part_ = workloads_.size();
    FDMA_TRY_VOID(add_part_calls(dtype, head_dim, heads));
    std::vector<AttentionShape> shapes;
    for (const Workload& workload : workloads_) shapes.push_back(workload.shape);
    FDMA_TRY(tensors_, CalibrationTensors::make(shapes, direction_, shapes.back()));
    return {};
  }

  Result<void> add_workload(AttentionPlan plan) {
    FDMA_TRY(std::shared_ptr<const PreparedPlan> prepared, prepare(std::move(plan)));
    FDMA_TRY(Workload workload, Workload::make(std::move(prepared)));
    workloads_.push_back(std::move(workload));
    return {};
  }

  /// Three calls for each mask: plain, with ordered sums of dq, with the corrected delta.
  Result<void> add_share_calls(DType dtype, std::int32_t head_dim, std::int32_t heads) {
    for (const BlockMask& mask : share_masks()) {
      FDMA_TRY(AttentionPlan plan, plain_plan(mask, calibration_shape(mask, dtype, head_dim, heads),
                                              ColumnMode::scan, num_workers_, direction_));
      FDMA_TRY(std::shared_ptr<const PreparedPlan> prepared,
               prepare(std::move(plan), nullptr, {.deterministic = true}));
      for (const bool is_ordered : {false, true}) {
        BackwardOptions options;
        options.deterministic = is_ordered;
        options.delta_source = DeltaSource::output;
        FDMA_TRY(Workload workload, Workload::make(prepared, options));
        workloads_.push_back(std::move(workload));
      }
      BackwardOptions options;
      options.delta_source = DeltaSource::corrected;
      FDMA_TRY(Workload workload, Workload::make(prepared, options));
      workloads_.push_back(std::move(workload));
    }
    return {};
  }

  /// A call of all pairs without a score, and one for each part.
  Result<void> add_part_calls(DType dtype, std::int32_t head_dim, std::int32_t heads) {
    parts_ = measured_parts(Backend::sm90.traits(), direction_, head_dim);
    parts_.insert(parts_.begin(), MeasuredPart{});
    const BlockMask mask = share_masks().front();
    for (const MeasuredPart& part : parts_) {
      FDMA_TRY(AttentionPlan plan,
               plain_plan(mask, calibration_shape(mask, dtype, head_dim, heads), ColumnMode::scan,
                          num_workers_, direction_, part.score));
      work_tiles_of_part_ = static_cast<double>(plan.num_work_tiles()) / num_workers_;
      FDMA_TRY_VOID(add_workload(std::move(plan)));
      BackwardOptions& options = workloads_.back().backward;
      options.delta_source = DeltaSource::output;
      set_numbers(part.score, options);
      set_numbers(part.score, workloads_.back().forward);
    }
    return {};
  }

  void set_score_shares(const EvenCosts& costs, KernelCosts& kernel) const {
    const Workload& plain = workloads_[first_part_];
    const double tiles_us = plain.us - costs.launch_us - query_pass_us(plain.shape) -
                            work_tiles_of_part_ * costs.tile.item_us;
    if (tiles_us <= 0) return;
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      const double added_us = workloads_[first_part_ + i].us - plain.us;
      kernel.*parts_[i].share = std::max(added_us, 0.0) / tiles_us;
    }
  }

  std::vector<AddedWork> added_work() const {
    std::vector<AddedWork> calls;
    const auto first = workloads_.begin() + static_cast<std::ptrdiff_t>(even_calls_.size());
    for (std::size_t i = 0; i < added_plans_.size(); ++i) {
      const AddedPlan& each = added_plans_[i];
      if (!each.added) continue;
      calls.push_back(*each.added);
      calls.back().us = first[static_cast<std::ptrdiff_t>(i)].us -
                        first[static_cast<std::ptrdiff_t>(each.plain)].us;
    }
    return calls;
  }

  /// The means over the masks.
  BackwardShares backward_shares(double launch_us) const {
    BackwardShares sum;
    double num_masks = 0;
    for (std::size_t i = even_calls_.size(); i + 2 < first_part_; i += 3) {
      const double plain_us = workloads_[i].us;
      const double work_tiles_us = plain_us - launch_us - query_pass_us(workloads_[i].shape);
      if (work_tiles_us <= 0) continue;
      sum.ordered += std::max(workloads_[i + 1].us - plain_us, 0.0) / work_tiles_us;
      sum.corrected += std::max(workloads_[i + 2].us - plain_us, 0.0) / work_tiles_us;
      num_masks += 1;
    }
    if (num_masks == 0) return {};
    return {sum.ordered / num_masks, sum.corrected / num_masks};
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
      return workload.plan->backward(
          tensors_->backward_views(workload.shape, workload.plan->score()),
          {workload.workspace.data()}, workload.backward);
    }
    return workload.plan->forward(tensors_->forward_views(workload.shape, workload.plan->score()),
                                  {workload.workspace.data()}, workload.forward);
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
        FDMA_TRY(workload.us, sample(workload, kMaxLaunches, {}, false));
        us += workload.us * kMaxLaunches;
      }
    }
    return {};
  }

  Result<void> time_short_calls() {
    const int rounds = options_.quick ? kQuickRounds : kRounds;
    for (int round = 0; round < rounds; ++round) {
      for (Workload& workload : workloads_) {
        const int launches = std::clamp(static_cast<int>(kSampleUs / workload.us), 1, kMaxLaunches);
        FDMA_TRY(const double us, sample(workload, launches, kRest * launches, true));
        workload.samples_us.push_back(us);
      }
    }
    for (Workload& workload : workloads_) workload.us = median(workload.samples_us);
    return {};
  }

  /// The workload of the even call with the largest `amount`.
  template <class Amount>
  const Workload& longest(Amount amount) const {
    const auto most = std::max_element(
        even_calls_.begin(), even_calls_.end(),
        [&](const EvenCall& a, const EvenCall& b) { return amount(a) < amount(b); });
    return workloads_[static_cast<std::size_t>(most - even_calls_.begin())];
  }

  Result<void> time_long_calls(const Workload& workload, std::vector<LongCall>& calls,
                               std::size_t kernel) {
    const double once_us = workload.us;
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
  std::vector<EvenCall> even_calls_;    // of the first workloads
  std::vector<AddedPlan> added_plans_;  // forward: of the workloads after these
  std::size_t first_part_ = 0;          // the workload of the first of these, which is no part
  std::vector<MeasuredPart> parts_;
  double work_tiles_of_part_ = 0;  // of a worker, in each of their calls
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
  profile.source = fmt::format("fdma-maskc calibrate, {} with {} multiprocessors{}", device_name,
                               num_workers, options.quick ? ", quick" : "");
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
  const bool has_forward =
      std::any_of(profile.kernels.begin(), profile.kernels.end(),
                  [](const KernelCosts& each) { return each.direction == Direction::forward; });
  if (has_forward) {
    FDMA_TRY(const ListCosts lists, time_lists(options, timer));
    for (KernelCosts& kernel : profile.kernels) {
      if (kernel.direction != Direction::forward) continue;
      kernel.list_launch_us = lists.list_launch_us;
      kernel.list_us = lists.list_us;
      kernel.list_entry_us = lists.list_entry_us;
    }
  }
  if (options.progress) options.progress(total, total);
  FDMA_TRY_VOID(validate(profile));
  return profile;
}

}  // namespace fdma
