// Who computes an attention case: a backend, the memory that it computes in, and the reference for
// tensors there. One implementation on the CPU, one on the GPU (tests/gpu).
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace fdma::testing {

/// A query row to compare, and where its cells begin.
struct RowTask {
  std::int32_t b;
  std::int32_t h;
  std::int32_t row;
  std::int64_t first_cell;
};

/// Rows of one attention call.
struct ReferenceProblem {
  AttentionShape shape;
  AttentionTensors tensors;       ///< where the machine computes; out and lse are not read
  AttentionTensors host_tensors;  ///< the same on the host
  double softmax_scale = 1;
  std::vector<RowTask> tasks;
  std::vector<char> cells;  ///< kv_len(b) for each row, 1: attend
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
  /// Memory of the machine, 256-aligned; throws where there is none.
  virtual unsigned char* allocate(std::int64_t bytes) = 0;
  virtual void release(unsigned char* memory) = 0;
  virtual void write(unsigned char* to, const unsigned char* from, std::int64_t bytes) = 0;
  virtual void read(unsigned char* to, const unsigned char* from, std::int64_t bytes) = 0;
  /// attention_forward, complete when it returns.
  virtual Result<void> forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                               const AttentionOptions& options) = 0;
  /// attention_backward, complete when it returns.
  virtual Result<void> backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                const BackwardOptions& options) = 0;
  virtual ReferenceRows reference(const ReferenceProblem& problem) = 0;
};

/// The rows of `problem` by tests/reference, on the host.
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
