// Zero fill of the fp32 accumulators of dQ and of worklist keys. Helper warps of the main kernel
// clear the accumulators of the next KV head while the current one is computed. The kernel is bound
// by the tensor cores, so this costs little (ZeroFill). It is used over lists that device kernels
// made, and over work tiles of a plan that are grouped by KV head, if there are some for each
// multiprocessor.
//
// A row is a KV head. Blocks take its chunks by incrementing a counter, row by row, and count a
// chunk as done once it is in memory. Chunks of the row after the current one are taken as soon as
// a block has a tile group of the current row. The loading thread begins no step of a row before
// all its chunks are done. This is safe, and it terminates:
//
// - Bulk copies write the zeros. The thread that issues them waits for the writes and then counts
//   with release. The loading thread acquires, and every thread that adds to accumulators waits for
//   data that the loading thread loads. Fences between accesses of the async proxy and others are on
//   both sides.
// - Chunks are taken and written without waiting for another block. A block whose tile group waits
// for a
//   row takes chunks of that row itself until none is left. The blocks that took the others wait
//   for nothing.
// - Blocks that find no more tile groups go on until all rows are taken, because accumulators to
// which
//   nobody adds are read, too.
#pragma once

#include <cstdint>

#include "cuda/mask_fragments.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/dq_semaphore.cuh"
#include "sm90/backward/params.hpp"

namespace fdma::sm90 {

inline constexpr int kZeroFillRows = 64;  ///< rows of accumulators of worklist keys in a chunk

__device__ __forceinline__ int query_blocks(const BackwardParams& p) {
  return p.group_size * (p.places.padded_q_len / kTileKeys);
}
__device__ __forceinline__ int zero_fill_blocks(const BackwardParams& p, int row) {
  const int num_accum_rows =
      p.zero_fill.num_accum_rows == nullptr ? 0 : __ldg(p.zero_fill.num_accum_rows + row);
  return query_blocks(p) + (num_accum_rows + kZeroFillRows - 1) / kZeroFillRows;
}

/// Waits until the accumulators of a row are zero. One thread. The first row is zero since before
/// the launch.
__device__ __forceinline__ void wait_for_zero_fill(const BackwardParams& p, int row) {
  if (row == 0) return;
  const int count = zero_fill_blocks(p, row);
  while (read_dq_semaphore(&p.zero_fill.counters[row].done) != count) {
  }
  ptx::fence_async_global();
}

/// Writes zeros for one block. One warp calls it, and one lane does most of the work. Its state is
/// in shared memory (kZeroFillState): the last row all of whose chunks are taken, the last row
/// whose chunks may be taken, and the row of the chunk being written or 0.
template <class Layout>
class ZeroFillWriter {
 public:
  __device__ __forceinline__ ZeroFillWriter(const BackwardParams& params, std::uint32_t base)
      : p_(params), base_(base) {}

  /// Called before all else: clears the source of the bulk copies.
  __device__ __forceinline__ void begin(int lane) const {
    for (int i = lane; i < Layout::kZeroFillBytes / 16; i += 32) {
      store_words(base_ + Layout::kZeroFill + 16 * i, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_async_shared();
    __syncwarp();
  }
  /// Called when a tile group of `row` has been taken. One lane.
  __device__ __forceinline__ void look_ahead(int row) const {
    store_word(base_ + Layout::kZeroFillState + 4, min(row + 1, p_.zero_fill.num_rows - 1));
  }
  /// Called when there are no more tile groups. One lane.
  __device__ __forceinline__ void look_at_all() const { look_ahead(p_.zero_fill.num_rows); }

  /// Counts the chunk before and takes another; returns false if there is nothing to do. All lanes
  /// call it.
  __device__ __forceinline__ bool advance(int lane) const {
    bool goes_on = false;
    if (lane == 0) goes_on = take();
    return __shfl_sync(~0u, goes_on, 0);
  }

 private:
  __device__ __forceinline__ bool take() const {
    const std::uint32_t state = base_ + Layout::kZeroFillState;
    const int written_row = load_word(state + 8);
    if (written_row != 0) {
      ptx::bulk_wait<0>();
      ptx::fence_async_global();
      advance_dq_semaphore(&p_.zero_fill.counters[written_row].done);
      store_word(state + 8, 0);
    }
    const int row = load_word(state) + 1;
    if (row > load_word(state + 4)) return written_row != 0;
    if (write(row, atomicAdd(&p_.zero_fill.counters[row].next, 1))) {
      store_word(state + 8, row);
    } else {
      store_word(state, row);
    }
    return true;
  }
  /// Starts writing chunk `index` of `row`; returns false if the row has no such chunk.
  __device__ __forceinline__ bool write(int row, int index) const {
    const int of_queries = query_blocks(p_);
    if (index < of_queries) {
      const std::int64_t first = (std::int64_t{row} * of_queries + index) * kTileKeys;
      write_rows(p_.places.dq_accum + first * Layout::kDimQk, kTileKeys * Layout::kDimQk * 4);
    } else {
      if (p_.zero_fill.num_accum_rows == nullptr) return false;
      const int first = (index - of_queries) * kZeroFillRows;
      const int num_rows = min(__ldg(p_.zero_fill.num_accum_rows + row) - first, kZeroFillRows);
      if (num_rows <= 0) return false;
      const std::int64_t at = row * p_.zero_fill.accum_rows_of_head + first;
      write_rows(p_.worklist.dk_accum + at * Layout::kDimQk, num_rows * Layout::kDimQk * 4);
      write_rows(p_.worklist.dv_accum + at * Layout::kDimV, num_rows * Layout::kDimV * 4);
    }
    ptx::bulk_commit();
    return true;
  }
  __device__ __forceinline__ void write_rows(float* to, int bytes) const {
#pragma unroll 1
    for (; bytes > 0; bytes -= Layout::kZeroFillBytes, to += Layout::kZeroFillBytes / 4) {
      ptx::bulk_store(to, base_ + Layout::kZeroFill,
                      static_cast<std::uint32_t>(min(bytes, Layout::kZeroFillBytes)));
    }
  }

  const BackwardParams& p_;
  const std::uint32_t base_;
};

}  // namespace fdma::sm90
