// Encodes TMA tensor maps with the driver's function.
#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "sm90/shared/tensor_map.hpp"

namespace fdma::sm90 {
namespace {

// The driver's function. It is looked up once, at run time, so that nothing links against libcuda.
Result<decltype(&cuTensorMapEncodeTiled)> encode_function() {
  static std::atomic<decltype(&cuTensorMapEncodeTiled)> known = nullptr;
  if (const auto encode = known.load(std::memory_order_relaxed)) return encode;
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
  known = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  return known.load();
}

}  // namespace

Result<CUtensorMap> make_tile_map(const TensorView& tensor, std::int32_t group_size, TileBox box) {
  constexpr std::int64_t kElementBytes = 2, kPanel = 64, kMapAlignment = 16;
  const std::int64_t head_dim = tensor.extents[3], num_groups = tensor.extents[2] / group_size;
  if (head_dim * kElementBytes % kMapAlignment != 0) {
    return Error{ErrorCode::unsupported,
                 "head_dim: expected a multiple of 8, got " + std::to_string(head_dim)};
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % kMapAlignment != 0) {
    return Error{ErrorCode::unsupported,
                 "data: expected an address that is a multiple of 16 bytes"};
  }
  // Dimensions 1 to 4: head in the group, row, group, batch.
  const std::int64_t counts[4] = {group_size, tensor.extents[1], num_groups, tensor.extents[0]};
  const std::int64_t elements[4] = {tensor.strides[2], tensor.strides[1],
                                    tensor.strides[2] * group_size, tensor.strides[0]};
  cuuint64_t extents[5] = {static_cast<cuuint64_t>(head_dim)};
  cuuint64_t strides[4];  // bytes
  for (int i = 0; i < 4; ++i) {
    // An axis of one entry may have any stride, but the map needs a legal one.
    const std::int64_t bytes = (counts[i] == 1 ? kPanel : elements[i]) * kElementBytes;
    if (bytes <= 0 || bytes % kMapAlignment != 0) {
      return Error{
          ErrorCode::unsupported,
          "strides: expected positive multiples of 8 elements, got " + std::to_string(elements[i])};
    }
    strides[i] = static_cast<cuuint64_t>(bytes);
    extents[i + 1] = static_cast<cuuint64_t>(counts[i]);
  }
  const cuuint32_t sides[5] = {kPanel, static_cast<cuuint32_t>(box.heads),
                               static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  FDMA_TRY(const auto encode, encode_function());
  CUtensorMap map;
  // A map has no type for memory that is only read.
  const CUresult result =
      encode(&map,
             tensor.dtype == DType::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             5, const_cast<void*>(tensor.data), extents, strides, sides, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Error{ErrorCode::cuda, "cuTensorMapEncodeTiled: error " + std::to_string(result)};
  }
  return map;
}

Result<CUtensorMap> make_named_map(const TensorView& tensor, std::int32_t group_size, TileBox box,
                                   const char* name) {
  Result<CUtensorMap> map = make_tile_map(tensor, group_size, box);
  if (map) return map;
  return Error{map.error().code, std::string(name) + ": " + map.error().message};
}

}  // namespace fdma::sm90
