#include "gpu_fixture.hpp"

#include <algorithm>

#include "reference_rows.hpp"

namespace fdma::gpu_test {

unsigned char* GpuFixture::allocate(std::int64_t bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))),
          "cudaMalloc");
  return static_cast<unsigned char*>(memory);
}

void GpuFixture::release(unsigned char* memory) { cudaFree(memory); }

void GpuFixture::write(unsigned char* to, const unsigned char* from, std::int64_t bytes) {
  require(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "write");
}

void GpuFixture::read(unsigned char* to, const unsigned char* from, std::int64_t bytes) {
  require(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost), "read");
}

namespace {

// Prepares the plan, makes the call and waits for it.
template <class Call>
Result<void> run(const AttentionPlan& plan, const PrepareOptions& options, const char* name,
                 const Call& call) {
  FDMA_TRY(const OwnedPlan prepared, prepare(plan, nullptr, options));
  const Workspace workspace(*prepared);
  FDMA_TRY_VOID(call(*prepared, Launch{workspace.data()}));
  require(cudaDeviceSynchronize(), name);
  workspace.require_canaries();
  return {};
}

}  // namespace

Result<void> GpuFixture::forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                                 const AttentionOptions& options) {
  return run(plan, {}, "attention_forward",
             [&](const PreparedPlan& prepared, const Launch& launch) {
               return prepared.forward(tensors, launch, options);
             });
}

Result<void> GpuFixture::backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                  const BackwardOptions& options) {
  return run(plan, {options.deterministic}, "attention_backward",
             [&](const PreparedPlan& prepared, const Launch& launch) {
               return prepared.backward(tensors, launch, options);
             });
}

testing::ReferenceRows GpuFixture::reference(const testing::ReferenceProblem& problem) {
  const bool is_on_host = reference_ == ReferenceOn::host || problem.parts != nullptr;
  return is_on_host ? testing::reference_on_host(problem) : reference_on_device(problem);
}

Workspace::Workspace(std::int64_t bytes)
    : memory_(
          std::vector<unsigned char>(static_cast<std::size_t>(bytes) + 2 * kCanaryBytes, 0xff)) {}

void Workspace::require_canaries() const {
  const std::vector<unsigned char> bytes = memory_.to_host();
  const auto is_canary = [](unsigned char byte) { return byte == 0xff; };
  if (!std::all_of(bytes.begin(), bytes.begin() + kCanaryBytes, is_canary) ||
      !std::all_of(bytes.end() - kCanaryBytes, bytes.end(), is_canary)) {
    throw std::runtime_error("bytes beside the workspace were written");
  }
}

CapturedGraph::CapturedGraph(const OwnedStream& stream, const std::function<Result<void>()>& call,
                             int times)
    : stream_(stream) {
  require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin capture");
  Result<void> captured = call();
  for (int time = 1; time < times && captured; ++time) captured = call();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph);
  const cudaError_t made =
      captured && graph != nullptr ? cudaGraphInstantiate(&executable_, graph, 0) : cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!captured) throw std::runtime_error(captured.error().message);
  require(ended, "end capture");
  require(made, "cudaGraphInstantiate");
}

OwnedPlan prepared(const AttentionPlan& plan, Stream stream, const PrepareOptions& options) {
  Result<std::unique_ptr<PreparedPlan>> result = prepare(plan, stream, options);
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

}  // namespace fdma::gpu_test
