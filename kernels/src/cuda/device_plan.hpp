// A plan in the memory of a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/plan_arrays.hpp"
#include "fdma/base/result.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/kernels/prepared_plan.hpp"

namespace fdma::gpu {

/// An uploaded plan: its header, its arrays, and what launches need to know of it.
///
/// Owner       owns its device memory; the destructor waits for the kernels that use it
struct DevicePlan {
  AttentionShape shape;
  ScoreSpec score;
  Direction direction = Direction::forward;
  BlockShape tile;
  int device = 0;
  int num_multiprocessors = 0;
  void* memory = nullptr;
  std::int64_t size_bytes = 0;
  std::int32_t max_partials = 0;  ///< of a tile row
  std::int64_t num_partials = 0;
  PlanArrays arrays{};
  bool is_gathering = false;  ///< the plan's own segments include some of kind gather
  KvIndexArrays gather{};     ///< null where the lists are made on the device
  bool has_worklist = false;  ///< a backward plan over worklist keys, without work tiles
  bool is_ordered = false;    ///< uploaded for deterministic calls
  KvWorklistOnDevice worklist;
  KvPermutationsOnDevice orders;
  /// Backward: work tiles are grouped by KV head, and each KV head has some for each multiprocessor
  /// (ZeroFill).
  bool is_by_row = false;

  DevicePlan() = default;
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;
  ~DevicePlan();
};

/// Copies a plan to the current device, in the order of `stream`; kernels on other streams must wait
/// for it. Must not be called while a stream is captured. `plan` may be destroyed when the call
/// returns.
///
/// Errors      unsupported, out_of_memory, cuda
Result<std::unique_ptr<DevicePlan>> upload(const AttentionPlan& plan, Stream stream,
                                           const PrepareOptions& options = {});

}  // namespace fdma::gpu
