// Mask fragments: the mask of one tile as two words for each thread (plan/thread_cells.hpp:
// mask_cell). One
// warp makes them in shared memory from any kind of plan segment. The mask warps of the forward and
// the backward kernel call write_mask.
#pragma once

#include <cstdint>

#include "cuda/band_fragments.hpp"
#include "cuda/mask_bits.hpp"
#include "cuda/tile_rows.hpp"
#include "cuda/tile_walk.cuh"
#include "cuda/work_tiles.cuh"
#include "fdma/kernels/segment_iterator.hpp"
#include "ptx/addresses.cuh"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {

/// Words of two neighbouring threads, of which the first has columns 2 * quad and so on, with the
/// columns below `limit` set.
__device__ __forceinline__ uint4 words_below(int limit, int quad) {
  const std::uint32_t a = columns_below(limit - 2 * quad), b = columns_below(limit - 2 * quad - 2);
  return make_uint4(a, a, b, b);
}
__device__ __forceinline__ uint4 operator&(const uint4& a, const uint4& b) {
  return make_uint4(a.x & b.x, a.y & b.y, a.z & b.z, a.w & b.w);
}

constexpr int kWordQuads = 128;  ///< 16-byte pieces of a tile's words

/// Writes a bitmap, or all cells if there is none, cut at kv_len. With `limit` 0 there is no cell.
/// kAtOnce pieces of a lane are read together.
template <int kAtOnce>
__device__ __forceinline__ void write_bitmap(std::uint32_t slot, const uint4* bitmap, int limit,
                                             int lane) {
#pragma unroll kAtOnce
  for (int i = lane; i < kWordQuads; i += kWarpSize) {
    const uint4 cells = bitmap == nullptr ? make_uint4(~0u, ~0u, ~0u, ~0u) : __ldg(bitmap + i);
    store_words(slot + 16 * i, cells & words_below(limit, 2 * (i % 2)));
  }
}

/// Sets all cells of the first `num_rows` rows.
__device__ __forceinline__ void write_whole_rows(std::uint32_t slot, int num_rows, int limit,
                                                 int lane) {
#pragma unroll
  for (int i = lane; i < kWordQuads; i += kWarpSize) {
    const int row =
        accumulator_cell(2 * i % kWarpgroupThreads, 0).row + 2 * i / kWarpgroupThreads * kHalfRows;
    const std::uint32_t upper = row < num_rows ? ~0u : 0u, lower = row + 8 < num_rows ? ~0u : 0u;
    store_words(slot + 16 * i,
                make_uint4(upper, lower, upper, lower) & words_below(limit, 2 * (i % 2)));
  }
}

/// Bit j is set iff `any`, the OR of words of rows, has a cell in columns [64 j, 64 j + 64).
__device__ __forceinline__ std::uint32_t quarter_bits(std::uint32_t any) {
  return ((any & 0xFFFFu) != 0 ? 1u : 0u) | ((any >> 16) != 0 ? 2u : 0u);
}

/// Returns which quarters of a tile have a cell, from words that this warp has written: bit 2 i + j
/// stands for rows [64 i, 64 i + 64) and columns [64 j, 64 j + 64).
__device__ __forceinline__ std::uint32_t quarters_with_cells(std::uint32_t slot, int lane) {
  __syncwarp();
  std::uint32_t quarters = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t any = 0;
#pragma unroll
    for (int i = lane; i < kWordQuads / 2; i += kWarpSize) {
      const uint4 words = load_words(slot + 16 * (half * (kWordQuads / 2) + i));
      any |= words.x | words.y | words.z | words.w;
    }
    quarters |= quarter_bits(any) << 2 * half;
  }
  return __reduce_or_sync(~0u, quarters);
}

/// Address of the word of a row for the first thread of its quad. The next thread's word is 8 bytes
/// further.
__device__ __forceinline__ std::uint32_t row_address(std::uint32_t slot, int row) {
  return slot + 8 * (row / 16 * 32 + row % 8 * 4) + (row % 16 < 8 ? 0 : 4);
}

/// Stores the words of a row, one for each thread of its quad or for the first of them.
template <int kQuads>
__device__ __forceinline__ void store_row_fragments(std::uint32_t slot, int row,
                                                    const std::uint32_t (&words)[kQuads]) {
  const std::uint32_t address = row_address(slot, row);
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    ptx::store_word(address + 8 * quad, static_cast<int>(words[quad]));
  }
}

/// Adds keys [begin, end) of a tile to the words of a row.
__device__ __forceinline__ void add_keys(std::uint32_t (&words)[4], int begin, int end) {
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    words[quad] |= columns_below(end - 2 * quad) & ~columns_below(begin - 2 * quad);
  }
}

