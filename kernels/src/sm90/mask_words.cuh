// The mask of one tile as words of threads (fragment.hpp: mask_cell), made by one warp in shared
// memory from any kind of plan segment.
#pragma once

#include <climits>
#include <cstdint>

#include "fdma/kernels/segment_iterator.hpp"
#include "ptx/mbarrier.cuh"
#include "sm90/forward_params.hpp"
#include "sm90/fragment.hpp"

namespace fdma::sm90 {

/// Where a tile lies: keys [key_begin, key_begin + 128) and rows from q_begin of an element.
struct TilePlace {
  std::int32_t q_begin;
  std::int32_t key_begin;
  std::int32_t kv_len;
};

/// True iff keys of the tile lie past the end, so that even a full tile has cells that do not exist.
__device__ __forceinline__ bool is_ragged(const TilePlace& place) {
  return place.kv_len - place.key_begin < kTileKeys;
}

__device__ __forceinline__ void store_words(std::uint32_t address, const uint4& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_words(std::uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

/// Words of two neighbouring threads, the first of them with columns 2 * quad and so on, of columns
/// below `limit`.
__device__ __forceinline__ uint4 words_below(int limit, int quad) {
  const std::uint32_t a = columns_below(limit - 2 * quad), b = columns_below(limit - 2 * quad - 2);
  return make_uint4(a, a, b, b);
}
__device__ __forceinline__ uint4 operator&(const uint4& a, const uint4& b) {
  return make_uint4(a.x & b.x, a.y & b.y, a.z & b.z, a.w & b.w);
}
__device__ __forceinline__ uint4 operator|(const uint4& a, const uint4& b) {
  return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w);
}

constexpr int kWordQuads = 128;  ///< 16-byte pieces of a tile's words
constexpr int kWarpSize = 32;

/// A bitmap, or without one all cells; cut at kv_len. `limit` 0: no cell.
__device__ __forceinline__ void write_bitmap(std::uint32_t slot, const uint4* bitmap, int limit,
                                             int lane) {
#pragma unroll
  for (int i = lane; i < kWordQuads; i += kWarpSize) {
    const uint4 cells = bitmap == nullptr ? make_uint4(~0u, ~0u, ~0u, ~0u) : __ldg(bitmap + i);
    store_words(slot + 16 * i, cells & words_below(limit, 2 * (i % 2)));
  }
}

/// Key intervals of each row, relative to key `first_key` of the panel; lane l makes the words of
/// rows l, l + 32, ..
__device__ __forceinline__ void write_rows(std::uint32_t slot, const PlanArrays& plan, int panel,
                                           int first_key, int limit, int lane) {
  for (int row = lane; row < kTileRows; row += kWarpSize) {
    const std::int64_t at = std::int64_t{panel} * kTileRows + row;
    const std::int64_t end = __ldg(plan.row_offsets + at + 1);
    std::uint32_t words[4] = {0, 0, 0, 0};
    for (std::int64_t i = __ldg(plan.row_offsets + at); i < end; ++i) {
      const int begin_key = __ldg(&plan.row_intervals[i].begin) - first_key;
      const int end_key = min(__ldg(&plan.row_intervals[i].end) - first_key, limit);
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        words[quad] |= columns_below(end_key - 2 * quad) & ~columns_below(begin_key - 2 * quad);
      }
    }
    const int thread = row / 16 * 32 + row % 8 * 4;
    const std::uint32_t address = slot + 8 * thread + (row % 16 < 8 ? 0 : 4);
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address + 8 * quad), "r"(words[quad])
                   : "memory");
    }
  }
}

/// Query intervals of each key. A lane holds the keys of one bit: columns lane / 2 * 8 + lane % 2 +
/// 2 * quad of the four quads; a ballot over the lanes is then the word of a row and quad. Keys with
/// several intervals take another round.
__device__ __forceinline__ void write_columns(std::uint32_t slot, const PlanArrays& plan, int table,
                                              const TilePlace& place, int lane) {
  const std::int64_t* offsets = plan.column_offsets + __ldg(plan.column_tables + table);
  std::int64_t next[4];
  int rest[4];
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const int key = place.key_begin + lane / 2 * 8 + lane % 2 + 2 * quad;
    next[quad] = 0;
    rest[quad] = 0;
    if (key < place.kv_len) {
      next[quad] = __ldg(offsets + key);
      rest[quad] = static_cast<int>(__ldg(offsets + key + 1) - next[quad]);
    }
  }
  for (bool is_first = true;; is_first = false) {
    int begin[4];
    std::uint32_t length[4];
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
      begin[quad] = 0;
      length[quad] = 0;
      if (rest[quad] > 0) {
        const Interval* interval = plan.column_intervals + next[quad];
        const int first = __ldg(&interval->begin);
        begin[quad] = first - place.q_begin;
        length[quad] = static_cast<std::uint32_t>(__ldg(&interval->end) - first);
        ++next[quad];
        --rest[quad];
      }
    }
    // Rows r and r + 8 belong to the same four threads: two pieces of 16 bytes.
#pragma unroll 1
    for (int group = 0; group < kTileRows / 16; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        std::uint32_t words[4][2];
#pragma unroll
        for (int quad = 0; quad < 4; ++quad) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = group * 16 + half * 8 + i;
            words[quad][half] =
                __ballot_sync(~0u, static_cast<std::uint32_t>(row - begin[quad]) < length[quad]);
          }
        }
        if (lane == 0) {
          const std::uint32_t address = slot + 8 * (group * 32 + i * 4);
          uint4 low = make_uint4(words[0][0], words[0][1], words[1][0], words[1][1]);
          uint4 high = make_uint4(words[2][0], words[2][1], words[3][0], words[3][1]);
          if (!is_first) {
            low = low | load_words(address);
            high = high | load_words(address + 16);
          }
          store_words(address, low);
          store_words(address + 16, high);
        }
      }
    }
    const bool has_more = rest[0] > 0 || rest[1] > 0 || rest[2] > 0 || rest[3] > 0;
    if (!__any_sync(~0u, has_more)) return;
  }
}

/// The words of a tile that needs them, by all lanes of a warp.
__device__ __forceinline__ void write_mask(std::uint32_t slot, const PlanArrays& plan,
                                           const TileStep& step, const TilePlace& place, int lane) {
  const int limit = min(place.kv_len - place.key_begin, kTileKeys);
  switch (step.kind) {
    case PlanSegmentKind::rows:
      write_rows(slot, plan, step.payload, step.offset * kTileKeys, limit, lane);
      return;
    case PlanSegmentKind::columns:
      write_columns(slot, plan, step.payload, place, lane);
      return;
    case PlanSegmentKind::bitmap:
      write_bitmap(slot, plan.bitmaps + std::int64_t{step.payload} * kWordQuads, limit, lane);
      return;
    default:
      write_bitmap(slot, nullptr, limit, lane);
  }
}

}  // namespace fdma::sm90
