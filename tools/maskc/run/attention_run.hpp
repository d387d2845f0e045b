// Calls of attention_forward and attention_backward for the verbs: timed, and on the CPU with a
// progress bar.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/json_output.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/prepared_plan.hpp"
#include "run/attention_input.hpp"

namespace fdma::maskc {

/// Copies `tensor` to the current GPU and makes `view` a view of the copy. Failure: unsupported
/// (memory).
Outcome<DeviceMemory> copied_to_gpu(const OwnedTensor& tensor, TensorView& view);
Outcome<DeviceMemory> copied_to_gpu(const OwnedTensor& tensor, MutableTensorView& view);

/// The tensors of a problem in the memory of the backend: the host's tensors themselves, or copies
/// on the current GPU.
class PlacedTensors {
 public:
  /// Borrows `memory`. Failures: unsupported (no such device, memory).
  static Outcome<PlacedTensors> make(Backend backend, const AttentionProblem& problem,
                                     AttentionMemory& memory);

  bool is_on_host() const { return copies_.empty(); }
  const AttentionTensors& on_host() const { return on_host_; }
  /// The tensors that attention_forward takes.
  const AttentionTensors& in_place() const { return in_place_; }
  /// Copies out and lse to the host's memory, unless they are there.
  Status fetch_results() const;

 private:
  AttentionTensors on_host_, in_place_;
  AttentionMemory* memory_ = nullptr;
  std::vector<DeviceMemory> copies_;
};

/// A prepared plan with what its launches need: on a GPU a workspace and a timer.
class TimedPlan {
 public:
  /// Failures: those of prepare.
  static Outcome<TimedPlan> make(std::shared_ptr<const AttentionPlan> plan,
                                 const PrepareOptions& options = {});

  /// Makes one call and returns its seconds. On a GPU they are measured on the device, from the
  /// start of the call to its end. Failures: those of attention_forward or attention_backward.
  Outcome<double> run(const AttentionTensors& tensors, const AttentionOptions& options, bool quiet);
  Outcome<double> run(const BackwardTensors& tensors, const BackwardOptions& options, bool quiet);

 private:
  std::unique_ptr<PreparedPlan> plan_;
  std::int64_t num_work_tiles_ = 0;
  std::optional<DeviceMemory> workspace_;
  std::optional<StreamTimer> timer_;
};

/// True cells of the mask over all batch elements and heads of the shape.
std::int64_t allowed_pairs(const BlockMask& mask, const AttentionShape& shape);
/// "123.4 GFLOP/s"; from 10,000 GFLOP/s on "12.3 TFLOP/s".
std::string rate_text(double gflops);
/// The number of tiles and index tiles that the plan visits.
std::int64_t live_tiles(const PlanCounts& counts);

/// "cpu (AVX2)", "sm90 (NVIDIA H200)"
std::string backend_text(Backend backend);
/// "q float16 [1, 8192, 8, 64], k float16 [..], v float16 [..], key_bias", with score_text
std::string shape_text(const AttentionProblem& problem);
/// "5,016 full, 800 bitmap, 344 row tiles of 128 x 128 in 512 work tiles"
std::string plan_text(const AttentionPlan& plan);

/// The name of the GPU that runs `backend`; null for cpu.
Json device_json(Backend backend);
Json shape_json(const AttentionProblem& problem);
Json plan_json(const AttentionPlan& plan);

}  // namespace fdma::maskc
