// Stores of outputs. One thread of the first warpgroup copies halves of tiles from the Q buffers to
// memory by TMA. Rows that TMA may not store are written by the threads that compute
// (sm90/forward/compute.cuh).
#pragma once

#include <cstdint>

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "sm90/forward/load.cuh"
#include "sm90/forward/params.hpp"

namespace fdma::sm90 {

/// First query row of half `half` of a tile.
__device__ __forceinline__ int first_query(const ForwardParams& p, const BroadcastTile& work_tile,
                                           int half) {
  return work_tile.q_begin + (half * kHalfRows >> p.plan.pack_shift);
}

/// True iff TMA stores this half of a work tile. TMA cuts at the end of the tensor. It therefore
/// does not store a half whose rows lie past the element's end but inside the tensor, nor partial
/// results.
template <class Layout>
__device__ __forceinline__ bool is_stored_by_copy(const ForwardParams& p,
                                                  const BroadcastTile& work_tile, int half) {
  if (Layout::kQBuffers == 1 || work_tile.partial != kWholeRow) return false;
  return first_query(p, work_tile, half + 1) <= work_tile.q_len || p.out_rows == work_tile.q_len;
}

/// Stores outputs from the Q buffers and releases the buffers. One thread. With one Q buffer it has
/// nothing to do.
template <class Layout>
__device__ __forceinline__ void store_tiles(const ForwardParams& p, std::uint32_t base) {
  ptx::Ring<Layout::kQBuffers> q_ring;
  ptx::Ring<Layout::kWorkTileSlots> work_tile_ring;
  for (;;) {
    ptx::mbarrier_wait(base + Layout::kWorkTileFull + 8 * work_tile_ring.stage,
                       work_tile_ring.phase, "store: work tile full");
    const BroadcastTile work_tile =
        read_work_tile(base + Layout::kItem + work_tile_ring.stage * Layout::kWorkTileSlotBytes);
    ptx::mbarrier_arrive(base + Layout::kWorkTileEmpty + 8 * work_tile_ring.stage);
    work_tile_ring.advance();
    if (work_tile.num_tiles == kNoWorkTile) break;
    const std::uint32_t buffer = base + Layout::kQ + q_ring.stage * Layout::kQBytes;
#pragma unroll
    for (int half = 1; half >= 0; --half) {  // the second warpgroup goes first
      ptx::mbarrier_wait(base + Layout::kOutFull + 8 * (2 * q_ring.stage + half), q_ring.phase,
                         "store: output full");
      const int row = first_query(p, work_tile, half);
      if (row < work_tile.q_len && is_stored_by_copy<Layout>(p, work_tile, half)) {
#pragma unroll
        for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
          ptx::tma_store_5d(&p.out_map,
                            buffer + (half * Layout::kPanelsQk + panel) * Layout::kPanelBytesQ,
                            panel * kPanelColumns, work_tile.head_in_group, row, work_tile.kv_head,
                            work_tile.batch);
        }
      }
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(base + Layout::kQEmpty + 8 * q_ring.stage);
    q_ring.advance();
  }
  ptx::bulk_wait<0>();
}

}  // namespace fdma::sm90
