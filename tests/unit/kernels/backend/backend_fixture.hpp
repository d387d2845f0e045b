// A backend fixture: a backend, the memory in which it computes, and the reference for tensors
// there. CpuFixture is for the CPU; tests/gpu has the one for the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace fdma::testing {

class PartArrays;

/// A query row to compare, and the index of its first cell.
struct RowTask {
  std::int32_t b;
  std::int32_t h;
  std::int32_t row;
  std::int64_t first_cell;
};

/// The rows of one attention call to compute.
struct ReferenceProblem {
  AttentionShape shape;
  AttentionTensors tensors;       ///< in the memory of the fixture; out and lse are not read
  AttentionTensors host_tensors;  ///< the same tensors on the host
  double softmax_scale = 1;
  double softcap = 0;                 ///< 0: none
  const PartArrays* parts = nullptr;  ///< the newer parts of the score, or null
  std::vector<RowTask> tasks;
  std::vector<char> cells;  ///< kv_len(b) cells for each row; 1: attend
};

/// Shapes      out [tasks, head_dim_v], lse [tasks]
struct ReferenceRows {
  std::vector<double> out, lse;                   ///< in float64
  std::vector<float> explicit_out, explicit_lse;  ///< as attention_explicit computes them
};

class BackendFixture {
 public:
  BackendFixture() = default;
  BackendFixture(const BackendFixture&) = delete;
  BackendFixture& operator=(const BackendFixture&) = delete;
  virtual ~BackendFixture() = default;

  virtual Backend backend() const = 0;
  virtual Device device() const = 0;
  /// Allocates memory in which the backend computes, aligned to 256 bytes. Throws if it fails.
  virtual unsigned char* allocate(std::int64_t bytes) = 0;
  virtual void release(unsigned char* memory) = 0;
  virtual void write(unsigned char* to, const unsigned char* from, std::int64_t bytes) = 0;
  virtual void read(unsigned char* to, const unsigned char* from, std::int64_t bytes) = 0;
  /// Calls attention_forward; the results are complete when it returns.
  virtual Result<void> forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                               const AttentionOptions& options) = 0;
  /// Calls attention_backward; the results are complete when it returns.
  virtual Result<void> backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                const BackwardOptions& options) = 0;
  virtual ReferenceRows reference(const ReferenceProblem& problem) = 0;
};

/// The rows of `problem`, computed on the host by tests/reference.
ReferenceRows reference_on_host(const ReferenceProblem& problem);

class CpuFixture : public BackendFixture {
 public:
  Backend backend() const override { return Backend::cpu; }
  Device device() const override { return Device::cpu; }
  unsigned char* allocate(std::int64_t bytes) override;
  void release(unsigned char* memory) override;
  void write(unsigned char* to, const unsigned char* from, std::int64_t bytes) override;
  void read(unsigned char* to, const unsigned char* from, std::int64_t bytes) override;
  Result<void> forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                       const AttentionOptions& options) override;
  Result<void> backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                        const BackwardOptions& options) override;
  ReferenceRows reference(const ReferenceProblem& problem) override;
};

}  // namespace fdma::testing
