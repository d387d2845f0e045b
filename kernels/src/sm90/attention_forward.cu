// attention_forward on the GPU: checks the tensors, describes them to the copy engine, launches.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "attention_call.hpp"
#include "fdma/kernels/device_plan.hpp"
#include "sm90/cuda_error.hpp"
#include "sm90/device_plan.hpp"
#include "sm90/forward_kernels.hpp"
#include "sm90/tensor_map.hpp"

namespace fdma {
namespace {

using sm90::ForwardParams;

// A map, or the error with the tensor's name.
Result<CUtensorMap> tile_map(const TensorView& tensor, int box_rows, const char* name) {
  Result<CUtensorMap> map = sm90::make_tile_map(tensor, box_rows);
  if (map) return map;
  return Error{map.error().code, std::string(name) + ": " + map.error().message};
}

Result<void> set_tensors(const AttentionTensors& tensors, const AttentionCall& call,
                         ForwardParams& params) {
  constexpr int kHalfRows = 64;
  FDMA_TRY(params.q, tile_map(tensors.q, kHalfRows, "q"));
  FDMA_TRY(params.out_map, tile_map(tensors.out.view(), kHalfRows, "out"));
  // Without any key the one tile that an item reads is masked: any tensor will do.
  const bool has_keys = tensors.kv.k.extents[1] > 0;
  FDMA_TRY(params.k, tile_map(has_keys ? tensors.kv.k : tensors.q, sm90::kTileKeys, "k"));
  FDMA_TRY(params.v, tile_map(has_keys ? tensors.kv.v : tensors.q, sm90::kTileKeys, "v"));
  // Compared with lengths, which are at most kMaxLength.
  const auto rows_of = [](std::int64_t extent) {
    return static_cast<std::int32_t>(std::min(extent, kMaxLength));
  };
  params.v_rows = has_keys ? rows_of(tensors.kv.v.extents[1]) : 0;
  params.out_rows = rows_of(tensors.out.extents[1]);
  params.out = tensors.out.data;
  params.out_batch_stride = call.out.batch_stride;
  params.out_row_stride = call.out.row_stride;
  params.out_head_stride = call.out.head_stride;
  params.lse = call.lse;
  params.lse_batch_stride = call.lse_batch_stride;
  params.lse_head_stride = call.lse_head_stride;
  params.lse_row_stride = call.lse_row_stride;
  params.key_bias = call.key_bias;
  params.bias_batch_stride = call.bias_batch_stride;
  params.bias_head_stride = call.bias_head_stride;
  params.scale_log2 = call.scale_log2;
  return {};
}

template <class T, int kHeadDim>
cudaError_t launch(const ForwardParams& params, int num_blocks, cudaStream_t stream) {
  const bool is_general = params.key_bias != nullptr || !(params.scale_log2 > 0.0f);
  return is_general ? sm90::launch_forward<T, kHeadDim, true>(params, num_blocks, stream)
                    : sm90::launch_forward<T, kHeadDim, false>(params, num_blocks, stream);
}

template <class T>
cudaError_t launch(const ForwardParams& params, int head_dim, int num_blocks, cudaStream_t stream) {
  return head_dim == 64 ? launch<T, 64>(params, num_blocks, stream)
                        : launch<T, 128>(params, num_blocks, stream);
}

}  // namespace

Result<void> attention_forward(const DevicePlan& plan, const AttentionTensors& tensors,
                               void* workspace, Stream stream, const AttentionOptions& options) {
  const DevicePlan::Impl& impl = plan.impl();
  const AttentionShape& shape = impl.shape;
  FDMA_TRY(const AttentionCall call,
           checked_call(shape, impl.score, tensors, options, Device::cuda));
  int device = -1;
  FDMA_TRY_VOID(sm90::check_cuda(cudaGetDevice(&device), "cudaGetDevice"));
  if (device != impl.device) {
    return Error{ErrorCode::unsupported, "plan: is on CUDA device " + std::to_string(impl.device) +
                                             ", but the current device is " +
                                             std::to_string(device)};
  }
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0) {
    return Error{ErrorCode::invalid_argument,
                 "workspace: expected a 16-aligned address of device memory"};
  }
  if (impl.arrays.num_items == 0) return {};

  ForwardParams params{};
  FDMA_TRY_VOID(set_tensors(tensors, call, params));
  params.plan = impl.arrays;
  params.next_item = static_cast<std::int32_t*>(workspace);
  params.group_size = shape.group_size();
  FDMA_TRY_VOID(sm90::check_cuda(cudaMemsetAsync(workspace, 0, sizeof(std::int32_t), stream),
                                 "cudaMemsetAsync"));
  const int num_blocks = std::min(impl.num_multiprocessors, impl.arrays.num_items);
  return sm90::check_cuda(shape.q_dtype == DType::bfloat16
                              ? launch<__nv_bfloat16>(params, shape.head_dim, num_blocks, stream)
                              : launch<__half>(params, shape.head_dim, num_blocks, stream),
                          "launch of the forward kernel");
}

}  // namespace fdma
