// Calibration on the CPU, in three steps (on the GPU: sm90.hpp):
//   1. Time attention over the synthetic masks (masks.hpp) for each dtype, head size and
//      tile shape, with all threads busy. The masks take turns until the time is up. For each mask the
//      run with the least busy time counts, because other programs only ever add time. Busy time is
//      what the process used of its cores, or what it could have used if that is less (idle threads
//      that spin do not count).
//   2. Fit the costs, in which the work of a plan (work_tile_counts.hpp) is linear.
//   3. Measure launch and memory: a call of one work tile with one key, and a copy that fits no
//   cache; and calls of full tiles beside calls that also have one part of a score, or backward the
//   corrected delta.
#include "calibrate/cpu.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <iterator>
#include <limits>
#include <new>
#include <string_view>
#include <thread>

#include "calibrate/fit.hpp"
#include "calibrate/inputs.hpp"
#include "calibrate/masks.hpp"
#include "calibrate/score_parts.hpp"
#include "estimate/work_tile_counts.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "plan/full_mask.hpp"

namespace fdma {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMinRounds = 3;
constexpr double kSecondsEach = 2;
constexpr double kQuickSecondsEach = 0.8;
constexpr std::size_t kQuickTiles = 2;
/// The share of the measuring time of a tile shape that calls with the corrected delta and with parts
/// of a score get, and their lengths.
constexpr double kShareTime = 0.5;
constexpr std::int64_t kShareQueries = 512, kShareKeys = 1024;
/// Keys and values that exceed a core's own cache by this factor are L2 misses throughout.
constexpr double kL2MissOverHit = 16;
/// Query heads, and at least one for each thread, so that rows of one head are not neighbours in
/// memory, as in real use.
constexpr std::int32_t kMinHeads = 4;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Number of rows that the CPU kernel computes together with the instruction set that it takes
/// here: the 64 lanes of AVX-512, or 16 with anything narrower.
std::int32_t cpu_stripe_rows() {
  return std::string_view(cpu_target()).substr(0, 4) == "AVX3" ? 64 : 16;
}

/// Size of a core's second-level cache, or 1 MiB if the system does not report it.
std::int64_t near_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return std::int64_t{1} << 20;
}

/// CPU time of the whole process.
double cpu_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

/// The tensors of one call, which it owns.
class Tensors {
 public:
  Tensors(const AttentionShape& shape, const ScoreSpec& score) : score_(score) {
    views_.q = add(shape.q_dtype, shape.max_q_len(), shape.heads_q, shape.head_dim).view();
    views_.kv.k = add(shape.k_dtype, shape.max_kv_len(), shape.heads_kv, shape.head_dim).view();
    views_.kv.v = add(shape.v_dtype, shape.max_kv_len(), shape.heads_kv, shape.head_dim_v).view();
    views_.out = add(shape.out_dtype, shape.max_q_len(), shape.heads_q, shape.head_dim_v);
    if (score.bias) {
      part_.bias = add(shape.q_dtype, shape.max_q_len(), 1, shape.max_kv_len()).data;
    }
    const auto bytes = static_cast<std::size_t>(4 * part_numbers(shape));
    part_.numbers = buffers_.emplace_back(bytes).data();
    part_.gradient = buffers_.emplace_back(bytes).data();
    set_part(score, shape, part_, views_);
  }
  const AttentionTensors& views() const { return views_; }

  /// Views for a backward call. A forward call, made here, computes out and lse.
  Result<BackwardTensors> backward_views(const BlockMask& mask, const AttentionShape& shape) {
    const std::int64_t extents[] = {1, shape.heads_q, shape.max_q_len()};
    buffers_.emplace_back(static_cast<std::size_t>(4 * extents[1] * extents[2]));
    views_.lse = make_contiguous_mutable_view(buffers_.back().data(), DType::float32, 3, extents);
    FDMA_TRY(const AttentionPlan plan, make_plan(mask, shape, score_));
    AttentionOptions options;
    set_numbers(score_, options);
    FDMA_TRY_VOID(attention_forward(plan, views_, options));
    BackwardTensors views;
    set_part(score_, shape, part_, views);
    views.q = views_.q;
    views.kv = views_.kv;
    views.out = views_.out.view();
    views.lse = views_.lse.view();
    views.dout = add(shape.out_dtype, shape.max_q_len(), shape.heads_q, shape.head_dim_v).view();
    views.dq = add(shape.q_dtype, shape.max_q_len(), shape.heads_q, shape.head_dim);
    views.dk = add(shape.k_dtype, shape.max_kv_len(), shape.heads_kv, shape.head_dim);
    views.dv = add(shape.v_dtype, shape.max_kv_len(), shape.heads_kv, shape.head_dim_v);
    return views;
  }

