// attention_backward by an uploaded plan, also over kv worklists that were made on the device.
#pragma once

#include <cstdint>

#include "cuda/device_plan.hpp"
#include "cuda/key_gradients.hpp"
#include "fdma/kernels/prepared_plan.hpp"
#include "sm90/backward/params.hpp"

namespace fdma::sm90 {

struct BackwardKernel;  // kernels.hpp

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

/// PreparedPlan::backward (fdma/kernels/prepared_plan.hpp) by `plan`.
Result<void> attention_backward(const DevicePlan& plan, const BackwardTensors& tensors,
                                const Launch& launch, const BackwardOptions& options);

/// The same over `worklist`. Only the header of the plan is read: shape, score, lengths.
///
/// Errors  those of attention_backward; unsupported: options.deterministic without positions
Result<void> attention_backward_with_worklist(const DevicePlan& plan,
                                              const BackwardTensors& tensors, const Launch& launch,
                                              const BackwardOptions& options,
                                              const BackwardWorklist& worklist);

/// The same by a main kernel of the caller's, with policies that no call chooses yet. It is for the
/// element type and backward_dim of the plan, which has no kv worklist.
Result<void> attention_backward_by(const BackwardKernel& kernel, const DevicePlan& plan,
                                   const BackwardTensors& tensors, const Launch& launch,
                                   const BackwardOptions& options);

/// Bytes of workspace that one launch needs.
std::int64_t backward_workspace_bytes(const DevicePlan& plan);

}  // namespace fdma::sm90