/// Writes key intervals of each query, relative to key `first_key` of the panel. Lane l makes the
/// words of rows l, l + 32, ..
__device__ __forceinline__ void write_rows(std::uint32_t slot, const PlanArrays& plan, int panel,
                                           int first_key, int limit, int lane) {
  for (int row = lane; row < kTileRows; row += kWarpSize) {
    const std::int64_t at = std::int64_t{panel} * plan.block_q + (row >> plan.pack_shift);
    const std::int64_t end = __ldg(plan.row_offsets + at + 1);
    std::uint32_t words[4] = {0, 0, 0, 0};
    for (std::int64_t i = __ldg(plan.row_offsets + at); i < end; ++i) {
      const int begin_key = __ldg(&plan.row_intervals[i].begin) - first_key;
      add_keys(words, begin_key, min(__ldg(&plan.row_intervals[i].end) - first_key, limit));
    }
    store_row_fragments(slot, row, words);
  }
}

/// Stores and loads a band in shared memory.
__device__ __forceinline__ void store_band(std::uint32_t address, const ClosedFormBand& band) {
  store_words(address, make_uint4(band.begin, band.end, band.first.begin, band.first.end));
  store_words(address + 16,
              make_uint4(band.last.begin, band.last.end, band.last_row, band.is_valid));
}
__device__ __forceinline__ ClosedFormBand load_band(std::uint32_t address) {
  const uint4 a = load_words(address), b = load_words(address + 16);
  return {static_cast<int>(a.x),
          static_cast<int>(a.y),
          {static_cast<int>(a.z), static_cast<int>(a.w)},
          {static_cast<int>(b.x), static_cast<int>(b.y)},
          static_cast<int>(b.z),
          static_cast<int>(b.w)};
}

/// Writes the intervals of each row of a band, with columns counted from `first_column`.
__device__ __forceinline__ void write_band(std::uint32_t slot, const ClosedFormBand& band,
                                           int first_column, int lane) {
  const BandFragments band_fragments(band, first_column, lane);
#pragma unroll
  for (int piece = 0; piece < BandFragments::kPieces; ++piece) {
    std::uint32_t words[4];
    band_fragments.make(piece, words);
    store_words(slot + 16 * (lane + kWarpSize * piece),
                make_uint4(words[0], words[1], words[2], words[3]));
  }
}

/// Writes the queries of each row (a key) by the closed form of a backward plan, for rows that are
/// not a band. `place` counts queries as columns.
template <class Params>
__device__ __forceinline__ void write_closed_form_columns(std::uint32_t slot, const Params& p,
                                                          const TileGroup& group,
                                                          const TilePlace& place, int lane) {
  const ClosedFormColumns columns =
      closed_form_columns(p.plan, p.lengths, group.batch, group.q_len, group.kv_len);
  for (int row = lane; row < kTileRows; row += kWarpSize) {
    const int key = group.key_begin + row;
    const int document = columns.document(key, group.first_document, group.last_document);
    const ClosedFormRange queries = columns.queries(key, columns.bounds(document));
    std::uint32_t words[4] = {0, 0, 0, 0};
    add_keys(words, queries.begin - place.key_begin, queries.end - place.key_begin);
    store_row_fragments(slot, row, words);
  }
}

/// Writes the keys of each row by the closed form of a closed-form plan, for rows that are not a
/// band.
template <class Params>
__device__ __forceinline__ void write_closed_form(std::uint32_t slot, const Params& p,
                                                  const BroadcastTile& work_tile,
                                                  const TilePlace& place, int lane) {
  const ClosedFormRows rows =
      closed_form_rows(p.plan, p.lengths, work_tile.batch, work_tile.q_len, work_tile.kv_len);
  const ClosedFormRange first_bounds = rows.bounds(work_tile.first_document),
                        last_bounds = rows.bounds(work_tile.last_document);
#pragma unroll 2
  for (int row = lane; row < kTileRows; row += kWarpSize) {
    const int q = min(work_tile.q_begin + (row >> p.plan.pack_shift), work_tile.q_len - 1);
    const int document = rows.document(q, work_tile.first_document, work_tile.last_document);
    const ClosedFormRange bounds = document == work_tile.first_document  ? first_bounds
                                   : document == work_tile.last_document ? last_bounds
                                                                         : rows.bounds(document);
    const ClosedFormRange band = rows.band_keys(q, bounds);
    std::uint32_t words[4] = {0, 0, 0, 0};
    add_keys(words, band.begin - place.key_begin, band.end - place.key_begin);
    if (rows.has_near_keys()) {
      const ClosedFormRange near = rows.near_keys(q, bounds);
      add_keys(words, near.begin - place.key_begin, near.end - place.key_begin);
    }
    store_row_fragments(slot, row, words);
  }
}

