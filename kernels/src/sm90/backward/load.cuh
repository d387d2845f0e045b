// The warps that feed the computing warpgroups of the backward kernel (the first warpgroup). One
// thread (TileGroupLoader) issues the copies of K, V, Q and dO to shared memory. Two warps make
// mask fragments. One helper warp (run_helper_warp) executes the loading thread's requests: it
// takes the next tile group (128 keys of a KV head), looks up worklist keys and zeroes rows past a
// length. In deterministic calls it also adds dQ in accumulation order, and in ordinary calls it
// may clear accumulators ahead (zero_fill.cuh). Masks are made before loads, because the loading
// thread skips steps without a cell.
//
// The file is long, so that everything these warps hand to each other is read in one place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/relaxed.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/dq_semaphore.cuh"
#include "sm90/backward/key_reader.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"
#include "sm90/backward/zero_fill.cuh"
#include "sm90/forward/load.cuh"

namespace fdma::sm90 {

/// Byte offset in a HelperTask, whose first four words are stored together.
inline constexpr std::uint32_t kHelperTaskBarrierAt = offsetof(HelperTask, full);
static_assert(kHelperTaskBarrierAt == 16);

template <class Layout>
__device__ __forceinline__ std::uint32_t helper_task_slot(std::uint32_t base, int stage) {
  return base + Layout::kHelperTask + stage * static_cast<int>(sizeof(HelperTask));
}

/// Zeroes rows [first_row, num_rows) of panels of a tile. One warp.
__device__ __forceinline__ void zero_tile_rows(std::uint32_t tile, int num_panels, int first_row,
                                               int num_rows, int lane) {
  constexpr int kPieces = kPanelRowBytes / 16;
  for (int panel = 0; panel < num_panels; ++panel) {
    const std::uint32_t rows = tile + panel * num_rows * kPanelRowBytes;
    for (int i = first_row * kPieces + lane; i < num_rows * kPieces; i += kWarpSize) {
      store_words(rows + 16 * i, make_uint4(0, 0, 0, 0));
    }
  }
  ptx::fence_async_shared();
}

/// Broadcasts a first tile group, then executes the requests of TileGroupLoader and adds dQ in
/// accumulation order. One warp.
template <class Layout, class Reader, bool kZeroFill>
__device__ __forceinline__ void run_helper_warp(const BackwardParams& p, std::uint32_t base,
                                                int lane) {
  // The grid before sets the tile group counter and orders tile rows
  if (lane == 0) ptx::wait_for_grid_before();
  const auto adds_in_order = [&] { return Layout::kAddsInBulk && p.dq_semaphores != nullptr; };
  // Its counters lie in shared memory and are read anew, because registers are few.
  const auto helper_tasks = [&] {
    CountedRing<Layout::kHelperTaskSlots> ring;
    ring.count = static_cast<std::uint32_t>(load_word(base + Layout::kServed));
    return ring;
  };
  const ZeroFillWriter<Layout> zero_fill(p, base);
  const auto has_zero_fill = [&] { return kZeroFill && p.zero_fill.counters != nullptr; };
  for (;;) {
    CountedRing<Layout::kWorkTileSlots> work_tile_ring;
    work_tile_ring.count = static_cast<std::uint32_t>(load_word(base + Layout::kServed + 4));
    __syncwarp();  // all have read it
    const bool is_first = work_tile_ring.count == 0;
    uint4 helper_task = make_uint4(kHelperTaskTileGroup, 0, 0, 0);
    if (!is_first) {
      const auto ring = helper_tasks();
      const std::uint32_t full = base + Layout::kHelperTaskFull + 8 * ring.stage();
      if (adds_in_order()) {
        DqSemaphoreWaiter<Layout> dq_semaphores(p, base);
        do {
          if (!dq_semaphores.advance(lane)) return;
        } while (!__all_sync(~0u, ptx::mbarrier_test(full, ring.phase())));
        dq_semaphores.put_aside(lane);
      } else {
        while (has_zero_fill() && __any_sync(~0u, !ptx::mbarrier_test(full, ring.phase())) &&
               zero_fill.advance(lane)) {
        }
        ptx::mbarrier_wait(full, ring.phase(), "helper: task full");
      }
      helper_task = load_words(helper_task_slot<Layout>(base, ring.stage()));
    }
    if (helper_task.x == kHelperTaskEnd) {
      if (adds_in_order()) continue;  // until the last dQ step is added
      break;
    }
    if (helper_task.x == kHelperTaskTileGroup) {
      if (lane == 0) {
        ptx::mbarrier_wait(base + Layout::kWorkTileEmpty + 8 * work_tile_ring.stage(),
                           work_tile_ring.phase() ^ 1, "helper: work tile empty");
        const std::uint32_t work_tile =
            base + Layout::kItem + work_tile_ring.stage() * Layout::kWorkTileSlotBytes;
        const int index = static_cast<int>(is_first ? blockIdx.x : gridDim.x) +
                          (is_first ? 0 : atomicAdd(p.next_tile_group, 1));
        store_word(base + Layout::kServed + 4, static_cast<int>(work_tile_ring.count + 1));
        Reader::template broadcast<Layout>(p, work_tile, index);
        const int count = load_word(base + Layout::kServed + 4) - 1;
        if (!Reader::kIsListed && has_zero_fill()) {
          const std::uint32_t taken =
              base + Layout::kItem + count % Layout::kWorkTileSlots * Layout::kWorkTileSlotBytes;
          if (load_word(taken + TileGroupAt::kNumTiles) != kNoWorkTile) {
            zero_fill.look_ahead(load_word(taken + TileGroupAt::kBatch) * p.zero_fill.heads_kv +
                                 load_word(taken + TileGroupAt::kKvHead));
          }
        }
        ptx::mbarrier_arrive(base + Layout::kWorkTileFull + 8 * (count % Layout::kWorkTileSlots));
      }
      __syncwarp();
      if (is_first) {
        if (has_zero_fill()) zero_fill.begin(lane);
        continue;
      }
    } else if (Reader::kIsListed && helper_task.x == kHelperTaskKeys) {
      CountedRing<Layout::kKeySlots> key_ring;
      key_ring.count = static_cast<std::uint32_t>(load_word(base + Layout::kServed + 8));
      look_up_keys<Layout>(
          p,
          static_cast<std::uint32_t>(load_word(
              helper_task_slot<Layout>(base, helper_tasks().stage()) + kHelperTaskBarrierAt)),
          base + Layout::kEntries + key_ring.stage() * Layout::kEntryBytes,
          base + Layout::kBiases + key_ring.stage() * Layout::kBiasBytes, lane);
      __syncwarp();
      ptx::mbarrier_arrive_warp(base + Layout::kKeysFull + 8 * key_ring.stage(), lane);
      if (has_zero_fill() && lane == 0) {
        const int2 place =
            load_words2(base + Layout::kEntries + key_ring.stage() * Layout::kEntryBytes +
                        8 * Layout::kTileGroupKeys);
        zero_fill.look_ahead(place.x * p.zero_fill.heads_kv + place.y);
      }
      if (lane == 0) store_word(base + Layout::kServed + 8, static_cast<int>(key_ring.count + 1));
    } else {
      zero_tile_rows(helper_task.x, static_cast<int>(helper_task.y),
                     static_cast<int>(helper_task.z), static_cast<int>(helper_task.w), lane);
      __syncwarp();
      const std::uint32_t slot = helper_task_slot<Layout>(base, helper_tasks().stage());
      ptx::mbarrier_arrive_warp(static_cast<std::uint32_t>(load_word(slot + kHelperTaskBarrierAt)),
                                lane);
    }
    const auto ring = helper_tasks();
    __syncwarp();
    ptx::mbarrier_arrive_warp(base + Layout::kHelperTaskEmpty + 8 * ring.stage(), lane);
    if (lane == 0) store_word(base + Layout::kServed, static_cast<int>(ring.count + 1));
    __syncwarp();
  }
  if (!has_zero_fill()) return;
  if (lane == 0) zero_fill.look_at_all();
  while (zero_fill.advance(lane)) {
  }
}

/// Loads what each broadcast tile group needs. One thread.
template <class Layout, class Score, class Reader, bool kZeroFill>
class TileGroupLoader {
 public:
  __device__ __forceinline__ TileGroupLoader(const BackwardParams& params, std::uint32_t base)
      : p(params), base_(base) {}