 private:
  MutableTensorView add(DType dtype, std::int64_t length, std::int64_t heads, std::int64_t dim) {
    buffers_.emplace_back(static_cast<std::size_t>(length * heads * dim * size_bytes(dtype)));
    fill_normal(buffers_.back(), dtype);
    const std::int64_t extents[] = {1, length, heads, dim};
    return make_contiguous_mutable_view(buffers_.back().data(), dtype, 4, extents);
  }

  ScoreSpec score_;
  std::vector<std::vector<std::uint8_t>> buffers_;
  PartMemory part_;
  AttentionTensors views_;
};

/// A plan with its tensors and the best of its runs so far.
struct Workload {
  Workload(AttentionPlan its_plan, Tensors its_tensors, const BackwardTensors& its_backward)
      : plan(std::move(its_plan)), tensors(std::move(its_tensors)), backward(its_backward) {}

  AttentionPlan plan;
  Tensors tensors;
  BackwardTensors backward;  ///< for a backward plan
  DeltaSource delta_source = DeltaSource::output;
  double fastest_us = std::numeric_limits<double>::infinity();     ///< elapsed
  double least_busy_us = std::numeric_limits<double>::infinity();  ///< of all threads together

  Result<void> run(const AttentionOptions& options) {
    const double cpu_before_us = cpu_microseconds();
    const Clock::time_point start = Clock::now();
    FDMA_TRY_VOID(call(options));
    const double elapsed_us = microseconds_since(start);
    const double cpu_us = cpu_microseconds() - cpu_before_us;
    fastest_us = std::min(fastest_us, elapsed_us);
    least_busy_us = std::min({least_busy_us, cpu_us, elapsed_us * options.num_threads});
    return {};
  }

 private:
  Result<void> call(AttentionOptions options) {
    set_numbers(plan.score, options);
    if (!plan.is_backward()) return attention_forward(plan, tensors.views(), options);
    BackwardOptions backward_options;
    set_numbers(plan.score, backward_options);
    backward_options.delta_source = delta_source;
    backward_options.num_threads = options.num_threads;
    backward_options.is_cancelled = options.is_cancelled;
    return attention_backward(plan, backward, backward_options);
  }
};

Result<Workload> workload_of(const BlockMask& mask, ColumnMode columns, const AttentionShape& shape,
                             Direction direction, const ScoreSpec& score = {}) {
  PlanOptions options;
  options.direction = direction;
  options.tile = mask.block;
  options.columns = columns;
  FDMA_TRY(AttentionPlan plan, make_plan(mask, shape, score, options));
  Tensors tensors(shape, score);
  BackwardTensors backward;
  if (direction == Direction::backward) {
    FDMA_TRY(backward, tensors.backward_views(mask, shape));
  }
  return Workload(std::move(plan), std::move(tensors), backward);
}

/// Unknowns of the fit: the cells of each kind, the tiles of those kinds that can have few cells in
/// many tiles, and the work tiles. The number of full tiles and of index tiles follows from their
/// cells.
constexpr std::size_t kKinds = 5;
constexpr PlanSegmentKind kScanned[] = {PlanSegmentKind::bitmap, PlanSegmentKind::rows,
                                        PlanSegmentKind::columns};
constexpr std::size_t kWorkTileUnknown = kKinds + std::size(kScanned);
constexpr std::size_t kL2MissUnknown = kWorkTileUnknown + 1;

std::vector<double> amounts_of(const PlanHeader& header, const SegmentPlan& plan,
                               const DeviceProfile& profile) {
  const WorkCounter counter(header, plan, profile.stripe_rows, profile.skips_dead_keys);
  const ColumnDistance distance(header, profile.near_bytes, profile.far_bytes);
  PlanWork total;
  double l2_miss_columns = 0;
  for (const WorkTile& work_tile : plan.work_tiles) {
    const PlanWork work = counter.of(work_tile);
    const std::int64_t columns = columns_read(work, work_tile, header.mask_tile().block_kv);
    l2_miss_columns += distance.of(columns) * static_cast<double>(columns);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      total.steps[kind].tiles += work.steps[kind].tiles;
      total.steps[kind].cells += work.steps[kind].cells;
    }
  }
  const double tile_cells = static_cast<double>(header.tile.block_q) * header.tile.block_kv;
  std::vector<double> amounts;
  for (const StepWork& steps : total.steps) {
    amounts.push_back(static_cast<double>(steps.cells) / tile_cells);
  }
  for (const PlanSegmentKind kind : kScanned) {
    amounts.push_back(static_cast<double>(total.of(kind).tiles));
  }
  amounts.push_back(static_cast<double>(plan.work_tiles.size()));
  amounts.push_back(l2_miss_columns);
  return amounts;
}

