// The parts of the main backward kernel that replace the walk over a plan where a kv worklist gives
// the keys (plan/kv_worklist.hpp). A tile group is a KvWorkTile.
//
// The rows of K and V of a tile group are scattered, so the computing warps copy them, 16 bytes per
// thread and copy. They do so before they add dV and dK of the last tile group to memory through
// the same pipe, because their products have nothing to read meanwhile. (A separate warp took 7,500
// to 10,000 cycles for the copies, with everybody waiting.) The helper warp has looked up the rows
// before. Mask fragments are made from the interval of each key, which the mask warps read once per
// tile group.
#pragma once

#include <cstdint>

#include "cuda/mask_fragments.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"
#include "sm90/forward/load.cuh"

namespace fdma::sm90 {

inline constexpr int kWarpRows = 16;  ///< rows of a tile that belong to one computing warp

/// A worklist key as words: key, q_begin, q_end, accum_row. It is loaded past L1, because kernels
/// before this one may have made it.
__device__ __forceinline__ int4 read_worklist_entry(const WorklistEntry* key) {
  return __ldcg(reinterpret_cast<const int4*>(key));
}

/// Broadcasts tile group `index`, or kNoWorkTile if there is none. One thread.
template <class Params>
__device__ __forceinline__ void broadcast_worklist_entry(const Params& p, std::uint32_t slot,
                                                         int index) {
  TileGroup tile_group{};
  tile_group.num_tiles = kNoWorkTile;
  if (index < __ldcg(p.worklist.num_work_tiles)) {
    const int4* work_tile = reinterpret_cast<const int4*>(p.worklist.work_tiles + index);
    const int4 place = __ldcg(work_tile), tiles = __ldcg(work_tile + 1);
    tile_group.batch = place.x;
    tile_group.kv_head = place.y;
    tile_group.head = place.y * p.group_size;
    tile_group.key_begin = place.z * kTileRows;
    tile_group.kv_len = tile_group.key_begin + kTileRows;
    tile_group.first_work_tile_or_accum_row = place.w;
    tile_group.q_len = lengths_of(p.plan, p.lengths, place.x).x;
    tile_group.first_segment = tiles.x;
    tile_group.num_tiles = tiles.y - tiles.x;
    tile_group.step_or_full_begin = tiles.z;
    tile_group.full_end = tiles.w;
    // Counted from tile 0.
    if (p.dq_semaphores != nullptr)
      tile_group.next_visit = __ldcg(p.worklist.first_positions + index) - tiles.x;
  }
  store_tile_group(slot, tile_group);
}

/// The tiles of a tile group: full ones, or ones masked by the intervals of the tile group's keys.
class ListedTiles {
 public:
  __device__ __forceinline__ explicit ListedTiles(const TileGroup& tile_group)
      : tile_(tile_group.first_segment),
        full_begin_(tile_group.step_or_full_begin),
        full_end_(tile_group.full_end),
        first_entry_(tile_group.key_begin),
        q_len_(tile_group.q_len) {}

  __device__ __forceinline__ void next(const BackwardParams& /*p*/, TileStep& step,
                                       TilePlace& place) {
    const bool is_full = tile_ >= full_begin_ && tile_ < full_end_;
    step = {is_full ? PlanSegmentKind::full : PlanSegmentKind::rows, 0, tile_, 0};
    place = {first_entry_, tile_ * kTileKeys, q_len_};
    ++tile_;
  }