  __device__ __forceinline__ void run() {
    ptx::wait_for_grid_before();  // the grid before prepares lse and deltas of each query
    if (!wait_for_tile_group()) end_without_tile_groups();
    while (wait_for_tile_group()) {
      load_keys();
      if (kZeroFill && p.zero_fill.counters != nullptr) wait_for_zero_fill_of_row();
#pragma unroll 1
      for (int g = 0; g < p.group_size; ++g) load_queries(g);
      end_tile_group();
    }
    if (tells_dq_positions()) store_dq_position(kNoDqPosition, 0);
    helper_task(kHelperTaskEnd, 0, 0, 0, 0);
    ptx::mbarrier_arrive(helper_task_barrier_);
  }

 private:
  // Tiles before the end of a tile group at which the next tile group is requested
  static constexpr int kLateTiles = 3;
  /// Words of a broadcast tile group: its next visit of a query tile (in a closed-form plan
  /// row_dq_position, over worklist keys the begin of its positions), and the position of the query
  /// tile in hand.
  static constexpr std::uint32_t kVisit = TileGroupAt::kNextVisit, kRank = TileGroupAt::kPosition;

  __device__ __forceinline__ bool adds_in_order() const {
    return (Layout::kAddsInBulk || Score::kAddsInOrder) && p.dq_semaphores != nullptr;
  }
  __device__ __forceinline__ bool tells_dq_positions() const {
    return Layout::kAddsInBulk && adds_in_order();
  }
  /// Tells the helper warp the sum tile and the position of the next step. `flags`: kDqStepIsEmpty
  /// or 0.
  __device__ __forceinline__ void store_dq_position(int sum_tile, int position,
                                                    std::uint32_t flags = 0) {
    const auto number = static_cast<std::uint32_t>(load_word(base_ + Layout::kNumDqSemaphores));
    store_word(base_ + Layout::kNumDqSemaphores, static_cast<int>(number + 1));
    ptx::exchange_shared(
        dq_position_slot<Layout>(base_, number), static_cast<std::uint32_t>(sum_tile),
        static_cast<std::uint32_t>(position) | flags | dq_semaphore_lap<Layout>(number));
  }

