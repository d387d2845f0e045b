#include "sm90/backward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_backward<__half, 256, 256, false, Gradients::values, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, false, Gradients::keys, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, true, Gradients::values, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, true, Gradients::keys, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 256, 256, true, Gradients::shifts, true>(
    const BackwardParams&, int, cudaStream_t);

}  // namespace fdma::sm90