 private:
  std::int32_t tile_, full_begin_, full_end_, first_entry_, q_len_;
};

/// The counterpart of make_tile_group_masks. Lane l makes the words of keys l, l + 32, ..
template <class Layout>
__device__ __forceinline__ void make_listed_masks(const BackwardParams& p, std::uint32_t base,
                                                  int mask_warp, int lane) {
  constexpr int kLaneKeys = kTileRows / kWarpSize;
  CountedRing<Layout::kMaskSlots> slots;
  CountedRing<Layout::kWorkTileSlots> work_tile_ring;
  int dq_position = 0;
  for (;; work_tile_ring.advance()) {
    ptx::mbarrier_wait(base + Layout::kWorkTileFull + 8 * work_tile_ring.stage(),
                       work_tile_ring.phase(), "mask: work tile full");
    const TileGroup tile_group =
        read_tile_group(base + Layout::kItem + work_tile_ring.stage() * Layout::kWorkTileSlotBytes);
    if (tile_group.num_tiles == kNoWorkTile) return;
    int begins[kLaneKeys], ends[kLaneKeys];
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const int4 key =
          read_worklist_entry(p.worklist.keys + tile_group.key_begin + lane + i * kWarpSize);
      begins[i] = key.y;
      ends[i] = key.z;
    }
#pragma unroll 1
    for (int g = 0; g < p.group_size; ++g) {
      ListedTiles tiles(tile_group);
      for (int n = 0; n < tile_group.num_tiles; ++n) {
        TileStep step;
        TilePlace place;
        tiles.next(p, step, place);
        if (step.kind == PlanSegmentKind::full) continue;
        if (dq_position == mask_warp) {
          const std::uint32_t slot = base + Layout::kMask + slots.stage() * Layout::kMaskBytes;
          ptx::mbarrier_wait(base + Layout::kMaskEmpty + 8 * slots.stage(), slots.phase() ^ 1,
                             "mask: slot empty");
          std::uint32_t quarters = 0;
#pragma unroll
          for (int i = 0; i < kLaneKeys; ++i) {
            std::uint32_t words[4] = {0, 0, 0, 0};
            add_keys(words, begins[i] - place.key_begin, ends[i] - place.key_begin);
            store_row_fragments(slot, lane + i * kWarpSize, words);
            quarters |= quarter_bits(words[0] | words[1] | words[2] | words[3])
                        << (i < kLaneKeys / 2 ? 0 : 2);
          }
          quarters = __reduce_or_sync(~0u, quarters);
          if (lane == 0) {
            store_word(base + Layout::kMaskQuarters + 4 * slots.stage(),
                       static_cast<int>(quarters));
          }
          __syncwarp();
          ptx::mbarrier_arrive_warp(base + Layout::kMaskFull + 8 * slots.stage(), lane);
        }
        dq_position = next_mask_warp(dq_position);
        slots.advance();
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(
        base + Layout::kWorkTileEmpty + 8 * ptx::opaque(work_tile_ring.stage()), lane);
  }
}

/// Looks up the keys of the tile group broadcast in `slot` and writes them to shared memory, to
/// `entries` and `biases`. One warp.
template <class Layout>
__device__ __forceinline__ void look_up_keys(const BackwardParams& p, std::uint32_t slot,
                                             std::uint32_t entries, std::uint32_t biases,
                                             int lane) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const TileGroup tile_group = read_tile_group(slot);
  int4 keys[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    keys[i] = read_worklist_entry(p.worklist.keys + tile_group.key_begin + i * kWarpSize + lane);
  }
  const float* from = p.key_bias.head(tile_group.batch, tile_group.kv_head);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t at = static_cast<std::uint32_t>(i * kWarpSize + lane);
    const bool has_bias = p.key_bias.data != nullptr && keys[i].x >= 0;
    store_word(biases + 4 * at, __float_as_int(has_bias ? __ldg(from + keys[i].x) * kLog2E : 0.0f));
    store_words2(entries + 8 * at, keys[i].x, keys[i].w);
  }
  if (lane == 0)
    store_words2(entries + 8 * Layout::kTileGroupKeys, tile_group.batch, tile_group.kv_head);
}

/// Starts copying 16 rows of worklist keys to the rows from `first_row` on of a tile. In round n
/// lane l copies 16 bytes of each panel of row 4 n + l / 8. Rows that do not exist are zeros. One
/// warp.
template <int kPanels>
__device__ __forceinline__ void copy_worklist_rows(std::uint32_t to, const KeyRows& rows,
                                                   int2 place, std::uint32_t entries, int first_row,
                                                   int lane) {
  constexpr int kRowLanes = kPanelRowBytes / 16, kRoundRows = kWarpSize / kRowLanes;
  const int piece = lane % kRowLanes;
  const std::uint8_t* from = rows.strides.head_of(rows.data, place.x, place.y);
#pragma unroll
  for (int round = 0; round < kWarpRows / kRoundRows; ++round) {
    const int row = first_row + round * kRoundRows + lane / kRowLanes;
    const int key = load_word(entries + 8 * row);
    const std::uint8_t* row_from = from + max(key, 0) * rows.strides.row + 16 * piece;
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
}

}  // namespace fdma::sm90
