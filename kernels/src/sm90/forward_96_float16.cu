#include "sm90/forward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_forward<__half, 96, 96, false, false>(const ForwardParams&, int,
                                                                  cudaStream_t);
template cudaError_t launch_forward<__half, 96, 96, true, false>(const ForwardParams&, int,
                                                                 cudaStream_t);

}  // namespace fdma::sm90
