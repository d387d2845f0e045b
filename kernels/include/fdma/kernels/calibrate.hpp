// Calibration: measures the cost of attention on this machine's CPU or GPU and returns it as a
// device profile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma {

/// What is measured. The defaults are those of the CPU; calibrate_options has those of a GPU.
struct CalibrateOptions {
  Backend backend = Backend::cpu;  ///< cpu, or sm90: the calling thread's current CUDA device
  /// Passes to measure.
  std::vector<Direction> directions{Direction::forward};
  std::vector<std::int32_t> head_dims{64, 128};
  std::vector<DType> dtypes{DType::float32, DType::bfloat16};
  /// Tile shapes. Estimates take the first unless asked otherwise.
  std::vector<BlockShape> tiles{{128, 128}, {64, 64}, {64, 128}, {128, 64}, {256, 128}};
  /// CPU threads, which become the workers of the profile; 0: all that the process may use. sm90
  /// ignores it: its workers are the multiprocessors of the device.
  int num_threads = 0;
  /// Takes a part of the time (cpu: a sixth), with fewer repetitions and only the first two tiles.
  bool quick = false;
  /// If given, called before each combination of direction, dtype, head size and tile, and at the
  /// end.
  std::function<void(int done, int total)> progress;
  /// If given and set meanwhile, calibrate fails with `io` ("interrupted").
  const std::atomic<bool>* is_cancelled = nullptr;
};

/// The defaults of a backend. cpu: those of CalibrateOptions. sm90: bfloat16 (float16 runs as fast)
/// and its one tile shape.
CalibrateOptions calibrate_options(Backend backend);

/// Runs attention over synthetic masks and fits the costs of the profile to the times, none
/// negative. The masks are full rows of several lengths, bitmaps, row intervals, and column
/// intervals, scanned and gathered. The machine should be idle. Each mask runs several times; the
/// fastest time counts on a CPU, the median on a GPU.
///
/// Errors      invalid_argument: empty lists, values outside their range
///             unsupported: a backend that is not available, a request that its kernels do not
///             serve io: cancelled; out_of_memory; cuda
/// Cost        cpu: about 2 seconds for each combination of direction, dtype, head size and tile
///             sm90: 5 to 10 seconds for each combination of direction, dtype and head size; 1 GiB
///             of device memory, backward 2 GiB
Result<DeviceProfile> calibrate(const CalibrateOptions& options = {});

}  // namespace fdma
