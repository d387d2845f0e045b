// FlashAttention's packed sequences to a mask.
//
// Row i of a sequence of sq rows and sk keys sees [max(0, x - left), min(sk, x + right + 1)) with
// x = i + sk - sq. Both bounds are constant or move by one key per row, so that a sequence is at
// most three bands of rows, cut where a bound leaves its end.
#include <algorithm>
#include <array>

#include "fdma/formats/interop/cu_seqlens.hpp"
#include "fdma/formats/row_bands.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

using interop::wrong;

Result<void> check_offsets(const char* name, const std::vector<std::int32_t>& offsets) {
  if (offsets.front() != 0) {
    return wrong(fmt::format("{}[0]: {}, expected 0", name, offsets.front()));
  }
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] >= offsets[i - 1]) continue;
    return wrong(fmt::format("{}[{}]: {} after {}, expected no decrease", name, i, offsets[i],
                             offsets[i - 1]));
  }
  return {};
}

Result<void> check_used(const char* name, const std::optional<std::vector<std::int32_t>>& used,
                        const std::vector<std::int32_t>& offsets) {
  if (!used) return {};
  FDMA_TRY_VOID(
      interop::check_extent(name, used->size(), static_cast<std::int64_t>(offsets.size()) - 1, 1));
  for (std::size_t i = 0; i < used->size(); ++i) {
    const std::int32_t length = offsets[i + 1] - offsets[i];
    if ((*used)[i] >= 0 && (*used)[i] <= length) continue;
    return wrong(fmt::format("{}[{}]: {}, expected 0 to {}, the sequence's length", name, i,
                             (*used)[i], length));
  }
  return {};
}

Result<void> check(const CuSeqlens& sequences) {
  if (sequences.cu_seqlens_q.size() < 2) {
    return interop::mismatch(fmt::format("cu_seqlens_q: {} entries, expected at least 2",
                                         sequences.cu_seqlens_q.size()));
  }
  FDMA_TRY_VOID(interop::check_extent("cu_seqlens_k", sequences.cu_seqlens_k.size(),
                                      static_cast<std::int64_t>(sequences.cu_seqlens_q.size()), 1));
  FDMA_TRY_VOID(check_offsets("cu_seqlens_q", sequences.cu_seqlens_q));
  FDMA_TRY_VOID(check_offsets("cu_seqlens_k", sequences.cu_seqlens_k));
  FDMA_TRY_VOID(check_used("seqused_q", sequences.seqused_q, sequences.cu_seqlens_q));
  FDMA_TRY_VOID(check_used("seqused_k", sequences.seqused_k, sequences.cu_seqlens_k));
  for (const auto& [name, window] :
       {std::pair{"left", sequences.window_left}, std::pair{"right", sequences.window_right}}) {
    if (window >= -1) continue;
    return wrong(fmt::format("window_size: {} keys to the {}, expected -1 (no bound) or more",
                             window, name));
  }
  const auto num_sequences = static_cast<std::int64_t>(sequences.cu_seqlens_q.size()) - 1;
  return interop::check_pairs(sequences.is_packed ? 1 : num_sequences, sequences.num_heads);
}

// The part of a sequence that is in use, in rows and keys of its batch element.
struct Sequence {
  std::int64_t q_begin, q_len, k_begin, k_len;
};

Sequence sequence_of(const CuSeqlens& sequences, std::size_t i) {
  const auto length = [&](const std::vector<std::int32_t>& offsets,
                          const std::optional<std::vector<std::int32_t>>& used) {
    return std::int64_t{used ? (*used)[i] : offsets[i + 1] - offsets[i]};
  };
  return {sequences.is_packed ? sequences.cu_seqlens_q[i] : 0,
          length(sequences.cu_seqlens_q, sequences.seqused_q),
          sequences.is_packed ? sequences.cu_seqlens_k[i] : 0,
          length(sequences.cu_seqlens_k, sequences.seqused_k)};
}

