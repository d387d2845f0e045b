// merge of device tensors: its checks. merge.cu has the kernel.
#include "fdma/kernels/merge.hpp"

#include <string>

#include "call/merge_call.hpp"
#include "cuda/gpu_library.hpp"

namespace fdma {

Result<void> merge(const MergeTensors& tensors, Stream stream) {
  FDMA_TRY(const MergeCall call, checked_merge(tensors, Device::cuda));
  if (call.num_rows() >= std::int64_t{1} << 31) {
    return Error{ErrorCode::unsupported,
                 "parts: expected fewer than 2^31 rows, got " + std::to_string(call.num_rows())};
  }
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  if (call.num_rows() == 0) return {};
  return gpu->merge(call, stream);
}

}  // namespace fdma