TileCosts costs_from(const std::vector<double>& fitted, BlockShape tile) {
  TileCosts costs{tile,
                  {0, fitted[0]},
                  {fitted[kKinds], fitted[1]},
                  {fitted[kKinds + 1], fitted[2]},
                  {fitted[kKinds + 2], fitted[3]},
                  {0, fitted[4]},
                  fitted[kWorkTileUnknown],
                  fitted[kL2MissUnknown]};
  // Tiles can be so small that their masks are never stored in one of the forms. That form then
  // gets the costs of the form in which they are stored.
  const auto is_missing = [](const StepCosts& each) { return each.tile_us + each.compute_us <= 0; };
  if (is_missing(costs.bitmap)) costs.bitmap = costs.full;
  if (is_missing(costs.rows)) costs.rows = costs.bitmap;
  if (is_missing(costs.columns)) costs.columns = costs.bitmap;
  return costs;
}

class Calibration {
 public:
  Calibration(const CalibrateOptions& options, int num_threads)
      : options_(options), num_threads_(num_threads) {
    run_options_.num_threads = num_threads;
    run_options_.is_cancelled = options.is_cancelled;
    tiles_ = options.tiles;
    if (options.quick) tiles_.resize(std::min(tiles_.size(), kQuickTiles));
  }

  Result<DeviceProfile> run() {
    DeviceProfile profile;
    profile.name = "calibrated-cpu";
    profile.source =
        fmt::format("fdma-maskc calibrate, {} with {} thread{}{}", cpu_target(), num_threads_,
                    num_threads_ == 1 ? "" : "s", options_.quick ? ", quick" : "");
    profile.is_provisional = false;
    profile.num_workers = num_threads_;
    profile.near_bytes = static_cast<double>(near_cache_bytes());
    profile.far_bytes = kL2MissOverHit * profile.near_bytes;
    profile.stripe_rows = cpu_stripe_rows();
    profile.skips_dead_keys = true;
    num_kernels_ = options_.directions.size() * options_.dtypes.size() * options_.head_dims.size();
    for (const Direction direction : options_.directions) {
      for (const DType dtype : options_.dtypes) {
        for (const std::int32_t head_dim : options_.head_dims) {
          FDMA_TRY(KernelCosts kernel, time_kernel(profile, direction, dtype, head_dim));
          profile.kernels.push_back(std::move(kernel));
        }
      }
    }
    profile.memory_bytes_per_us = time_memory();
    report();
    FDMA_TRY_VOID(validate(profile));
    return profile;
  }

 private:
  void report() const {
    if (options_.progress) {
      options_.progress(num_done_, static_cast<int>(num_kernels_ * tiles_.size()));
    }
  }

  Result<KernelCosts> time_kernel(const DeviceProfile& profile, Direction direction, DType dtype,
                                  std::int32_t head_dim) {
    KernelCosts kernel{direction, dtype, head_dim, 0, {}};
    FDMA_TRY(kernel.launch_us, time_launch(direction, dtype, head_dim));
    for (const BlockShape tile : tiles_) {
      report();
      FDMA_TRY(const TileCosts costs, time_tile(profile, direction, dtype, head_dim, tile));
      kernel.tiles.push_back(costs);
      ++num_done_;
    }
    FDMA_TRY_VOID(time_shares(kernel));
    return kernel;
  }

  Result<double> time_launch(Direction direction, DType dtype, std::int32_t head_dim) {
    AttentionShape shape;
    shape.q_lens = {1};
    shape.kv_lens = {1};
    const BlockMask mask = full_mask(shape, {128, 128});
    FDMA_TRY(Workload workload,
             workload_of(mask, ColumnMode::scan, calibration_shape(mask, dtype, head_dim, 1),
                         direction));
    for (int i = 0; i < 50; ++i) FDMA_TRY_VOID(workload.run(run_options_));
    return workload.fastest_us;
  }

