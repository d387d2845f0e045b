// The one place that knows whether this build has CUDA: kernels/CMakeLists.txt defines FDMA_HAS_CUDA
// as 0 or 1 for this source.
#include "cuda/gpu_library.hpp"

namespace fdma {

Result<const GpuLibrary*> gpu_library() {
#if FDMA_HAS_CUDA
  static const GpuLibrary library{with_cuda::memory(), with_cuda::streams(),
                                  with_cuda::scores(), with_cuda::score_gradients(),
                                  with_cuda::topk(),   with_cuda::incremental_topk()};
  return &library;
#else
  return Error{ErrorCode::unsupported, "this build has no CUDA (FDMA_CUDA=OFF, or no nvcc)"};
#endif
}

}  // namespace fdma
