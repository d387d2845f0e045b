// Listed keys (key_lists.hpp): what the warps that serve do in place of walking a plan. A unit is
// a KeyItem. Its rows of K and V lie anywhere, so that the serving warp copies them itself, 16
// bytes a lane; masks are made of the interval of each key, which the mask warps read once a unit.
//
// K and V of a unit serve up to 64 tiles of queries, so that copying them by one warp does not
// show.
#pragma once

#include <cstdint>

#include "ptx/async_copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward_params.hpp"
#include "sm90/backward_ring.cuh"
#include "sm90/forward_load.cuh"
#include "sm90/mask_words.cuh"

namespace fdma::sm90 {

/// A listed key as words: key, q_begin, q_end, sum_row. Kernels before this one may have made it.
__device__ __forceinline__ int4 read_listed(const ListedKey* key) {
  return __ldcg(reinterpret_cast<const int4*>(key));
}

/// Publishes unit `index`, or that there is none. One thread. Of PublishedItem q_begin is here the
/// place of the first key in the list, kv_len the queries of the element, partial first_sum,
/// first_segment the first tile, step and first_tile the full ones; q_len says that no key is past
/// an end.
template <class Params>
__device__ __forceinline__ void publish_listed(const Params& p, std::uint32_t slot, int index) {
  PublishedItem unit{};
  unit.num_tiles = kNoItem;
  if (index < __ldcg(p.lists.num_items)) {
    const int4* item = reinterpret_cast<const int4*>(p.lists.items + index);
    const int4 place = __ldcg(item), tiles = __ldcg(item + 1);
    unit.batch = place.x;
    unit.kv_head = place.y;
    unit.head = place.y * p.group_size;
    unit.q_begin = place.z * kTileRows;
    unit.q_len = unit.q_begin + kTileRows;
    unit.partial = place.w;
    unit.kv_len = lengths_of(p.plan, p.lengths, place.x).x;
    unit.first_segment = tiles.x;
    unit.num_tiles = tiles.y - tiles.x;
    unit.step = tiles.z;
    unit.first_tile = tiles.w;
    // Counted from tile 0.
    if (p.turns != nullptr) unit.head_in_group = __ldcg(p.lists.first_ranks + index) - tiles.x;
  }
  store_item(slot, unit);
}

/// The tiles of a unit, full or to be masked by the intervals of its keys.
class ListedTiles {
 public:
  __device__ __forceinline__ explicit ListedTiles(const PublishedItem& unit)
      : tile_(unit.first_segment),
        full_begin_(unit.step),
        full_end_(unit.first_tile),
        q_begin_(unit.q_begin),
        q_len_(unit.kv_len) {}

  __device__ __forceinline__ void next(TileStep& step, TilePlace& place) {
    const bool is_full = tile_ >= full_begin_ && tile_ < full_end_;
    step = {is_full ? PlanSegmentKind::full : PlanSegmentKind::rows, 0, tile_, 0};
    place = {q_begin_, tile_ * kTileKeys, q_len_};
    ++tile_;
  }

