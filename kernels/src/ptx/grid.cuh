// Programmatic dependent launch: kernels of one stream that overlap (PTX ISA: griddepcontrol). A
// kernel that is launched with launch_overlapping may start when every block of the kernel before
// has called let_next_grid_start or has ended.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace fdma::ptx {

/// Lets the next kernel of the stream start, if it was launched with launch_overlapping.
__device__ __forceinline__ void let_next_grid_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Waits until the kernel before has ended and its writes are visible. It returns at once if
/// nothing overlaps. A kernel reads what the one before wrote, and writes what the one before might
/// still read, only after this call.
__device__ __forceinline__ void wait_for_grid_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Prefetches the line of a global address into L1, for an ordinary load later.
__device__ __forceinline__ void prefetch_l1(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

/// Returns whether short kernels of `num_blocks` blocks gain by overlapping. With fewer than two
/// blocks for each of the 132 multiprocessors of an H100 or H200 they took longer.
constexpr bool is_worth_overlap(std::int64_t num_blocks) { return num_blocks >= 2 * 132; }

/// Launches a kernel, which may overlap with the one before if `overlaps_before`.
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
