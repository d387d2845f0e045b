#include "sm90/backward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_backward<__half, 128, 128, false, Gradients::all, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 128, 128, true, Gradients::all, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 128, 128, true, Gradients::shifts, true>(
    const BackwardParams&, int, cudaStream_t);

}  // namespace fdma::sm90
