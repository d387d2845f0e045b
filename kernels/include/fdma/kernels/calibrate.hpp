// Calibration: measures what attention costs on the CPU or GPU at hand and returns it as a device
// profile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma {

/// What is measured, for the CPU unless changed; calibrate_options has those of a GPU.
struct CalibrateOptions {
  Backend backend = Backend::cpu;  ///< cpu, or sm90: the calling thread's current CUDA device
  /// Passes to measure.
  std::vector<Direction> directions{Direction::forward};
  std::vector<std::int32_t> head_dims{64, 128};
  std::vector<DType> dtypes{DType::float32, DType::bfloat16};
  /// Tile shapes; the first is what estimates take unless asked otherwise.
  std::vector<BlockShape> tiles{{128, 128}, {64, 64}, {64, 128}, {128, 64}, {256, 128}};
  /// Threads, which become the workers of the profile; 0: all that the process may use. Of cpu
  /// only: the workers of sm90 are the multiprocessors of the device.
  int num_threads = 0;
  /// A part of the time (cpu: a sixth): fewer repetitions, and only the first two tile shapes.
  bool quick = false;
  /// If given, called before each combination of direction, dtype, head size and tile, and at the
  /// end.
  std::function<void(int done, int total)> progress;
  /// If given and set meanwhile, calibrate fails with `io` ("interrupted").
  const std::atomic<bool>* is_cancelled = nullptr;
};

/// The defaults of a backend: those of CalibrateOptions; of sm90 bfloat16 (float16 runs as fast)
/// and its one tile shape.
CalibrateOptions calibrate_options(Backend backend);

/// Runs attention over synthetic masks (full rows of several lengths; bitmaps, row intervals and
/// column intervals, scanned and gathered) and fits the costs of the profile to the times, none
/// negative. The machine should be idle: of several runs of each mask the fastest counts on a CPU,
/// the median on a GPU.
///
/// Errors  invalid_argument for empty lists or values outside their range; unsupported for a
///         backend that is not there and what its kernels do not do; io (cancelled), out_of_memory,
///         cuda
/// Cost    about 2 seconds for each combination of direction, dtype, head size and tile shape; of
///         sm90 5 to 10 for each combination of direction, dtype and head size, and 1 GiB of device
///         memory, backward 2
Result<DeviceProfile> calibrate(const CalibrateOptions& options = {});

}  // namespace fdma
