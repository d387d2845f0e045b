#include "sm90/backward/kernel.cuh"

namespace fdma::sm90 {

template cudaError_t launch_backward<__nv_bfloat16, 64, 64, false, Gradients::all>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__nv_bfloat16, 64, 64, true, Gradients::all>(
    const BackwardParams&, int, cudaStream_t);
template cudaError_t launch_backward<__nv_bfloat16, 64, 64, true, Gradients::shifts>(
    const BackwardParams&, int, cudaStream_t);

}  // namespace fdma::sm90