  /// Runs workloads in turns until `seconds` are over.
  Result<void> run_in_turns(std::vector<Workload>& workloads, double seconds) {
    const Clock::time_point start = Clock::now();
    for (int round = 0; round < kMinRounds || microseconds_since(start) < seconds * 1e6; ++round) {
      for (Workload& workload : workloads) {
        if (options_.is_cancelled != nullptr && *options_.is_cancelled)
          return calibration_interrupted();
        FDMA_TRY_VOID(workload.run(run_options_));
      }
    }
    return {};
  }

  /// Sets the shares of `kernel`: what parts of a score, and backward the correction pass, add to a
  /// call of full tiles.
  Result<void> time_shares(KernelCosts& kernel) {
    AttentionShape lengths;
    lengths.q_lens = {kShareQueries};
    lengths.kv_lens = {kShareKeys};
    const BlockMask mask = full_mask(lengths, tiles_.front());
    const AttentionShape shape =
        calibration_shape(mask, kernel.dtype, kernel.head_dim, std::max(kMinHeads, num_threads_));
    const bool is_backward = kernel.direction == Direction::backward;
    std::vector<MeasuredPart> parts =
        measured_parts(Backend::cpu.traits(), kernel.direction, kernel.head_dim);
    parts.insert(parts.begin(), MeasuredPart{});  // without any
    if (is_backward) parts.push_back({{}, &KernelCosts::correction_share});
    std::vector<Workload> workloads;
    for (const MeasuredPart& part : parts) {
      FDMA_TRY(Workload workload,
               workload_of(mask, ColumnMode::scan, shape, kernel.direction, part.score));
      if (part.share == &KernelCosts::correction_share) {
        workload.delta_source = DeltaSource::corrected;
      }
      workloads.push_back(std::move(workload));
    }
    FDMA_TRY_VOID(run_in_turns(workloads, kShareTime * seconds_each()));
    for (std::size_t i = 1; i < parts.size(); ++i) {
      kernel.*parts[i].share =
          std::max(workloads[i].least_busy_us / workloads.front().least_busy_us - 1, 0.0);
    }
    return {};
  }

  double seconds_each() const { return options_.quick ? kQuickSecondsEach : kSecondsEach; }

  Result<TileCosts> time_tile(const DeviceProfile& profile, Direction direction, DType dtype,
                              std::int32_t head_dim, BlockShape tile) {
    std::vector<Workload> workloads;
    for (const CalibrationMask& each : calibration_masks(tile)) {
      // Backward plans have no gather costs, so nothing is fitted for them.
      if (direction == Direction::backward && each.columns == ColumnMode::gather) continue;
      const AttentionShape shape =
          calibration_shape(each.mask, dtype, head_dim, std::max(kMinHeads, num_threads_));
      FDMA_TRY(Workload workload, workload_of(each.mask, each.columns, shape, direction));
      workloads.push_back(std::move(workload));
    }
    FDMA_TRY_VOID(run_in_turns(workloads, seconds_each()));
    std::vector<Measurement> measurements;
    for (const Workload& workload : workloads) {
      measurements.push_back(
          {amounts_of(workload.plan, std::get<SegmentPlan>(workload.plan.form), profile),
           workload.least_busy_us});
    }
    return costs_from(fit_not_negative(measurements), tile);
  }

  /// Bytes read and written per microsecond by copies of all threads.
  double time_memory() const {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    std::vector<char> from(kBytes, 1);
    std::vector<char> to(kBytes, 2);
    double fastest_us = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 5; ++i) {
      const Clock::time_point start = Clock::now();
      std::vector<std::thread> threads;
      const std::size_t share = kBytes / static_cast<std::size_t>(num_threads_);
      for (int t = 0; t < num_threads_; ++t) {
        threads.emplace_back([&, t] {
          const std::size_t at = static_cast<std::size_t>(t) * share;
          std::memcpy(to.data() + at, from.data() + at, share);
        });
      }
      for (std::thread& thread : threads) thread.join();
      fastest_us = std::min(fastest_us, microseconds_since(start));
    }
    return 2.0 * static_cast<double>(kBytes) / fastest_us;
  }

  const CalibrateOptions& options_;
  int num_threads_;
  AttentionOptions run_options_;
  std::vector<BlockShape> tiles_;
  std::size_t num_kernels_ = 0;
  int num_done_ = 0;  ///< tile shapes of all kernels
};

}  // namespace

Result<DeviceProfile> calibrate_cpu(const CalibrateOptions& options) {
  const int num_threads =
      options.num_threads != 0 ? options.num_threads : std::max(1, max_concurrency());
  return Calibration(options, num_threads).run();
}

}  // namespace fdma
