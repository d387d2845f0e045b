// Gradients of ZOH scores on the GPU: describes a checked call and chooses its kernels.
#include <algorithm>
#include <cstdint>

#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "selection/scores/backward_call.cuh"
#include "selection/scores/gpu_scores.hpp"
#include "selection/scores/zoh_vector.cuh"

namespace fdma {
namespace zoh {
namespace {

constexpr std::int64_t kMostRowBytes = 1024;

template <class Data>
BasicValueGradient<Data> gradient_of(const BasicTensorView<Data>& view) {
  return {view.data, view.dtype, view.extents[0] > 1 ? view.strides[0] : 0,
          view.extents[1] > 1 ? view.strides[1] : 0, view.extents[2] > 1 ? view.strides[2] : 0};
}

BackwardCall make_backward_call(const ZohShape& shape, const ZohBackwardTensors& tensors,
                                ZohMode mode, void* workspace) {
  BackwardCall call{};
  call.forward = make_call(shape, tensors.values, tensors.dt_proj, tensors.a_coef);
  call.dscores = static_cast<const float*>(tensors.dscores.data);
  call.dscore_batch_stride = tensors.dscores.strides[0];
  call.dscore_head_stride = tensors.dscores.strides[1];
  call.dscore_key_stride = tensors.dscores.strides[2];
  const TensorView dvalues = tensors.dvalues, &other = tensors.other_dvalues;
  call.dvalues = gradient_of(tensors.dvalues);
  call.other = gradient_of(other);
  const MutableTensorView &ddt_proj = tensors.ddt_proj, &da_coef = tensors.da_coef;
  call.ddt_proj = {ddt_proj.data, ddt_proj.dtype, 0, ddt_proj.strides[1], ddt_proj.strides[0]};
  call.da_coef = {da_coef.data, da_coef.dtype, 0, 0, da_coef.strides[0]};
  call.is_in_place = other.data != nullptr && other.data == dvalues.data &&
                     other.dtype == dvalues.dtype && other.strides == dvalues.strides;
  call.is_log = mode == ZohMode::log;
  call.workspace = workspace;
  return call;
}

class CudaScoreGradients final : public GpuScoreGradients {
 public:
  std::int64_t workspace_bytes(const ZohShape& shape) const override {
    const std::int64_t any = backward_any_workspace_bytes(shape);
    return shape.is_per_head ? std::max(any, backward_rows_workspace_bytes(shape)) : any;
  }

  Result<void> launch(const ZohShape& shape, const ZohBackwardTensors& tensors, ZohMode mode,
                      void* workspace, Stream stream) const override {
    const BackwardCall call = make_backward_call(shape, tensors, mode, workspace);
    const std::int64_t row_bytes = shape.head_dim * size_bytes(tensors.values.dtype);
    const bool is_rows = shape.is_per_head && row_bytes <= kMostRowBytes &&
                         shape.num_batches * shape.kv_len > 0 && has_wide_rows(call.forward) &&
                         has_aligned_rows(call.dvalues) && has_aligned_rows(call.other);
    if (is_rows) {
      launch_backward_rows(call, stream);
    } else {
      FDMA_TRY_VOID(launch_backward_any(call, stream));
    }
    return gpu::check_cuda(cudaGetLastError(), "zoh_scores_backward: launch");
  }
};

}  // namespace
}  // namespace zoh

const zoh::GpuScoreGradients& with_cuda::score_gradients() {
  static const zoh::CudaScoreGradients gradients;
  return gradients;
}

}  // namespace fdma