 private:
  std::int32_t tile_, full_begin_, full_end_, q_begin_, q_len_;
};

/// As make_unit_masks. Lane l makes the words of keys l, l + 32, ..
template <class Layout>
__device__ __forceinline__ void make_listed_masks(const BackwardParams& p, std::uint32_t base,
                                                  int mask_warp, int lane) {
  constexpr int kLaneKeys = kTileRows / kWarpSize;
  CountedRing<Layout::kMaskSlots> slots;
  CountedRing<Layout::kItemSlots> item_ring;
  int turn = 0;
  for (;; item_ring.advance()) {
    ptx::mbarrier_wait(base + Layout::kItemFull + 8 * item_ring.stage(), item_ring.phase(),
                       "mask: item full");
    const PublishedItem unit =
        read_item(base + Layout::kItem + item_ring.stage() * Layout::kItemSlotBytes);
    if (unit.num_tiles == kNoItem) return;
    int begins[kLaneKeys], ends[kLaneKeys];
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const int4 key = read_listed(p.lists.keys + unit.q_begin + lane + i * kWarpSize);
      begins[i] = key.y;
      ends[i] = key.z;
    }
#pragma unroll 1
    for (int g = 0; g < p.group_size; ++g) {
      ListedTiles tiles(unit);
      for (int n = 0; n < unit.num_tiles; ++n) {
        TileStep step;
        TilePlace place;
        tiles.next(step, place);
        if (step.kind == PlanSegmentKind::full) continue;
        if (turn == mask_warp) {
          const std::uint32_t slot = base + Layout::kMask + slots.stage() * Layout::kMaskBytes;
          ptx::mbarrier_wait(base + Layout::kMaskEmpty + 8 * slots.stage(), slots.phase() ^ 1,
                             "mask: slot empty");
          std::uint32_t any = 0;
#pragma unroll
          for (int i = 0; i < kLaneKeys; ++i) {
            std::uint32_t words[4] = {0, 0, 0, 0};
            add_keys(words, begins[i] - place.key_begin, ends[i] - place.key_begin);
            store_row_words(slot, lane + i * kWarpSize, words);
            any |= words[0] | words[1] | words[2] | words[3];
          }
          any = __reduce_or_sync(~0u, any);
          if (lane == 0) {
            store_word(base + Layout::kMaskHalves + 4 * slots.stage(),
                       ((any & 0xFFFFu) != 0 ? 1 : 0) | ((any >> 16) != 0 ? 2 : 0));
          }
          __syncwarp();
          ptx::mbarrier_arrive_warp(base + Layout::kMaskFull + 8 * slots.stage(), lane);
        }
        turn = next_mask_warp(turn);
        slots.advance();
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(base + Layout::kItemEmpty + 8 * ptx::opaque(item_ring.stage()), lane);
  }
}

/// Starts copying the rows of a tile of listed keys to `to`: of lane l and round n 16 bytes of row
/// 4 n + l / 8 and its panels. `keys[i]` of lane l: key 32 i + l. Calls between() now and then.
template <int kPanels, class Between>
__device__ __forceinline__ void copy_listed_rows(std::uint32_t to, const KeyRows& rows, int batch,
                                                 int kv_head, const int (&keys)[4], int lane,
                                                 const Between& between) {
  constexpr int kRowLanes = kPanelRowBytes / 16, kRoundRows = kWarpSize / kRowLanes;
  const int sub = lane / kRowLanes, piece = lane % kRowLanes;
  const std::uint8_t* from = rows.data + batch * rows.batch_stride + kv_head * rows.head_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll 2
    for (int round = 0; round < kWarpSize / kRoundRows; ++round) {
      const int row = i * kWarpSize + round * kRoundRows + sub;
      const int key = __shfl_sync(~0u, keys[i], round * kRoundRows + sub);
      const std::uint8_t* row_from = from + max(key, 0) * rows.row_stride + 16 * piece;
      const std::uint32_t row_to =
          to + static_cast<std::uint32_t>(row * kPanelRowBytes + ((piece ^ row % 8) << 4));
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int byte = panel * kPanelRowBytes + 16 * piece;
        const bool exists = key >= 0 && byte < rows.row_bytes;
        ptx::copy_16_async(row_to + panel * (kTileRows * kPanelRowBytes),
                           row_from + (exists ? panel * kPanelRowBytes : -16 * piece),
                           exists ? 16 : 0);
      }
    }
    between();
  }
}

/// Loads K and V of the unit published in `slot`; rows that do not exist are zeros. One warp, which
/// calls between() while it copies: others may wait for what it does besides.
template <class Layout, class Between>
__device__ __forceinline__ void load_listed_keys(const BackwardParams& p, std::uint32_t base,
                                                 std::uint32_t slot, int lane,
                                                 const Between& between) {
  const PublishedItem unit = read_item(slot);
  int keys[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    keys[i] = __ldcg(&p.lists.keys[unit.q_begin + i * kWarpSize + lane].key);
  }
  copy_listed_rows<Layout::kPanelsQk>(base + Layout::kK, p.lists.k, unit.batch, unit.kv_head, keys,
                                      lane, between);
  ptx::copies_commit();
  copy_listed_rows<Layout::kPanelsV>(base + Layout::kV, p.lists.v, unit.batch, unit.kv_head, keys,
                                     lane, between);
  ptx::copies_commit();
  const auto hand_on = [&](std::uint32_t full) {
    ptx::fence_async_shared();
    __syncwarp();
    ptx::mbarrier_arrive_warp(full, lane);
  };
  ptx::copies_wait<1>();
  hand_on(base + Layout::kKFull);
  ptx::copies_wait<0>();
  hand_on(base + Layout::kVFull);
}

}  // namespace fdma::sm90
