// The parts of the main backward kernel that are its own where the tiles of a plan give the keys:
// how tile groups are broadcast, how their query tiles are walked, and how mask fragments are made
// of them. worklist.cuh has their counterparts over worklist keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/mask_fragments.cuh"
#include "cuda/tile_walk.cuh"
#include "cuda/work_tiles.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"

namespace fdma::sm90 {

/// Byte offsets of the members that are stored or read singly in the slot of a TileGroup. Pairs
/// are adjacent.
struct TileGroupAt {
  static constexpr std::uint32_t kNumTiles = offsetof(TileGroup, num_tiles);
  static constexpr std::uint32_t kKeyBegin = offsetof(TileGroup, key_begin);
  static constexpr std::uint32_t kHead = offsetof(TileGroup, head);
  static constexpr std::uint32_t kBatch = offsetof(TileGroup, batch);
  static constexpr std::uint32_t kKvLen = offsetof(TileGroup, kv_len);
  static constexpr std::uint32_t kQLen = offsetof(TileGroup, q_len);
  static constexpr std::uint32_t kFirstSegment = offsetof(TileGroup, first_segment);
  static constexpr std::uint32_t kNumSegments = offsetof(TileGroup, num_segments);
  static constexpr std::uint32_t kStep = offsetof(TileGroup, step_or_full_begin);
  static constexpr std::uint32_t kFullEnd = offsetof(TileGroup, full_end);
  static constexpr std::uint32_t kFirstWorkTile = offsetof(TileGroup, first_work_tile_or_accum_row);
  static constexpr std::uint32_t kFirstDocument = offsetof(TileGroup, first_document);
  static constexpr std::uint32_t kLastDocument = offsetof(TileGroup, last_document);
  static constexpr std::uint32_t kKvHead = offsetof(TileGroup, kv_head);
  static constexpr std::uint32_t kNextVisit = offsetof(TileGroup, next_visit);
  static constexpr std::uint32_t kPosition = offsetof(TileGroup, position);
  static constexpr bool is_pair(std::uint32_t a, std::uint32_t b) {
    return a % 8 == 0 && b == a + 4;
  }
};
static_assert(TileGroupAt::is_pair(TileGroupAt::kNumTiles, TileGroupAt::kKeyBegin) &&
              TileGroupAt::is_pair(TileGroupAt::kHead, TileGroupAt::kBatch) &&
              TileGroupAt::is_pair(TileGroupAt::kKvLen, TileGroupAt::kQLen) &&
              TileGroupAt::is_pair(TileGroupAt::kFirstSegment, TileGroupAt::kNumSegments) &&
              TileGroupAt::is_pair(TileGroupAt::kStep, TileGroupAt::kFullEnd) &&
              TileGroupAt::is_pair(TileGroupAt::kFirstWorkTile, TileGroupAt::kFirstDocument) &&
              TileGroupAt::is_pair(TileGroupAt::kLastDocument, TileGroupAt::kKvHead));

/// The tile group broadcast in `slot` with the segments of its g-th query head, as far as the walk
/// over its tiles needs them.
__device__ __forceinline__ TileGroup part_of(const PlanArrays& plan, std::uint32_t slot, int g) {
  const uint4 a = load_words(slot), b = load_words(slot + 16);
  TileGroup part{};
  part.num_tiles = static_cast<int>(a.x);
  part.key_begin = static_cast<int>(a.y);
  part.batch = static_cast<int>(a.w);
  part.kv_len = static_cast<int>(b.x);
  part.q_len = static_cast<int>(b.y);
  part.first_segment = static_cast<int>(b.z);
  part.num_segments = static_cast<int>(b.w);
  part.step_or_full_begin = load_word(slot + TileGroupAt::kStep);
  part.first_work_tile_or_accum_row = load_word(slot + TileGroupAt::kFirstWorkTile);
  if (g > 0 && part.first_segment != kOwnSegments) {
    const WorkTile& work_tile = plan.work_tiles[part.first_work_tile_or_accum_row + g];
    part.num_tiles = work_tile.num_tiles;
    part.first_segment = work_tile.first_segment;
    part.num_segments = work_tile.num_segments;
    part.step_or_full_begin = work_tile.step;
  }
  return part;
}

/// The query tiles of a broadcast tile group for one of its query heads. It is like TileWalk, but
/// can also walk from the last tile to the first (`is_down`, which is params.walks_down).
class TileGroupTiles {
 public:
  __device__ __forceinline__ TileGroupTiles(const PlanSegment* segments, const TileGroup& part,
                                            bool is_down)
      : iterator_(segments,
                  WorkTile{0, 0, 0, part.step_or_full_begin, max(part.first_segment, 0),
                           part.num_segments, 0, 0, 0, kWholeRow},
                  is_down),
        key_begin_(part.key_begin),
        q_len_(part.q_len) {}

