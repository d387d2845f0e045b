#include "sm90/forward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_forward<__half, 64, 64, false, true>(const ForwardParams&, int,
                                                                 cudaStream_t);
template cudaError_t launch_forward<__half, 64, 64, true, true>(const ForwardParams&, int,
                                                                cudaStream_t);

}  // namespace fdma::sm90
