// The warps that serve those that compute: one thread takes work items and has Q, K and V copied to
// shared memory, two warps make the mask words of the tiles that need them, one thread has outputs
// copied to memory. Loads and masks walk the same segments, so that they agree without talking.
#pragma once

#include <cstdint>

#include "fdma/kernels/segment_iterator.hpp"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/forward_params.hpp"
#include "sm90/mask_words.cuh"

namespace fdma::sm90 {

/// The steps of a published item; an item without keys has one, of no cells.
class TileWalk {
 public:
  __device__ __forceinline__ TileWalk(const PlanArrays& plan, const PublishedItem& item)
      : iterator_(plan.segments,
                  WorkItem{0, 0, 0, item.step, item.first_segment, item.num_segments, 0, 0}),
        q_begin_(item.q_begin),
        kv_len_(item.kv_len) {}

  /// To be called num_tiles times.
  __device__ __forceinline__ void next(TileStep& step, TilePlace& place) {
    place = {q_begin_, 0, kv_len_};
    if (iterator_.next(step)) {
      place.key_begin = step.tile * kTileKeys;
    } else {
      step = {PlanSegmentKind::full, 0, 0, 0};
      place.kv_len = 0;
    }
  }

 private:
  SegmentIterator iterator_;
  std::int32_t q_begin_;
  std::int32_t kv_len_;
};

__device__ __forceinline__ bool needs_words(const TileStep& step, const TilePlace& place) {
  return step.kind != PlanSegmentKind::full || is_ragged(place);
}

/// True iff V has rows past the element's last key that a copy would bring along: they may hold
/// anything, and 0 * NaN is NaN.
__device__ __forceinline__ bool has_foreign_tail(const TilePlace& place, int v_rows) {
  return is_ragged(place) && v_rows > place.kv_len;
}

constexpr int kNoTail = -1;

/// Mask warps take the tiles that need words in turn.
__device__ __forceinline__ int next_mask_warp(int warp) {
  return warp == kMaskWarps - 1 ? 0 : warp + 1;
}

template <class Layout>
__device__ __forceinline__ std::uint32_t v_tail_barrier(std::uint32_t base, int stage,
                                                        int mask_warp) {
  return base + Layout::kVTail + 8 * (stage * kMaskWarps + mask_warp);
}

/// Takes items until there are none, publishes each and loads its tiles in the order in which they
/// are needed: K of a tile, then V of the tile before, across items. One thread.
template <int kHeadDim, bool kGeneral>
__device__ __forceinline__ void load_tiles(const ForwardParams& p, std::uint32_t base) {
  using Layout = ForwardLayout<kHeadDim>;
  ptx::Ring<Layout::kStages> k_ring, v_ring;
  ptx::Ring<Layout::kQBuffers> q_ring;
  ptx::Ring<Layout::kItemSlots> item_ring;

  // The V that comes next: that of the last tile whose K was loaded.
  struct Pending {
    int key_begin, kv_head, batch;
    int tail_warp;  ///< the mask warp that zeroes its tail, or kNoTail
  } pending{};
  const auto load_pending = [&] {
    const int stage = v_ring.stage;
    const std::uint32_t full = pending.tail_warp == kNoTail
                                   ? base + Layout::kVFull + 8 * stage
                                   : v_tail_barrier<Layout>(base, stage, pending.tail_warp);
    ptx::mbarrier_wait(base + Layout::kVEmpty + 8 * stage, v_ring.phase ^ 1, "load: V empty");
    if (pending.tail_warp == kNoTail) {
      // Where a tail is zeroed, a warp arrives in place of this thread.
      for (std::uint32_t i = 1; i < ptx::kWarpArrivals; ++i) ptx::mbarrier_arrive(full);
    }
    ptx::mbarrier_arrive_expect(full, Layout::kTileBytes);
    ptx::tma_load_5d(base + Layout::kV + stage * Layout::kTileBytes, &p.v, full, 0,
                     pending.key_begin, 0, pending.kv_head, pending.batch, ptx::kEvictLast);
    v_ring.advance();
  };

  // The item that comes next is read while this one is loaded, its index an item earlier.
  bool is_first = true;
  int mask_warp = 0;  // that makes the words of the next tile that needs them
  const auto read_work = [&](std::int32_t index) {
    return index < p.plan.num_items ? p.plan.items[index] : WorkItem{0, 0, 0, 0, 0, 0, kNoItem, 0};
  };
  const auto take_index = [&] {
    return static_cast<std::int32_t>(gridDim.x) + atomicAdd(p.next_item, 1);
  };
  WorkItem next = read_work(static_cast<std::int32_t>(blockIdx.x));
  std::int32_t index_after = take_index();
  for (;;) {
    PublishedItem item{};
    item.num_tiles = kNoItem;
    if (next.num_tiles != kNoItem) {
      const int2 lengths = __ldg(p.plan.lengths + next.batch);
      item = {max(next.num_tiles, 1),
              next.q_tile * kTileRows,
              next.head,
              next.batch,
              lengths.x,
              lengths.y,
              next.first_segment,
              next.num_segments,
              next.step};
    }
    ptx::mbarrier_wait(base + Layout::kItemEmpty + 8 * item_ring.stage, item_ring.phase ^ 1,
                       "load: item empty");
    const std::uint32_t slot = base + Layout::kItem + item_ring.stage * Layout::kItemBytes;
    store_words(slot, make_uint4(item.num_tiles, item.q_begin, item.head, item.batch));
    store_words(slot + 16,
                make_uint4(item.q_len, item.kv_len, item.first_segment, item.num_segments));
    store_words(slot + 32, make_uint4(item.step, 0, 0, 0));
    ptx::mbarrier_arrive(base + Layout::kItemFull + 8 * item_ring.stage);
    item_ring.advance();
    if (item.num_tiles == kNoItem) break;
    next = read_work(index_after);
    index_after = take_index();

    const int kv_head = item.head / p.group_size;
    const std::uint32_t q_full = base + Layout::kQFull + 8 * q_ring.stage;
    const std::uint32_t q = base + Layout::kQ + q_ring.stage * Layout::kQBytes;
    ptx::mbarrier_wait(base + Layout::kQEmpty + 8 * q_ring.stage, q_ring.phase ^ 1,
                       "load: Q empty");
    ptx::mbarrier_arrive_expect(q_full, Layout::kQBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::tma_load_5d(q + half * (Layout::kQBytes / 2), &p.q, q_full, 0,
                       item.q_begin + half * kHalfRows, 0, item.head, item.batch, ptx::kEvictFirst);
    }
    q_ring.advance();

    TileWalk walk(p.plan, item);
    for (int n = 0; n < item.num_tiles; ++n) {
      TileStep step;
      TilePlace place;
      walk.next(step, place);
      const int stage = k_ring.stage;
      const std::uint32_t k_full = base + Layout::kKFull + 8 * stage;
      ptx::mbarrier_wait(base + Layout::kKEmpty + 8 * stage, k_ring.phase ^ 1, "load: K empty");
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(base + Layout::kIsMasked + 4 * stage),
                   "r"(static_cast<int>(needs_words(step, place)))
                   : "memory");
      ptx::mbarrier_arrive_expect(k_full, Layout::kTileBytes);
      ptx::tma_load_5d(base + Layout::kK + stage * Layout::kTileBytes, &p.k, k_full, 0,
                       place.key_begin, 0, kv_head, item.batch, ptx::kEvictLast);
      k_ring.advance();
      if (!is_first) load_pending();
      is_first = false;
      const int tail_warp = has_foreign_tail(place, p.v_rows) ? mask_warp : kNoTail;
      pending = {place.key_begin, kv_head, item.batch, tail_warp};
      if (kGeneral || needs_words(step, place)) mask_warp = next_mask_warp(mask_warp);
    }
  }
  if (!is_first) load_pending();
}

