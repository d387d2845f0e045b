// Calibration: measures what attention costs on the CPU at hand and returns it as a device profile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "fdma/formats/result.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma {

struct CalibrateOptions {
  std::vector<std::int32_t> head_dims{64, 128};
  std::vector<DType> dtypes{DType::float32, DType::bfloat16};
  /// Tile shapes; the first is what estimates take unless asked otherwise.
  std::vector<BlockShape> tiles{{128, 128}, {64, 64}, {64, 128}, {128, 64}, {256, 128}};
  /// Threads, which become the workers of the profile; 0: all that the process may use.
  int num_threads = 0;
  /// A sixth of the time: fewer repetitions, and only the first two tile shapes.
  bool quick = false;
  /// If given, called before each combination of dtype, head size and tile, and at the end.
  std::function<void(int done, int total)> progress;
  /// If given and set meanwhile, calibrate fails with `io` ("interrupted").
  const std::atomic<bool>* is_cancelled = nullptr;
};

/// Runs attention over synthetic masks (full rows of several lengths; bitmaps, row intervals and
/// column intervals, dense and sparse) and fits the costs of the profile to the times, none
/// negative. The machine should be idle: of several runs of each mask the fastest counts.
///
/// Errors  invalid_argument for empty lists or values outside their range; io, out_of_memory
/// Cost    about 2 seconds for each combination of dtype, head size and tile shape
Result<DeviceProfile> calibrate(const CalibrateOptions& options = {});

}  // namespace fdma