  __device__ __forceinline__ std::uint32_t work_tile_slot() const {
    return base_ + Layout::kItem + work_tile_ring_.stage() * Layout::kWorkTileSlotBytes;
  }
  __device__ __forceinline__ bool wait_for_tile_group() const {
    ptx::mbarrier_wait(base_ + Layout::kWorkTileFull + 8 * work_tile_ring_.stage(),
                       work_tile_ring_.phase(), "load: work tile full");
    return load_word(work_tile_slot() + TileGroupAt::kNumTiles) != kNoWorkTile;
  }

  /// Sends a request to the helper warp. The caller then arrives at helper_task_barrier_.
  __device__ __forceinline__ void helper_task(std::uint32_t tile, int num_panels, int first_row,
                                              int num_rows, std::uint32_t full) {
    const int stage = helper_task_ring_.stage();
    const std::uint32_t slot =
        base_ + Layout::kHelperTask + stage * static_cast<int>(sizeof(HelperTask));
    ptx::mbarrier_wait(base_ + Layout::kHelperTaskEmpty + 8 * stage, helper_task_ring_.phase() ^ 1,
                       "load: helper task empty");
    store_words(slot, make_uint4(tile, num_panels, first_row, num_rows));
    store_words(slot + kHelperTaskBarrierAt, make_uint4(full, 0, 0, 0));
    helper_task_barrier_ = base_ + Layout::kHelperTaskFull + 8 * stage;
    helper_task_ring_.advance();
  }
  /// Announces a copy to `tile` and returns the barrier at which its bytes arrive. That is `full`.
  /// If rows past the length exist in the tensor (`has_rows`), it is the barrier of a request to
  /// zero them.
  __device__ __forceinline__ std::uint32_t begin_copy(std::uint32_t full, std::uint32_t tile,
                                                      int bytes, int num_panels, int num_left,
                                                      int num_rows, bool has_rows) {
    if (num_left < num_rows && has_rows) {
      helper_task(tile, num_panels, max(num_left, 0), num_rows, full);
      ptx::mbarrier_arrive_expect(helper_task_barrier_, bytes);
      return helper_task_barrier_;
    }
    for (std::uint32_t i = 1; i < ptx::kWarpInsertions; ++i) ptx::mbarrier_arrive(full);
    ptx::mbarrier_arrive_expect(full, bytes);
    return full;
  }