// Appends the bands of one sequence.
void add_bands(const CuSeqlens& sequences, const Sequence& sequence, RowBands& bands) {
  // No window reaches beyond the longest sequence; clipped windows cannot overflow in sums.
  const auto clipped = [](std::int64_t keys) { return std::min(keys, 2 * kMaxLength); };
  const bool has_left = sequences.window_left >= 0;
  const bool has_right = sequences.is_causal || sequences.window_right >= 0;
  const std::int64_t left = clipped(sequences.window_left);
  const std::int64_t right = sequences.is_causal ? 0 : clipped(sequences.window_right);
  if (sequence.k_len == 0) return;
  const std::int64_t shift = sequence.k_len - sequence.q_len;
  // The first row that sees a key, the first whose lower bound moves, the first whose upper bound
  // does not move.
  const auto row = [&](std::int64_t i) { return std::clamp<std::int64_t>(i, 0, sequence.q_len); };
  const std::int64_t seeing = has_right ? row(-shift - right) : 0;
  const std::int64_t moving_lo = has_left ? row(left - shift + 1) : sequence.q_len;
  const std::int64_t still_hi = has_right ? row(sequence.q_len - 1 - right) : 0;
  std::array<std::int64_t, 4> cuts{seeing, std::max(moving_lo, seeing), std::max(still_hi, seeing),
                                   sequence.q_len};
  std::sort(cuts.begin(), cuts.end());
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    if (cuts[c] == cuts[c + 1]) continue;
    const std::int64_t diagonal = sequence.k_begin + shift - sequence.q_begin;  // k - q on it
    AffineInterval keys{sequence.k_begin, sequence.k_begin + sequence.k_len, 0, 0};
    if (cuts[c] >= moving_lo) {
      keys.lo_base = diagonal - left;
      keys.lo_slope = 1;
    }
    if (cuts[c] < still_hi) {
      keys.hi_base = diagonal + right + 1;
      keys.hi_slope = 1;
    }
    bands.bands.push_back({static_cast<std::int32_t>(sequence.q_begin + cuts[c]),
                           static_cast<std::int32_t>(sequence.q_begin + cuts[c + 1]),
                           static_cast<std::int64_t>(bands.intervals.size()), 1});
    bands.intervals.push_back(keys);
  }
}

}  // namespace

Result<BlockMask> block_mask_from_cu_seqlens(const CuSeqlens& sequences, BlockShape block) {
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY_VOID(check(sequences));
  const std::size_t num_sequences = sequences.cu_seqlens_q.size() - 1;
  MaskShape shape{1, sequences.num_heads, {}, {}};
  std::vector<SegmentMask> masks;
  if (sequences.is_packed) {
    RowBands bands;
    bands.q_len = sequences.cu_seqlens_q.back();
    bands.kv_len = sequences.cu_seqlens_k.back();
    for (std::size_t i = 0; i < num_sequences; ++i) {
      add_bands(sequences, sequence_of(sequences, i), bands);
    }
    shape.q_lens = {bands.q_len};
    shape.kv_lens = {bands.kv_len};
    masks.push_back(segment_from_bands(bands, block));
  } else {
    shape.num_batches = static_cast<std::int64_t>(num_sequences);
    for (std::size_t i = 0; i < num_sequences; ++i) {
      RowBands bands;
      bands.q_len = sequences.cu_seqlens_q[i + 1] - sequences.cu_seqlens_q[i];
      bands.kv_len = sequences.cu_seqlens_k[i + 1] - sequences.cu_seqlens_k[i];
      add_bands(sequences, sequence_of(sequences, i), bands);
      shape.q_lens.push_back(bands.q_len);
      shape.kv_lens.push_back(bands.kv_len);
      masks.push_back(segment_from_bands(bands, block));
    }
    for (auto* lengths : {&shape.q_lens, &shape.kv_lens}) {
      const auto is_other = [&](std::int64_t length) { return length != lengths->front(); };
      if (std::none_of(lengths->begin(), lengths->end(), is_other)) lengths->resize(1);
    }
  }
  std::vector<std::int32_t> mask_of;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    mask_of.insert(mask_of.end(), static_cast<std::size_t>(shape.num_heads),
                   static_cast<std::int32_t>(i));
  }
  return make_block_mask(std::move(shape), block, std::move(masks), mask_of);
}

}  // namespace fdma