  /// Called num_tiles times.
  __device__ __forceinline__ void next(const BackwardParams& p, TileStep& step, TilePlace& place) {
    iterator_.next(step, p.walks_down, p.plan.patterns);
    place = {key_begin_, step.tile * kTileKeys, q_len_};
  }

 private:
  EitherWayIterator iterator_;
  std::int32_t key_begin_;
  std::int32_t q_len_;
};

/// The state of a mask warp's walk over a tile group.
struct alignas(16) MaskWalk {
  TileGroupTiles tiles;
  std::int32_t head;                   ///< of the group
  std::int32_t num_left;               ///< tiles of this head that are left
  std::uint32_t num_masks, num_units;  ///< passed so far
};

/// Moves the state to shared memory and back, so that no register holds it meanwhile. All lanes of
/// a warp call it.
__device__ __forceinline__ void put_aside(std::uint32_t address, const MaskWalk& walk) {
  uint4 words[sizeof(MaskWalk) / 16];
  __builtin_memcpy(words, &walk, sizeof words);
  if (ptx::thread_index() % 32 == 0) {
    for (const uint4& each : words) {
      store_words(address, each);
      address += 16;
    }
  }
}
__device__ __forceinline__ void take_back(std::uint32_t address, MaskWalk& walk) {
  __syncwarp();
  uint4 words[sizeof(MaskWalk) / 16];
  for (uint4& each : words) {
    each = load_words(address);
    address += 16;
  }
  __builtin_memcpy(&walk, words, sizeof words);
}

/// Makes the mask fragments of every second tile that needs them, and stores which quarters of the
/// tile have a cell. One of two warps.
template <class Layout>
__device__ __forceinline__ void make_tile_group_masks(const BackwardParams& p, std::uint32_t base,
                                                      int mask_warp) {
  static_assert(sizeof(MaskWalk) <= Layout::kMaskWalkBytes);
  const auto lane_now = [] { return ptx::thread_index() % 32; };
  const auto work_tile_slot = [&](std::uint32_t num_units) {
    return base + Layout::kItem + num_units % Layout::kWorkTileSlots * Layout::kWorkTileSlotBytes;
  };
  for (std::uint32_t num_masks = 0, num_units = 0;; ++num_units) {
    ptx::mbarrier_wait(base + Layout::kWorkTileFull + 8 * (num_units % Layout::kWorkTileSlots),
                       num_units / Layout::kWorkTileSlots & 1, "mask: work tile full");
    if (load_word(work_tile_slot(num_units) + TileGroupAt::kNumTiles) == kNoWorkTile) return;
#pragma unroll 1
    for (int g = 0; g < p.group_size; ++g) {
      const TileGroup part = part_of(p.plan, work_tile_slot(num_units), g);
      MaskWalk walk{TileGroupTiles(segments_of<Layout>(p.plan, part, work_tile_slot(num_units)),
                                   part, p.walks_down),
                    g, part.num_tiles, num_masks, num_units};
      for (; walk.num_left > 0; --walk.num_left) {
        TileStep step;
        TilePlace place;
        walk.tiles.next(p, step, place);
        const std::uint32_t work_tile = work_tile_slot(walk.num_units);
        // Queries past the end need no mask bits (their lse is +inf), but keys past the end do.
        const int num_rows = load_word(work_tile + TileGroupAt::kKvLen) -
                             load_word(work_tile + TileGroupAt::kKeyBegin);
        if (step.kind == PlanSegmentKind::full && num_rows >= kTileRows) continue;
        const std::uint32_t number = walk.num_masks++;
        if (static_cast<int>(number % kMaskWarps) != mask_warp) continue;
        const std::uint32_t parked = base + Layout::kMaskWalks + mask_warp * Layout::kMaskWalkBytes;
        const std::uint32_t slot =
            base + Layout::kMask + number % Layout::kMaskSlots * Layout::kMaskBytes;
        ptx::mbarrier_wait(base + Layout::kMaskEmpty + 8 * (number % Layout::kMaskSlots),
                           ~(number / Layout::kMaskSlots) & 1, "mask: slot empty");
        put_aside(parked, walk);
        if (step.kind == PlanSegmentKind::full) {
          write_whole_rows(slot, num_rows, min(place.kv_len - place.key_begin, kTileKeys),
                           lane_now());
        } else {
          write_mask<1>(slot, p, work_tile, work_tile + Layout::kWorkTileBand, step, place,
                        lane_now());
        }
        take_back(parked, walk);
        const std::uint32_t made = (walk.num_masks - 1) % Layout::kMaskSlots;
        const std::uint32_t quarters =
            quarters_with_cells(base + Layout::kMask + made * Layout::kMaskBytes, lane_now());
        if (lane_now() == 0) {
          store_word(base + Layout::kMaskQuarters + 4 * made, static_cast<int>(quarters));
        }
        __syncwarp();
        ptx::mbarrier_arrive_warp(base + Layout::kMaskFull + 8 * made, lane_now());
      }
      g = walk.head;
      num_masks = walk.num_masks;
      num_units = walk.num_units;
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(
        base + Layout::kWorkTileEmpty + 8 * (num_units % Layout::kWorkTileSlots), lane_now());
  }
}

/// Broadcasts a work tile of a plan. One thread. Here and below each member of TileGroup is
/// stored as soon as it is known, because registers are few.
__device__ __forceinline__ void broadcast_work_tile(const BackwardParams& p, std::uint32_t slot,
                                                    int index) {
  const bool is_ordered =
      p.dq_semaphores != nullptr && index < p.plan.num_work_tiles / p.group_size;
  store_word(slot + TileGroupAt::kNextVisit,
             is_ordered ? __ldg(p.plan.first_positions + index) : 0);
  if (is_ordered) index = __ldg(p.plan.tile_groups + index);
  index *= p.group_size;
  if (index >= p.plan.num_work_tiles) {
    store_word(slot + TileGroupAt::kNumTiles, kNoWorkTile);
    return;
  }
  const WorkTile* work_tile = p.plan.work_tiles + index;
  store_words2(slot + TileGroupAt::kFirstWorkTile, index, 0);
  store_words2(slot + TileGroupAt::kFirstSegment, work_tile->first_segment,
               work_tile->num_segments);
  store_words2(slot + TileGroupAt::kStep, work_tile->step, 0);
  store_words2(slot + TileGroupAt::kNumTiles, work_tile->num_tiles, work_tile->q_tile * kTileRows);
  const int2 lengths = lengths_of(p.plan, p.lengths, work_tile->batch);
  store_words2(slot + TileGroupAt::kKvLen, lengths.y, lengths.x);
  store_words2(slot + TileGroupAt::kHead, work_tile->head, work_tile->batch);
  store_words2(slot + TileGroupAt::kLastDocument, 0, work_tile->head / p.group_size);
}

/// Broadcasts the tile row of a closed-form plan that is tile group `index` or a later one, or
/// kNoWorkTile if there is none. One thread.
template <class Layout>
__device__ __forceinline__ void broadcast_row(const BackwardParams& p, std::uint32_t slot,
                                              int index) {
  const TileRow* row;
  for (;; index = static_cast<int>(gridDim.x) + atomicAdd(p.next_tile_group, 1)) {
    const WorkTile work_tile = read_work(p, index * p.group_size);
    if (work_tile.num_tiles == kNoWorkTile) {
      store_word(slot + TileGroupAt::kNumTiles, kNoWorkTile);
      return;
    }
    row = row_of(p, work_tile);
    if (__ldcg(&row->tiles.num_tiles) == kNoRow) continue;
    store_words2(slot + TileGroupAt::kHead, work_tile.head, work_tile.batch);
    store_words2(slot + TileGroupAt::kFirstWorkTile, index * p.group_size, work_tile.q_tile);
    break;
  }
  const int2 head = load_words2(slot + TileGroupAt::kHead);
  const int2 lengths = lengths_of(p.plan, p.lengths, head.y);
  store_words2(slot + TileGroupAt::kKvLen, lengths.y, lengths.x);
  store_words2(slot + TileGroupAt::kLastDocument, row->tiles.last_document, head.x / p.group_size);
  const int first_key = row->tiles.q_tile * kTileRows;
  store_words2(slot + TileGroupAt::kNumTiles, row->tiles.num_tiles, first_key);
  store_words2(slot + TileGroupAt::kStep, 0, 0);
  if (p.dq_semaphores != nullptr) {
    const ClosedFormColumns columns =
        closed_form_columns(p.plan, p.lengths, head.y, lengths.x, lengths.y);
    store_word(slot + TileGroupAt::kNextVisit, 2 * load_word(slot + TileGroupAt::kFirstDocument) +
                                                   (columns.is_near(first_key) ? 1 : 0));
  }
  store_word(slot + TileGroupAt::kFirstDocument, row->tiles.first_document);
  int num_segments = 0;
#pragma unroll 1
  for (const ClosedFormWalk::TileRun& tile_run : row->tiles.tile_runs) {
    store_tile_run(slot + Layout::kWorkTileSegments, tile_run, num_segments);
  }
  store_words2(slot + TileGroupAt::kFirstSegment, kOwnSegments, num_segments);
  store_band(slot + Layout::kWorkTileBand, row->band);
}

}  // namespace fdma::sm90