__device__ __forceinline__ PublishedItem read_item(std::uint32_t slot) {
  const uint4 a = load_words(slot), b = load_words(slot + 16), c = load_words(slot + 32);
  return {static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z),
          static_cast<int>(a.w), static_cast<int>(b.x), static_cast<int>(b.y),
          static_cast<int>(b.z), static_cast<int>(b.w), static_cast<int>(c.x)};
}

/// Zeroes rows [first_row, 128) of a tile of V and hands the tile on.
template <int kHeadDim>
__device__ __forceinline__ void zero_tail(std::uint32_t base, int stage, int first_row, int lane) {
  using Layout = ForwardLayout<kHeadDim>;
  constexpr int kPieces = kPanelRowBytes / 16;
  const std::uint32_t tile = base + Layout::kV + stage * Layout::kTileBytes;
#pragma unroll
  for (int panel = 0; panel < kHeadDim / kPanelColumns; ++panel) {
    const std::uint32_t rows = tile + panel * kTileKeys * kPanelRowBytes;
    for (int i = first_row * kPieces + lane; i < kTileKeys * kPieces; i += kWarpSize) {
      store_words(rows + 16 * i, make_uint4(0, 0, 0, 0));
    }
  }
  ptx::fence_async_shared();
  __syncwarp();
  ptx::mbarrier_arrive_warp(base + Layout::kVFull + 8 * stage, lane);
}

