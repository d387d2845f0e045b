// ZOH scores and their gradients on the GPU: what is checked before kernels are chosen.
#include <cstdint>
#include <string>
#include <utility>

#include "cuda/gpu_library.hpp"
#include "fdma/kernels/zoh_backward_device.hpp"
#include "fdma/kernels/zoh_device.hpp"
#include "selection/scores/gpu_scores.hpp"

namespace fdma {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 256;

Error unsupported(std::string message) { return {ErrorCode::unsupported, std::move(message)}; }

// A grid takes no more batch elements, heads or elements.
Result<void> check_grid(const ZohShape& shape) {
  constexpr std::int64_t kMostBlocks = 65535;  // of a grid in y and z
  if (shape.num_batches <= kMostBlocks && shape.num_heads_kv <= kMostBlocks &&
      shape.head_dim <= kMaxLength / shape.num_heads_kv) {
    return {};
  }
  return unsupported("values: expected at most 65535 batch elements and heads, got " +
                     std::to_string(shape.num_batches) + " and " +
                     std::to_string(shape.num_heads_kv));
}

Result<void> check_device_tensors(const ZohShape& shape, const TensorView& values,
                                  const MutableTensorView& scores) {
  if (values.device != Device::cuda) {
    return unsupported("values: on the host; this is the GPU's zoh_scores");
  }
  if (scores.device != Device::cuda) {
    return unsupported("scores: on the host, but values are on a CUDA device");
  }
  if (scores.dtype != DType::float32) {
    return unsupported("scores: expected float32, got " + std::string(to_string(scores.dtype)));
  }
  if (scores.rank != 3 || scores.extents[0] != shape.num_batches ||
      scores.extents[1] != shape.num_heads_kv || scores.extents[2] != shape.kv_len) {
    std::string got;
    for (int i = 0; i < scores.rank; ++i) {
      got += (i == 0 ? "" : ", ") + std::to_string(scores.extents[static_cast<std::size_t>(i)]);
    }
    return Error{ErrorCode::shape_mismatch,
                 "scores: expected [batch, heads_kv, kv_len] = [" +
                     std::to_string(shape.num_batches) + ", " + std::to_string(shape.num_heads_kv) +
                     ", " + std::to_string(shape.kv_len) + "], got [" + got + "]"};
  }
  if (shape.num_batches * shape.kv_len == 0) return {};
  if (scores.data == nullptr) return Error{ErrorCode::invalid_argument, "scores: data is null"};
  if (reinterpret_cast<std::uintptr_t>(scores.data) % sizeof(float) != 0) {
    return Error{ErrorCode::invalid_argument,
                 "scores: data is not aligned to its float32 elements"};
  }
  return check_grid(shape);
}

}  // namespace

Result<void> zoh_scores(const TensorView& values, const TensorView& dt_proj,
                        const TensorView& a_coef, const MutableTensorView& scores, ZohMode mode,
                        Stream stream) {
  FDMA_TRY(const ZohShape shape, zoh_shape(values, dt_proj, a_coef));
  FDMA_TRY_VOID(check_device_tensors(shape, values, scores));
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  if (shape.num_batches * shape.kv_len == 0) return {};
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->scores.launch(shape, values, dt_proj, a_coef, scores, mode, stream);
}

std::int64_t zoh_backward_workspace_bytes(const ZohShape& shape) {
  const auto gpu = gpu_library();
  return gpu ? (*gpu)->score_gradients.workspace_bytes(shape) : 0;
}

Result<void> zoh_scores_backward(const ZohBackwardTensors& tensors, ZohMode mode, void* workspace,
                                 Stream stream) {
  FDMA_TRY(const ZohShape shape, zoh_backward_shape(tensors));
  if (tensors.values.device != Device::cuda) {
    return unsupported("values: on the host; this is the GPU's zoh_scores_backward");
  }
  FDMA_TRY_VOID(check_grid(shape));
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  if (tensors.dvalues.data == nullptr && tensors.ddt_proj.data == nullptr &&
      tensors.da_coef.data == nullptr) {
    return {};
  }
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  if (workspace == nullptr ||
      reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return Error{ErrorCode::invalid_argument,
                 "workspace: expected zoh_backward_workspace_bytes() = " +
                     std::to_string(gpu->score_gradients.workspace_bytes(shape)) +
                     " bytes of device memory, aligned to 256"};
  }
  return gpu->score_gradients.launch(shape, tensors, mode, workspace, stream);
}

}  // namespace fdma
