// Zeros of sums, written by the serving warps of the main kernel while another KV head is computed:
// tensor cores bind it, memory has little to do. Over lists that device kernels made (RowZeros).
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
#include "sm90/backward_params.hpp"
#include "sm90/backward_turns.cuh"
#include "sm90/mask_words.cuh"

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
  return query_chunks(p) + (__ldg(p.zeros.num_sums + row) + kZeroRows - 1) / kZeroRows;
}

/// One thread: until sums of a row are zero. The first one's have been before the launch.
__device__ __forceinline__ void wait_for_zeros(const BackwardParams& p, int row) {
  if (row == 0) return;
  const int count = zero_chunks(p, row);
  while (read_turn(&p.zeros.counters[row].done) != count) {
  }
  fence_async_global();
}

/// One warp, of which one lane does most.
template <class Layout>
class ZeroWriter {
 public:
  __device__ __forceinline__ ZeroWriter(const BackwardParams& params, std::uint32_t base)
      : p_(params), zeros_(base + Layout::kZeros) {}

  /// Before all else.
  __device__ __forceinline__ void begin(int lane) const {
    for (int i = lane; i < Layout::kZeroBytes / 16; i += 32) {
      store_words(zeros_ + 16 * i, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_async_shared();
    __syncwarp();
  }
  /// A unit of `row` has been taken.
  __device__ __forceinline__ void look_ahead(int row) {
    last_row_ = min(row + 1, p_.zeros.num_rows - 1);
  }
  /// There are no more units.
  __device__ __forceinline__ void look_at_all() { last_row_ = p_.zeros.num_rows - 1; }

  __device__ __forceinline__ bool has_work() const { return is_writing_ || row_ <= last_row_; }
  /// Counts the chunk before, takes one. All lanes.
  __device__ __forceinline__ void advance(int lane) {
    int is_taken = 0;
    if (lane == 0) {
      if (is_writing_) {
        ptx::bulk_wait<0>();
        fence_async_global();
        pass_turn(&p_.zeros.counters[written_row_].done);
      }
      if (row_ <= last_row_) {
        const int index = atomicAdd(&p_.zeros.counters[row_].next, 1);
        is_taken = write(index) ? 1 : 0;
      }
    }
    is_writing_ = __shfl_sync(~0u, is_taken, 0) != 0;
    written_row_ = row_;
    if (!is_writing_ && row_ <= last_row_) ++row_;
  }

 private:
  /// Starts writing a chunk of row_; false: it has no such chunk. One lane.
  __device__ __forceinline__ bool write(int index) const {
    const int of_queries = query_chunks(p_);
    if (index < of_queries) {
      const std::int64_t first = (std::int64_t{row_} * of_queries + index) * kTileKeys;
      write_rows(p_.places.dq_sums + first * Layout::kDimQk, kTileKeys * Layout::kDimQk * 4);
    } else {
      const int first = (index - of_queries) * kZeroRows;
      const int num_rows = min(__ldg(p_.zeros.num_sums + row_) - first, kZeroRows);
      if (num_rows <= 0) return false;
      const std::int64_t at = row_ * p_.zeros.sums_of_row + first;
      write_rows(p_.lists.dk_sums + at * Layout::kDimQk, num_rows * Layout::kDimQk * 4);
      write_rows(p_.lists.dv_sums + at * Layout::kDimV, num_rows * Layout::kDimV * 4);
    }
    ptx::bulk_commit();
    return true;
  }
  __device__ __forceinline__ void write_rows(float* to, int bytes) const {
#pragma unroll 1
    for (; bytes > 0; bytes -= Layout::kZeroBytes, to += Layout::kZeroBytes / 4) {
      ptx::bulk_store(to, zeros_, static_cast<std::uint32_t>(min(bytes, Layout::kZeroBytes)));
    }
  }

  const BackwardParams& p_;
  const std::uint32_t zeros_;
  int row_ = 1, last_row_ = 0;  // whose chunks are taken, and up to which
  int written_row_ = 0;
  bool is_writing_ = false;
};

}  // namespace fdma::sm90
