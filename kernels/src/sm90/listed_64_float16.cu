#include "sm90/backward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_backward<__half, 64, 64, false, Gradients::all, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 64, 64, true, Gradients::all, true>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__half, 64, 64, true, Gradients::shifts, true>(
    const BackwardParams&, int, cudaStream_t);

}  // namespace fdma::sm90
