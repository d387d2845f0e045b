#include <cuda_runtime.h>

#include <string>

#include "sm90/tensor_map.hpp"

namespace fdma::sm90 {
namespace {

// The driver's function, asked for at run time so that nothing links against libcuda.
Result<decltype(&cuTensorMapEncodeTiled)> encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return Error{
        ErrorCode::unsupported,
        "the CUDA driver has no tensor maps (cuTensorMapEncodeTiled): a driver for CUDA 12 or "
        "newer is needed"};
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

Result<CUtensorMap> make_tile_map(const TensorView& tensor, std::int32_t box_rows) {
  constexpr std::int64_t kElementBytes = 2, kPanel = 64, kMapAlignment = 16;
  const std::int64_t head_dim = tensor.extents[3];
  if (head_dim % kPanel != 0) {
    return Error{ErrorCode::unsupported,
                 "head_dim: expected a multiple of 64, got " + std::to_string(head_dim)};
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % kMapAlignment != 0) {
    return Error{ErrorCode::unsupported,
                 "data: expected an address that is a multiple of 16 bytes"};
  }
  cuuint64_t strides[4];  // bytes, of dimensions 1 to 4: row, panel, head, batch
  const std::int64_t elements[4] = {tensor.strides[1], kPanel, tensor.strides[2],
                                    tensor.strides[0]};
  for (int i = 0; i < 4; ++i) {
    // An axis of one entry may have any stride; the map wants a legal one.
    const bool is_single = i != 1 && tensor.extents[i == 0 ? 1 : i == 2 ? 2 : 0] == 1;
    const std::int64_t bytes = is_single ? kPanel * kElementBytes : elements[i] * kElementBytes;
    if (bytes <= 0 || bytes % kMapAlignment != 0) {
      return Error{
          ErrorCode::unsupported,
          "strides: expected positive multiples of 8 elements, got " + std::to_string(elements[i])};
    }
    strides[i] = static_cast<cuuint64_t>(bytes);
  }
  const cuuint64_t extents[5] = {kPanel, static_cast<cuuint64_t>(tensor.extents[1]),
                                 static_cast<cuuint64_t>(head_dim / kPanel),
                                 static_cast<cuuint64_t>(tensor.extents[2]),
                                 static_cast<cuuint64_t>(tensor.extents[0])};
  const cuuint32_t box[5] = {kPanel, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(head_dim / kPanel), 1, 1};
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  FDMA_TRY(const auto encode, encode_function());
  CUtensorMap map;
  const CUresult result =
      encode(&map,
             tensor.dtype == DType::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             5, const_cast<void*>(tensor.data), extents, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Error{ErrorCode::cuda, "cuTensorMapEncodeTiled: error " + std::to_string(result)};
  }
  return map;
}

}  // namespace fdma::sm90