/// Writes query intervals of each key. A lane holds a key of each quad, that of bit `lane`: column
/// lane / 2 * 8 + lane % 2 + 2 * quad. It makes the words of rows lane, lane + 32, .. Keys that all
/// rows see come from a ballot. Keys whose interval begins or ends in the tile (few, unless the
/// tile lies on a diagonal) are broadcast to the warp one by one. Keys with several intervals take
/// another iteration. Taking all four quads at once hides the latency of reading; taking fewer
/// needs fewer registers.
template <int kQuads>
__device__ __forceinline__ void write_columns(std::uint32_t slot, const PlanArrays& plan, int table,
                                              const TilePlace& place, int lane) {
  constexpr int kLaneRows = kTileRows / kWarpSize;
  const std::int64_t* offsets = plan.column_offsets + __ldg(plan.column_tables + table);
#pragma unroll 1
  for (int first_quad = 0; first_quad < 4; first_quad += kQuads) {
    std::int64_t next[kQuads];
    int num_left[kQuads];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const int key = place.key_begin + lane / 2 * 8 + lane % 2 + 2 * (first_quad + quad);
      next[quad] = 0;
      num_left[quad] = 0;
      if (key < place.kv_len) {
        next[quad] = __ldg(offsets + key);
        num_left[quad] = static_cast<int>(__ldg(offsets + key + 1) - next[quad]);
      }
    }
    std::uint32_t words[kLaneRows][kQuads] = {};
    bool has_more = true;
    while (has_more) {
      int begin[kQuads], end[kQuads];  // rows of the tile; [0, 0) is none
      bool is_left = false;
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        begin[quad] = 0;
        end[quad] = 0;
        if (num_left[quad] > 0) {
          const Interval* interval = plan.column_intervals + next[quad]++;
          begin[quad] = min(max(__ldg(&interval->begin) - place.q_begin, 0), plan.block_q)
                        << plan.pack_shift;
          end[quad] =
              min(__ldg(&interval->end) - place.q_begin, plan.block_q) * (1 << plan.pack_shift);
          --num_left[quad];
        }
        is_left = is_left || num_left[quad] > 0;
      }
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const bool is_whole = begin[quad] == 0 && end[quad] == kTileRows;
        const std::uint32_t whole = __ballot_sync(~0u, is_whole);
        std::uint32_t parts = __ballot_sync(~0u, !is_whole && begin[quad] < end[quad]);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) words[i][quad] |= whole;
        while (parts != 0) {
          const int bit = __ffs(static_cast<int>(parts)) - 1;
          parts &= parts - 1;
          const int first_row = __shfl_sync(~0u, begin[quad], bit);
          const auto num_rows =
              static_cast<std::uint32_t>(__shfl_sync(~0u, end[quad], bit) - first_row);
#pragma unroll
          for (int i = 0; i < kLaneRows; ++i) {
            if (static_cast<std::uint32_t>(lane + i * kWarpSize - first_row) < num_rows) {
              words[i][quad] |= 1u << bit;
            }
          }
        }
      }
      has_more = __any_sync(~0u, is_left);
    }
    // Addresses of rows are computed when they are needed.
    if constexpr (kQuads < 4) lane = ptx::opaque(lane);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      store_row_fragments(slot + 8 * first_quad, lane + i * kWarpSize, words[i]);
    }
  }
}

/// Writes the words of a tile that needs them. All lanes of a warp call it. `work_tile_address` and
/// `band_address` point to the work tile's words as they are broadcast. `p` are parameters of the
/// forward or the backward kernel. kQuads is the number of quads that write_columns takes at once,
/// and of bitmap pieces read together. Without kTakesClosedForms the
/// plan is no closed-form plan.
template <int kQuads, bool kTakesClosedForms = true, class Params>
__device__ __forceinline__ void write_mask(std::uint32_t slot, const Params& p,
                                           std::uint32_t work_tile_address,
                                           std::uint32_t band_address, const TileStep& step,
                                           const TilePlace& place, int lane) {
  const int limit = min(place.kv_len - place.key_begin, kTileKeys);
  switch (step.kind) {
    case PlanSegmentKind::rows:
      write_rows(slot, p.plan, step.data_index, step.offset * kTileKeys, limit, lane);
      return;
    case PlanSegmentKind::columns:
      write_columns<kQuads>(slot, p.plan, step.data_index, place, lane);
      return;
    case PlanSegmentKind::bitmap:
      write_bitmap<kQuads>(slot, p.plan.bitmaps + std::int64_t{step.data_index} * kWordQuads, limit,
                           lane);
      return;
    case PlanSegmentKind::closed_form: {
      if constexpr (kTakesClosedForms) {
        const ClosedFormBand band = load_band(band_address);
        if (band.is_valid != 0) {
          write_band(slot, band, place.key_begin, lane);
        } else if constexpr (Params::kIsTransposed) {
          write_closed_form_columns(slot, p, read_tile_group(work_tile_address), place, lane);
        } else {
          write_closed_form(slot, p, read_work_tile(work_tile_address), place, lane);
        }
      }
      return;
    }
    default:
      write_bitmap<kQuads>(slot, nullptr, limit, lane);
  }
}

}  // namespace fdma::gpu
