// Zeros of sums, written by the serving warps of the main kernel while another KV head is computed:
// tensor cores bind it, memory has little to do (RowZeros): over lists that device kernels made,
// and over items of a plan that are together by KV head, with some for each multiprocessor.
//
// A row is a KV head. Its chunks are taken by counting up, row by row, and counted once they are in
// memory; chunks of the row behind the one in hand are taken as soon as a block has a unit of that
// one. The thread that loads lets no step of a row begin before all its chunks are counted. That is
// safe, and ends:
//
//   - zeros are written by the copy engine, whose thread waits for the writes and then counts,
//     releasing; the thread that loads acquires, and whoever adds to sums waits for what it loads.
//     Fences between the copy engine's accesses and others are on both sides
//   - chunks are taken and written without waiting for anybody. A block whose unit waits for a row
//     takes chunks of that row itself until none is left; who took the others waits for nothing
//   - blocks that find no more units go on until all rows are taken, for sums that nobody adds to
//     are read, too
#pragma once

#include <cstdint>

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/dq_semaphore.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/forward/mask_fragments.cuh"

namespace fdma::sm90 {

/// What threads wrote to memory or read of it and what the copy engine does there are in order.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

inline constexpr int kZeroRows = 64;  ///< of sums of keys in a chunk

__device__ __forceinline__ int query_chunks(const BackwardParams& p) {
  return p.group_size * (p.places.padded_q_len / kTileKeys);
}
__device__ __forceinline__ int zero_chunks(const BackwardParams& p, int row) {
  const int num_sums = p.zeros.num_sums == nullptr ? 0 : __ldg(p.zeros.num_sums + row);
  return query_chunks(p) + (num_sums + kZeroRows - 1) / kZeroRows;
}

/// One thread: until sums of a row are zero. The first one's have been before the launch.
__device__ __forceinline__ void wait_for_zeros(const BackwardParams& p, int row) {
  if (row == 0) return;
  const int count = zero_chunks(p, row);
  while (read_turn(&p.zeros.counters[row].done) != count) {
  }
  fence_async_global();
}

/// One warp, of which one lane does most. What it knows is in shared memory (kZeroState): the row
/// before that whose chunks are taken, the last such row, the row of the chunk being written or 0.
template <class Layout>
class ZeroWriter {
 public:
  __device__ __forceinline__ ZeroWriter(const BackwardParams& params, std::uint32_t base)
      : p_(params), base_(base) {}

  /// Before all else.
  __device__ __forceinline__ void begin(int lane) const {
    for (int i = lane; i < Layout::kZeroBytes / 16; i += 32) {
      store_words(base_ + Layout::kZeros + 16 * i, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_async_shared();
    __syncwarp();
  }
  /// A unit of `row` has been taken. One lane.
  __device__ __forceinline__ void look_ahead(int row) const {
    store_word(base_ + Layout::kZeroState + 4, min(row + 1, p_.zeros.num_rows - 1));
  }
  /// There are no more units. One lane.
  __device__ __forceinline__ void look_at_all() const { look_ahead(p_.zeros.num_rows); }

  /// Counts the chunk before, takes one; false: there is nothing to do. All lanes.
  __device__ __forceinline__ bool advance(int lane) const {
    bool goes_on = false;
    if (lane == 0) goes_on = take();
    return __shfl_sync(~0u, goes_on, 0);
  }

 private:
  __device__ __forceinline__ bool take() const {
    const std::uint32_t state = base_ + Layout::kZeroState;
    const int written_row = load_word(state + 8);
    if (written_row != 0) {
      ptx::bulk_wait<0>();
      fence_async_global();
      pass_turn(&p_.zeros.counters[written_row].done);
      store_word(state + 8, 0);
    }
    const int row = load_word(state) + 1;
    if (row > load_word(state + 4)) return written_row != 0;
    if (write(row, atomicAdd(&p_.zeros.counters[row].next, 1))) {
      store_word(state + 8, row);
    } else {
      store_word(state, row);
    }
    return true;
  }
  /// Starts writing a chunk of `row`; false: it has no such chunk.
  __device__ __forceinline__ bool write(int row, int index) const {
    const int of_queries = query_chunks(p_);
    if (index < of_queries) {
      const std::int64_t first = (std::int64_t{row} * of_queries + index) * kTileKeys;
      write_rows(p_.places.dq_sums + first * Layout::kDimQk, kTileKeys * Layout::kDimQk * 4);
    } else {
      if (p_.zeros.num_sums == nullptr) return false;
      const int first = (index - of_queries) * kZeroRows;
      const int num_rows = min(__ldg(p_.zeros.num_sums + row) - first, kZeroRows);
      if (num_rows <= 0) return false;
      const std::int64_t at = row * p_.zeros.sums_of_row + first;
      write_rows(p_.lists.dk_sums + at * Layout::kDimQk, num_rows * Layout::kDimQk * 4);
      write_rows(p_.lists.dv_sums + at * Layout::kDimV, num_rows * Layout::kDimV * 4);
    }
    ptx::bulk_commit();
    return true;
  }
  __device__ __forceinline__ void write_rows(float* to, int bytes) const {
#pragma unroll 1
    for (; bytes > 0; bytes -= Layout::kZeroBytes, to += Layout::kZeroBytes / 4) {
      ptx::bulk_store(to, base_ + Layout::kZeros,
                      static_cast<std::uint32_t>(min(bytes, Layout::kZeroBytes)));
    }
  }

  const BackwardParams& p_;
  const std::uint32_t base_;
};

}  // namespace fdma::sm90
