#include "sm90/backward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_backward<__half, 256, 256, false, Gradients::values>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, true, Gradients::values>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, false, Gradients::keys>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, true, Gradients::keys>(const BackwardParams&,
                                                                              int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, true, Gradients::shifts>(
    const BackwardParams&, int, cudaStream_t);

}  // namespace fdma::sm90