/// Makes the mask words (general kernel: and the biases) of every second tile that needs them.
/// One of two warps.
template <int kHeadDim, bool kGeneral>
__device__ __forceinline__ void make_masks(const ForwardParams& p, std::uint32_t base,
                                           int mask_warp, int lane) {
  using Layout = ForwardLayout<kHeadDim>;
  constexpr float kLog2E = 1.44269504088896340736f;
  ptx::Ring<Layout::kMaskSlots> slots;
  ptx::Ring<Layout::kStages> v_ring;
  ptx::Ring<Layout::kItemSlots> item_ring;
  int turn = 0;                   // whose tile the next one is
  std::uint32_t tail_phases = 0;  // of this warp's barriers kVTail, a bit a stage
  for (;;) {
    ptx::mbarrier_wait(base + Layout::kItemFull + 8 * item_ring.stage, item_ring.phase,
                       "mask: item full");
    const PublishedItem item =
        read_item(base + Layout::kItem + item_ring.stage * Layout::kItemBytes);
    __syncwarp();
    ptx::mbarrier_arrive_warp(base + Layout::kItemEmpty + 8 * item_ring.stage, lane);
    item_ring.advance();
    if (item.num_tiles == kNoItem) return;
    TileWalk walk(p.plan, item);
    for (int n = 0; n < item.num_tiles; ++n, v_ring.advance()) {
      TileStep step;
      TilePlace place;
      walk.next(step, place);
      if (!kGeneral && !needs_words(step, place)) continue;
      if (turn == mask_warp) {
        const std::uint32_t slot = base + Layout::kMask + slots.stage * Layout::kMaskBytes;
        ptx::mbarrier_wait(base + Layout::kMaskEmpty + 8 * slots.stage, slots.phase ^ 1,
                           "mask: slot empty");
        if (needs_words(step, place)) write_mask(slot, p.plan, step, place, lane);
        if constexpr (kGeneral) {
          const std::uint32_t biases = base + Layout::kBias + slots.stage * Layout::kBiasBytes;
          const float* bias = p.key_bias + item.batch * p.bias_batch_stride +
                              item.head / p.group_size * p.bias_head_stride;
          for (int i = lane; i < kTileKeys; i += kWarpSize) {
            const int key = place.key_begin + i;
            const float value =
                p.key_bias != nullptr && key < place.kv_len ? __ldg(bias + key) * kLog2E : 0.0f;
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(biases + 4 * i), "f"(value) : "memory");
          }
        }
        __syncwarp();
        ptx::mbarrier_arrive_warp(base + Layout::kMaskFull + 8 * slots.stage, lane);
        if (has_foreign_tail(place, p.v_rows)) {
          ptx::mbarrier_wait(v_tail_barrier<Layout>(base, v_ring.stage, mask_warp),
                             tail_phases >> v_ring.stage & 1, "mask: V tail");
          tail_phases ^= 1u << v_ring.stage;
          zero_tail<kHeadDim>(base, v_ring.stage, place.kv_len - place.key_begin, lane);
        }
      }
      turn = next_mask_warp(turn);
      slots.advance();
    }
  }
}

/// True iff the copy engine stores this half of an item: it cuts at the end of the tensor, so not
/// where rows of the half lie past the element's end but in the tensor.
__device__ __forceinline__ bool is_stored_by_copy(const ForwardParams& p, const PublishedItem& item,
                                                  int half) {
  return item.q_begin + (half + 1) * kHalfRows <= item.q_len || p.out_rows == item.q_len;
}

/// Stores outputs from the buffers of Q and gives the buffers back. One thread.
template <int kHeadDim>
__device__ __forceinline__ void store_tiles(const ForwardParams& p, std::uint32_t base) {
  using Layout = ForwardLayout<kHeadDim>;
  ptx::Ring<Layout::kQBuffers> q_ring;
  ptx::Ring<Layout::kItemSlots> item_ring;
  for (;;) {
    ptx::mbarrier_wait(base + Layout::kItemFull + 8 * item_ring.stage, item_ring.phase,
                       "store: item full");
    const PublishedItem item =
        read_item(base + Layout::kItem + item_ring.stage * Layout::kItemBytes);
    ptx::mbarrier_arrive(base + Layout::kItemEmpty + 8 * item_ring.stage);
    item_ring.advance();
    if (item.num_tiles == kNoItem) break;
    const std::uint32_t buffer = base + Layout::kQ + q_ring.stage * Layout::kQBytes;
#pragma unroll
    for (int half = 1; half >= 0; --half) {  // the second warpgroup goes first
      ptx::mbarrier_wait(base + Layout::kOutFull + 8 * (2 * q_ring.stage + half), q_ring.phase,
                         "store: output full");
      const int row = item.q_begin + half * kHalfRows;
      if (row < item.q_len && is_stored_by_copy(p, item, half)) {
        ptx::tma_store_5d(&p.out_map, buffer + half * (Layout::kQBytes / 2), 0, row, 0, item.head,
                          item.batch);
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
