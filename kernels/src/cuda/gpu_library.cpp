// The one place that knows whether this build has CUDA (FDMA_HAS_CUDA) and the header of cuSPARSE
// (FDMA_HAS_CUSPARSE). kernels/CMakeLists.txt defines both, as 0 or 1, for this source.
#include "cuda/gpu_library.hpp"

namespace fdma {

Result<const GpuLibrary*> gpu_library() {
#if FDMA_HAS_CUDA
  static const GpuLibrary library{with_cuda::memory(),       with_cuda::streams(),
                                  with_cuda::scores(),       with_cuda::score_gradients(),
                                  with_cuda::topk(),         with_cuda::incremental_topk(),
                                  with_cuda::dynamic_mask(), with_cuda::make_sm90_backend,
                                  with_cuda::merge};
  return &library;
#else
  return Error{ErrorCode::unsupported, "this build has no CUDA (FDMA_CUDA=OFF, or no nvcc)"};
#endif
}

Result<const cusparse::GpuCusparse*> gpu_cusparse() {
#if FDMA_HAS_CUSPARSE
  return &with_cuda::cusparse();
#else
  return Error{
      ErrorCode::unsupported,
      "this build has no cuSPARSE path: without CUDA (FDMA_CUDA=OFF, or no nvcc) or without "
      "cusparse.h, which comes with the CUDA toolkit or as `pip install nvidia-cusparse`; "
      "configure again with -DFDMA_CUSPARSE_INCLUDE_DIR=<the folder of cusparse.h>"};
#endif
}

}  // namespace fdma
