// Kernels of one stream that overlap (PTX ISA: griddepcontrol): one that is launched with
// launch_overlapping may start when all blocks of the kernel before have let it, or have ended.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace fdma::ptx {

/// Lets the next kernel of the stream start, if it was launched so.
__device__ __forceinline__ void let_next_grid_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Until the kernel before has ended and what it wrote is visible; at once if nothing overlaps.
/// Whatever a kernel reads of the one before, or writes where that one might still read, comes
/// after.
__device__ __forceinline__ void wait_for_grid_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Brings what lies at an address of global memory near, for an ordinary load later.
__device__ __forceinline__ void prefetch_l1(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

/// Whether short kernels of so many blocks gain by overlapping: with less than two for each of an
/// H100's or H200's 132 multiprocessors they took longer.
constexpr bool is_worth_overlap(std::int64_t num_blocks) { return num_blocks >= 2 * 132; }

/// Launches a kernel that may overlap with the one before if `overlaps_before`.
template <class... Parameters, class... Arguments>
cudaError_t launch_overlapping_if(bool overlaps_before, void (*kernel)(Parameters...), dim3 blocks,
                                  dim3 threads, int shared_bytes, cudaStream_t stream,
                                  Arguments&&... arguments) {
  cudaLaunchAttribute overlaps{};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlaps;
  config.numAttrs = overlaps_before ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/// Launches a kernel that may overlap with the one before.
template <class... Parameters, class... Arguments>
cudaError_t launch_overlapping(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                               int shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  return launch_overlapping_if(true, kernel, blocks, threads, shared_bytes, stream,
                               std::forward<Arguments>(arguments)...);
}

}  // namespace fdma::ptx