  __device__ __forceinline__ void wait_for_zero_fill_of_row() const {
    const TileGroup tile_group = current_tile_group();
    const int row = tile_group.batch * p.zero_fill.heads_kv + tile_group.kv_head;
    if (row <= load_word(base_ + Layout::kZeroedRow)) return;
    wait_for_zero_fill(p, row);
    store_word(base_ + Layout::kZeroedRow, row);
  }
  /// The tile group in hand. It is read anew at each use, because it would take too many registers.
  __device__ __forceinline__ TileGroup current_tile_group() const {
    return read_tile_group(work_tile_slot());
  }

  __device__ __forceinline__ void load_keys() {
    const TileGroup tile_group = current_tile_group();
    if constexpr (Reader::kIsListed) {
      helper_task(kHelperTaskKeys, 0, 0, 0, work_tile_slot());
      ptx::mbarrier_arrive(helper_task_barrier_);
      return;
    }
    ptx::mbarrier_wait(base_ + Layout::kKvEmpty, ~work_tile_ring_.count & 1, "load: K and V empty");
    const int num_left = tile_group.kv_len - tile_group.key_begin;
    const std::uint32_t k = base_ + Layout::kK, v = base_ + Layout::kV;
    const std::uint32_t k_full =
        begin_copy(base_ + Layout::kKFull, k, Layout::kKBytes, Layout::kPanelsQk, num_left,
                   Layout::kTileGroupKeys, p.k_rows > tile_group.kv_len);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsQk; ++panel) {
      ptx::tma_load_5d(k + panel * Layout::kPanelBytesKey, &p.k, k_full, panel * kPanelColumns, 0,
                       tile_group.key_begin, tile_group.kv_head, tile_group.batch,
                       ptx::kEvictFirst);
    }
    const std::uint32_t v_full =
        begin_copy(base_ + Layout::kVFull, v, Layout::kVBytes, Layout::kPanelsV, num_left,
                   Layout::kTileGroupKeys, p.v_rows > tile_group.kv_len);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
      ptx::tma_load_5d(v + panel * Layout::kPanelBytesKey, &p.v, v_full, panel * kPanelColumns, 0,
                       tile_group.key_begin, tile_group.kv_head, tile_group.batch,
                       ptx::kEvictFirst);
    }
  }

  /// Loads the tiles of one query head.
  __device__ __forceinline__ void load_queries(int g) {
    const TileGroup part =
        Reader::kIsListed ? current_tile_group() : part_of(p.plan, work_tile_slot(), g);
    auto walk = [&] {
      if constexpr (Reader::kIsListed) {
        return ListedTiles(part);
      } else {
        return TileGroupTiles(segments_of<Layout>(p.plan, part, work_tile_slot()), part,
                              p.walks_down);
      }
    }();
    const bool is_ragged_tile_group = part.kv_len - part.key_begin < kTileRows;
    const int take_at = g == p.group_size - 1 ? max(part.num_tiles - kLateTiles, 0) : -1;
#pragma unroll 1
    for (int n = 0;; ++n) {
      if (n == take_at) {
        helper_task(kHelperTaskTileGroup, 0, 0, 0, 0);
        ptx::mbarrier_arrive(helper_task_barrier_);
      }
      if (n >= part.num_tiles) break;
      TileStep step;
      TilePlace place;
      walk.next(p, step, place);
      if (adds_in_order()) find_rank(step.tile);
      const int num_left = part.q_len - place.key_begin;  // queries
      std::uint32_t halves = num_left > 64 ? 3u : num_left > 0 ? 1u : 0u;
      std::uint32_t mask = 0, quarters = 15, empty_halves = 0;
      if (step.kind != PlanSegmentKind::full || is_ragged_tile_group) {
        mask = base_ + Layout::kMask + slots_.stage() * Layout::kMaskBytes;
        ptx::mbarrier_wait(base_ + Layout::kMaskFull + 8 * slots_.stage(), slots_.phase(),
                           "load: mask full");
        quarters = static_cast<std::uint32_t>(
            load_word(base_ + Layout::kMaskQuarters + 4 * slots_.stage()));
        const std::uint32_t live = halves & (quarters | quarters >> 2);
        if (!adds_in_order()) {
          halves = live;
        } else if (tells_dq_positions() && Layout::kStepsOfTile == 2 && live != 0) {
          // In deterministic bulk calls every block takes its place in the accumulation order, also
          // for a half without a step. Tiles with two empty halves are few. They keep their steps,
          // so that the ring of turns is never full.
          empty_halves = halves & ~live;
          halves = live;
        }
        if (halves == 0) {
          for (std::uint32_t i = 0; i < kComputeWarps * ptx::kWarpInsertions; ++i) {
            ptx::mbarrier_arrive(base_ + Layout::kMaskEmpty + 8 * slots_.stage());
          }
        }
        slots_.advance();
      }
      // With steps of 64 queries a step is half a tile, with steps of 128 it is the whole tile.
      std::uint32_t steps = Layout::kStepsOfTile == 2 ? halves : halves != 0 ? 1u : 0u;
#pragma unroll 1
      for (int i = 0; (steps | empty_halves) != 0;
           ++i, steps >>= 1, empty_halves >>= 1, quarters >>= 1) {
        const int query = place.key_begin + i * Layout::kStepQueries;
        if ((empty_halves & 1) != 0) {
          store_dq_position(sum_tile_of(current_tile_group(), g, query), position(),
                            kDqStepIsEmpty);
        }
        if ((steps & 1) == 0) continue;
        int flags = (steps == 1 ? kStepReleasesMask : 0) | (i == 1 ? kStepIsSecondHalf : 0);
        if constexpr (Layout::kAlternates) {
          flags |= static_cast<int>(~quarters & 1) * kStepIsEmpty |
                   static_cast<int>(~quarters & 4) * (kStepIsEmpty / 2);
        }
        load_step(g, query, flags, mask);
      }
    }
  }

  /// Stores the position of query tile `tile`, the next one of the tile group in hand: how many
  /// tile groups add to its dQ before this one.
  __device__ __forceinline__ void find_rank(int tile) const {
    const int visit = load_word(work_tile_slot() + kVisit);
    int position;
    if (Reader::kIsListed) {
      position = __ldcg(p.worklist.positions + visit + tile);
    } else if (p.plan.num_closed_forms > 0) {
      const auto* offsets = reinterpret_cast<const std::int32_t*>(p.dq_semaphore_offsets);
      const int place =
          load_word(work_tile_slot() + TileGroupAt::kBatch) * (p.places.padded_q_len / kTileKeys) +
          tile;
      position = visit / 2 + __ldcg(offsets + 2 * place + visit % 2);
    } else {
      store_word(work_tile_slot() + kVisit, visit + 1);
      position = __ldg(p.plan.positions + visit);
    }
    store_word(work_tile_slot() + kRank, position);
  }
  /// The sum tile of dQ for the queries of the g-th query head from `query` on.
  __device__ __forceinline__ int sum_tile_of(const TileGroup& tile_group, int g, int query) const {
    return static_cast<int>((p.places.first_row(tile_group.batch, tile_group.head + g) + query) /
                            kSumRows);
  }
  __device__ __forceinline__ int position() const {
    return adds_in_order() ? load_word(work_tile_slot() + kRank) : 0;
  }

  __device__ __forceinline__ void store_step(const TileGroup& tile_group, int flags,
                                             std::uint32_t mask, int sum_tile, int position) {
    const std::uint32_t to =
        base_ + Layout::kStep + ring_.stage() * static_cast<int>(sizeof(BackwardStep));
    store_words(to, make_uint4(flags, mask, sum_tile, position));
    store_words(to + 16, make_uint4(tile_group.batch, tile_group.kv_head, tile_group.key_begin,
                                    Reader::kIsListed ? tile_group.first_work_tile_or_accum_row
                                                      : tile_group.kv_len));
  }

  /// Loads Q, dO, lse and deltas of the queries from `query` on.
  __device__ __forceinline__ void load_step(int g, int query, int flags, std::uint32_t mask) {
    const TileGroup tile_group = current_tile_group();
    const int stage = ring_.stage(), num_left = tile_group.q_len - query;
    const std::int64_t row = p.places.first_row(tile_group.batch, tile_group.head + g) + query;
    ptx::mbarrier_wait(base_ + Layout::kQEmpty + 8 * stage, ring_.phase() ^ 1, "load: Q empty");
    store_step(tile_group, flags, mask, static_cast<int>(row / kSumRows), position());
    const std::uint32_t q = base_ + Layout::kQ + stage * Layout::kQBytes;
    const std::uint32_t q_full =
        begin_copy(base_ + Layout::kQFull + 8 * stage, q, Layout::kQBytes + Layout::kRowBytes,
                   Layout::kPanelsQk, num_left, Layout::kStepQueries, p.q_rows > tile_group.q_len);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsQk; ++panel) {
      ptx::tma_load_5d(q + panel * Layout::kPanelBytesQuery, &p.q, q_full, panel * kPanelColumns, g,
                       query, tile_group.kv_head, tile_group.batch, ptx::kEvictLast);
    }
    ptx::bulk_load(base_ + Layout::kLse + stage * Layout::kRowBytes, p.places.lse_log2 + row,
                   Layout::kRowBytes, q_full);
    ptx::mbarrier_wait(base_ + Layout::kOEmpty + 8 * stage, ring_.phase() ^ 1, "load: dO empty");
    const std::uint32_t o = base_ + Layout::kO + stage * Layout::kOBytes;
    const std::uint32_t o_full = begin_copy(
        base_ + Layout::kOFull + 8 * stage, o, Layout::kOBytes + Layout::kRowBytes,
        Layout::kPanelsV, num_left, Layout::kStepQueries, p.dout_rows > tile_group.q_len);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
      ptx::tma_load_5d(o + panel * Layout::kPanelBytesQuery, &p.dout, o_full, panel * kPanelColumns,
                       g, query, tile_group.kv_head, tile_group.batch, ptx::kEvictLast);
    }
    ptx::bulk_load(base_ + Layout::kDeltas + stage * Layout::kRowBytes, p.places.deltas + row,
                   Layout::kRowBytes, o_full);
    ring_.advance();
    // This comes last, because the helper warp needs it when dQ is there, a step later.
    if (tells_dq_positions()) store_dq_position(static_cast<int>(row / kSumRows), position());
  }

  /// Sends a step without queries, which says that the tile group is done and whether another one
  /// follows. Then advances to that one.
  __device__ __forceinline__ void end_tile_group() {
    const TileGroup tile_group = current_tile_group();
    const int stage = ring_.stage();
    ptx::mbarrier_wait(base_ + Layout::kQEmpty + 8 * stage, ring_.phase() ^ 1, "load: Q empty");
    ptx::mbarrier_wait(base_ + Layout::kOEmpty + 8 * stage, ring_.phase() ^ 1, "load: dO empty");
    ptx::mbarrier_arrive(base_ + Layout::kWorkTileEmpty + 8 * work_tile_ring_.stage());
    work_tile_ring_.advance();
    store_step(tile_group, kStepEndsTileGroup | (wait_for_tile_group() ? 0 : kStepEndsAll), 0, 0,
               0);
    arrive_at(base_ + Layout::kQFull + 8 * stage, base_ + Layout::kOFull + 8 * stage);
    ring_.advance();
  }

  /// In a closed-form plan keys past the lengths of a call are no tile groups, and kv worklists may
  /// be short, so a block may find no tile group. It then tells the computing warps of one tile
  /// group without keys, which is the last.
  __device__ __forceinline__ void end_without_tile_groups() {
    TileGroup nothing{};
    if constexpr (Reader::kIsListed) nothing.batch = -1;
    store_step(nothing, kStepEndsTileGroup | kStepEndsAll, 0, 0, 0);
    if constexpr (!Reader::kIsListed) arrive_at(base_ + Layout::kKFull, base_ + Layout::kVFull);
    arrive_at(base_ + Layout::kQFull, base_ + Layout::kOFull);
  }

  /// Completes a phase of two barriers at which no copy arrives.
  __device__ __forceinline__ void arrive_at(std::uint32_t a, std::uint32_t b) {
    for (std::uint32_t i = 0; i < ptx::kWarpInsertions; ++i) {
      ptx::mbarrier_arrive(a);
      ptx::mbarrier_arrive(b);
    }
  }

  const BackwardParams& p;
  const std::uint32_t base_;
  CountedRing<Layout::kStages> ring_;
  CountedRing<Layout::kWorkTileSlots> work_tile_ring_;
  CountedRing<Layout::kMaskSlots> slots_;
  CountedRing<Layout::kHelperTaskSlots> helper_task_ring_;
  std::uint32_t helper_task_barrier_ = 0;
};

}  // namespace fdma::sm90
