// Dropout as a weight: a bit of each cell of a thread says whether the pair is kept. Four words of a
// Philox call are those of two rows and two columns eight apart, which one thread holds, so that a
// step of 128 columns takes 16 calls. What multiplies the pairs that are kept goes into the factors
// of outputs and gradients.
//
// Cost        200 instructions for 16 cells
#pragma once

#include <cstdint>

#include "cuda/dropout_params.hpp"
#include "cuda/score.cuh"

namespace fdma::gpu {

struct DropoutWeight {
  static constexpr bool kNeedsPlaces = true, kDrops = true;

  /// The bit of row i and column 8 j + e of a step, counted from the first word of its bits: 2 j + e
  /// after those of the rows before.
  template <int kColumns>
  __device__ __forceinline__ static constexpr int bit_of(int i, int column) {
    return i * (kColumns / 4) + column / 8 * 2 + column % 2;
  }
  template <int kColumns>
  using Bits = std::uint32_t[kColumns / 64];

  template <int kColumns>
  __device__ __forceinline__ static bool is_kept(const Bits<kColumns>& kept, int i, int column) {
    const int bit = bit_of<kColumns>(i, column);
    return (kept[bit / 32] & (1u << bit % 32)) != 0;
  }

  /// The bits of the cells of a step. `first`: the cells of row 0, whose place in its block of 16 is
  /// below 8; row 1 is 8 queries later, or 8 keys where rows are keys.
  template <bool kRowsAreKeys, int kColumns>
  __device__ __forceinline__ static void find_kept(const DropoutParams& p, const RowCells& first,
                                                   Bits<kColumns>& kept) {
    DropoutBits bits = p.bits;
    bits.set_seed(p.seed_at == nullptr ? p.seed : __ldg(p.seed_at),
                  p.offset_at == nullptr ? p.offset : __ldg(p.offset_at));
    const auto head = static_cast<std::uint32_t>(first.batch * p.heads_q + first.head);
    const auto block_of = [](int position) {
      return static_cast<std::uint32_t>(position / 16 * 8 + position % 8);
    };
    const std::uint32_t row = block_of(kRowsAreKeys ? first.key : first.query);
    const int column = kRowsAreKeys ? first.query : first.key;
#pragma unroll
    for (std::uint32_t& word : kept) word = 0;
#pragma unroll
    for (int block = 0; block < kColumns / 16; ++block) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t of_columns = block_of(column + 16 * block + e);
        const PhiloxWords words =
            kRowsAreKeys ? bits.words(head, of_columns, row) : bits.words(head, row, of_columns);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::uint32_t word = words.word[kRowsAreKeys ? 2 * half + i : 2 * i + half];
            const int bit = bit_of<kColumns>(i, 16 * block + 8 * half + e);
            if (bits.keeps(word)) kept[bit / 32] |= 1u << bit % 32;
          }
        }
      }
    }
  }
};

/// What a weight multiplies all pairs by that it keeps.
template <class Weight>
__device__ __forceinline__ float factor_of_kept(const DropoutParams& p) {
  return Weight::kDrops ? p.bits.factor : 1.0f;
}

}  // namespace fdma::gpu
