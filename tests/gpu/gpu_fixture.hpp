// Attention cases on the GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "backend/backend_fixture.hpp"
#include "device_array.hpp"
#include "fdma/kernels/prepared_plan.hpp"

namespace fdma::gpu_test {

/// The place where the references of cases are computed.
enum class ReferenceOn : std::uint8_t {
  device,  ///< by the kernels of reference_rows.hpp
  host,    ///< slow; no kernel except attention runs
};

/// The sm90 backend on the current device. It uploads the plan for each run. The workspace is
/// filled with 0xff before the run and has canaries around it.
class GpuFixture : public testing::BackendFixture {
 public:
  explicit GpuFixture(ReferenceOn reference = ReferenceOn::device) : reference_(reference) {}

  Backend backend() const override { return Backend::sm90; }
  Device device() const override { return Device::cuda; }
  unsigned char* allocate(std::int64_t bytes) override;
  void release(unsigned char* memory) override;
  void write(unsigned char* to, const unsigned char* from, std::int64_t bytes) override;
  void read(unsigned char* to, const unsigned char* from, std::int64_t bytes) override;
  Result<void> forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                       const AttentionOptions& options) override;
  Result<void> backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                        const BackwardOptions& options) override;
  testing::ReferenceRows reference(const testing::ReferenceProblem& problem) override;

 private:
  ReferenceOn reference_;
};

/// Device memory for one launch, with canaries around it; filled with 0xff.
class Workspace {
 public:
  explicit Workspace(const PreparedPlan& plan) : Workspace(plan.workspace_bytes()) {}
  explicit Workspace(std::int64_t bytes);
  void* data() const { return memory_.data() + kCanaryBytes; }
  /// Throws if a byte outside the workspace was written. Waits for the device.
  void require_canaries() const;

 private:
  static constexpr std::size_t kCanaryBytes = 1024;
  DeviceArray<unsigned char> memory_;
};

/// A stream that this object creates and destroys.
class OwnedStream {
 public:
  OwnedStream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }
  void wait() const { require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The work that a call puts into a stream, captured as a graph that can be launched there again
/// and again. Throws if the call fails or cannot be captured. Nothing runs before a launch.
class CapturedGraph {
 public:
  /// Captures the call `times` times in a row, as the layers of a model make it.
  CapturedGraph(const OwnedStream& stream, const std::function<Result<void>()>& call,
                int times = 1);
  ~CapturedGraph() { cudaGraphExecDestroy(executable_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void launch() const { require(cudaGraphLaunch(executable_, stream_.get()), "cudaGraphLaunch"); }
  /// Launches the graph and waits for it.
  void replay() const {
    launch();
    stream_.wait();
  }

 private:
  const OwnedStream& stream_;
  cudaGraphExec_t executable_ = nullptr;
};

using OwnedPlan = std::unique_ptr<const PreparedPlan>;

/// The plan on the device; throws if that fails.
OwnedPlan prepared(const AttentionPlan& plan, Stream stream = nullptr,
                   const PrepareOptions& options = {});

}  // namespace fdma::gpu_test
