// attention_backward for callers inside the library that make kv worklists on the device.
#pragma once

#include <cstdint>

#include "fdma/kernels/device_plan.hpp"
#include "sm90/backward/key_gradients.hpp"

namespace fdma::sm90 {

/// Lists of a launch over worklist keys (plan/kv_worklist.hpp) in device memory, written before it
/// runs.
struct BackwardWorklist {
  const WorklistEntry* keys;
  const KvWorkTile* work_tiles;        ///< in the order in which blocks take them
  const std::int32_t* num_work_tiles;  ///< one word
  std::int64_t max_work_tiles;         ///< an upper bound of *num_work_tiles
  /// dim_qk and dim_v are backward_dim of the shape; memory of the call
  KvAccum sums;
  /// For deterministic calls (KvWorklistArrays), or null. The sums then have rows of dbias, and no
  /// row has more than two entries.
  const std::int32_t* first_positions;
  const std::int32_t* positions;
  /// KeyGradientParams::seen, with the longest kv_len of the shape.
  const Interval* seen;
  /// Memory for a counter for each group of sums, which is a KV head, or null. With it the main
  /// kernel of an ordinary call may clear the accumulators itself (ZeroFill).
  ZeroFillCounters* zero_counters;
};

/// Runs attention_backward (fdma/kernels/device_plan.hpp) over `lists`. Only the header of the
/// backward plan is read: shape, score, lengths.
///
/// Errors  those of attention_backward; unsupported: options.deterministic without ranks
Result<void> attention_backward_with_worklist(const DevicePlan& plan,
                                              const BackwardTensors& tensors, void* workspace,
                                              Stream stream, const BackwardOptions& options,
                                              const BackwardWorklist& worklist);

}  // namespace fdma::sm90
