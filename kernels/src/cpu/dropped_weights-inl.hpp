// Dropout as a weight policy: pairs are dropped as call/dropout_bits.hpp says. Included once per
// instruction set, as microkernels-inl.hpp is.
//
// Before a chunk is computed, the bits of its pairs are written as those of a mask are: for each
// column, which rows are kept. Lanes hold blocks of rows. One evaluation of Philox gives both halves of
// a block and, where keys eight apart are both in the chunk, both columns, so that most chunks take
// one evaluation for four pairs.
#if defined(FDMA_CPU_DROPPED_WEIGHTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_DROPPED_WEIGHTS_INL
#undef FDMA_CPU_DROPPED_WEIGHTS_INL
#else
#define FDMA_CPU_DROPPED_WEIGHTS_INL
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "call/dropout_bits.hpp"
#include "cpu/lane_pairs.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/scratch.hpp"
#include "cpu/weight-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

/// The upper words of the products with a constant.
HWY_INLINE WordVec multiply_high(WordVec a, WordVec constant) {
  const WordTag tag;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(
      tag, static_cast<std::uint32_t>(std::uint64_t{hn::GetLane(a)} * hn::GetLane(constant) >> 32));
#else
  const hn::RepartitionToWide<WordTag> wide;
  const auto even = hn::MulEven(a, constant);
  const auto shifted = hn::BitCast(tag, hn::ShiftRight<32>(hn::BitCast(wide, a)));
  const auto odd = hn::MulEven(shifted, constant);
  return hn::OddEven(hn::BitCast(tag, odd), hn::BitCast(tag, hn::ShiftRight<32>(even)));
#endif
}

/// Philox of a counter for each lane, in place.
HWY_INLINE void philox_of_lanes(WordVec (&counter)[4], std::uint32_t key_0, std::uint32_t key_1) {
  const WordTag tag;
  const WordVec multiplier_0 = hn::Set(tag, kPhiloxMultiplier0);
  const WordVec multiplier_1 = hn::Set(tag, kPhiloxMultiplier1);
  FDMA_UNROLL for (int round = 0; round < kPhiloxRounds; ++round) {
    const WordVec high_0 = multiply_high(counter[0], multiplier_0);
    const WordVec high_1 = multiply_high(counter[2], multiplier_1);
    const WordVec low_0 = hn::Mul(counter[0], multiplier_0);
    const WordVec low_1 = hn::Mul(counter[2], multiplier_1);
    counter[0] = hn::Xor(hn::Xor(high_1, counter[1]), hn::Set(tag, key_0));
    counter[2] = hn::Xor(hn::Xor(high_0, counter[3]), hn::Set(tag, key_1));
    counter[1] = low_1;
    counter[3] = low_0;
    key_0 += kPhiloxKeyStep0;
    key_1 += kPhiloxKeyStep1;
  }
}

/// ScoreSpec::dropout.
class DroppedWeights : public WholeWeights {
 public:
  /// `chunk` has room for the bits of a chunk.
  DroppedWeights(const DropoutBits& bits, std::int64_t heads_q, Chunk& chunk)
      : bits_(bits),
        heads_q_(heads_q),
        words_per_column_(chunk.kept_bits.size() / kChunkColumns),
        kept_(chunk.kept_bits.data()) {}

  void begin_head(std::int64_t batch, std::int64_t head) {
    head_ = static_cast<std::uint32_t>(batch * heads_q_ + head);
  }

  template <bool kLanesAreKeys>
  void begin_chunk(const ChunkPairs<kLanesAreKeys>& pairs, std::size_t num_columns,
                   std::size_t num_rows) {
    for (std::size_t i = 0; i < num_columns; ++i) {
      const std::int32_t column = pairs.columns[i];
      const int half = DropoutBits::half_of(column);
      if (half == 1 && i >= 8 && pairs.columns[i - 8] == column - 8)
        continue;  // done with that one
      const bool has_partner =
          half == 0 && i + 8 < num_columns && pairs.columns[i + 8] == column + 8;
      for (std::size_t row = 0; row < num_rows; row += kRowsAtOnce) {
        find_rows<kLanesAreKeys>(pairs, i, half, has_partner, row,
                                 std::min(num_rows - row, kRowsAtOnce));
      }
    }
  }

  template <class Pairs>
  HWY_INLINE FloatVec weigh(FloatVec x, const Pairs& pairs) const {
    const auto is_kept = rows_that_see(kept_ + pairs.column * words_per_column_, pairs.row);
    return hn::IfThenElseZero(is_kept, hn::Mul(x, hn::Set(FloatTag(), bits_.factor)));
  }

 private:
  static constexpr std::size_t kRowsAtOnce = 128;  ///< 64 blocks

  /// Writes the bits of rows [row, row + num_rows) of column i, and of column i + 8 if that is its
  /// partner.
  template <bool kLanesAreKeys>
  void find_rows(const ChunkPairs<kLanesAreKeys>& pairs, std::size_t i, int half, bool has_partner,
                 std::size_t row, std::size_t num_rows) {
    const WordTag tag;
    const WordVec threshold = hn::Set(tag, bits_.threshold);
    const WordVec of_column = hn::Set(tag, DropoutBits::block_of(pairs.columns[i]));
    const std::uint32_t first_block =
        DropoutBits::block_of(pairs.first_row + static_cast<std::int64_t>(row));
    const std::size_t num_blocks = (num_rows + 15) / 16 * 8;
    std::uint64_t kept[4] = {0, 0, 0, 0};  // of the words of each block
    for (std::size_t block = 0; block < num_blocks; block += kLanes) {
      const WordVec of_lanes = hn::Iota(tag, first_block + static_cast<std::uint32_t>(block));
      WordVec words[4] = {hn::Set(tag, bits_.counter_0), hn::Set(tag, head_),
                          kLanesAreKeys ? of_column : of_lanes,
                          kLanesAreKeys ? of_lanes : of_column};
      philox_of_lanes(words, bits_.key_0, bits_.key_1);
      FDMA_UNROLL for (int w = 0; w < 4; ++w) {
        std::uint8_t bytes[8] = {};
        hn::StoreMaskBits(tag, hn::Eq(hn::Max(words[w], threshold), words[w]), bytes);
        std::uint64_t bits = 0;
        std::memcpy(&bits, bytes, sizeof bits);
        kept[w] |= bits << block;
      }
    }
    // Bit 0 of a word's number is the half of the key, bit 1 that of the query.
    const auto store = [&](std::size_t column, int half_of_column) {
      const int of_column_bit = kLanesAreKeys ? 2 * half_of_column : half_of_column;
      store_rows(column, row, num_blocks, kept[of_column_bit],
                 kept[of_column_bit + (kLanesAreKeys ? 1 : 2)]);
    };
    store(i, half);
    if (has_partner) store(i + 8, 1);
  }

  /// `lower` and `upper` are the bits of the first and the second eight rows of each sixteen.
  void store_rows(std::size_t column, std::size_t row, std::size_t num_blocks, std::uint64_t lower,
                  std::uint64_t upper) {
    auto* to = reinterpret_cast<unsigned char*>(kept_ + column * words_per_column_) + row / 8;
    for (std::size_t block = 0; block < num_blocks; block += 8) {
      to[block / 4] = static_cast<unsigned char>(lower >> block);
      to[block / 4 + 1] = static_cast<unsigned char>(upper >> block);
    }
  }

  DropoutBits bits_;
  std::int64_t heads_q_;
  std::size_t words_per_column_;
  std::uint64_t* kept_;
  std::uint32_t head_ = 0;
};

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
