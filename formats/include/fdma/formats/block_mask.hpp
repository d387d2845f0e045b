// BlockMask: a mask as stored, over all batch elements and heads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/formats/bcsr_mask.hpp"
#include "fdma/formats/block_bitset.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/formats/dense_bits.hpp"
#include "fdma/formats/parametric_mask.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// The formats, in the order of the alternatives of BlockMask::Storage. Files and the command line
/// use the same names: segment, parametric, bitset, bcsr, columns, dense.
enum class MaskFormat : std::uint8_t { segment, parametric, bitset, bcsr, columns, dense };
/// All of them, in this order.
inline constexpr std::array kMaskFormats{MaskFormat::segment, MaskFormat::parametric,
                                         MaskFormat::bitset,  MaskFormat::bcsr,
                                         MaskFormat::columns, MaskFormat::dense};
std::string_view to_string(MaskFormat format);
Result<MaskFormat> parse_mask_format(std::string_view name);

/// Where a crop lay in the mask that it was cut from. This is provenance only: cells are stored
/// relative to the crop.
struct MaskOrigin {
  std::int64_t q_offset = 0;
  std::int64_t kv_offset = 0;
  std::int64_t batch_offset = 0;
  std::int64_t head_offset = 0;
  friend bool operator==(const MaskOrigin&, const MaskOrigin&) = default;
};

/// The batch size, number of heads and lengths that a mask is bound to.
///
/// Shapes      q_lens, kv_lens: one entry (the same for all), or num_batches entries (one per
///             element); each entry in [0, kMaxLength]
struct MaskShape {
  std::int64_t num_batches = 1;
  std::int64_t num_heads = 1;
  std::vector<std::int64_t> q_lens;
  std::vector<std::int64_t> kv_lens;

  std::int64_t q_len(std::int64_t b) const {
    return q_lens[q_lens.size() == 1 ? 0 : static_cast<std::size_t>(b)];
  }
  std::int64_t kv_len(std::int64_t b) const {
    return kv_lens[kv_lens.size() == 1 ? 0 : static_cast<std::size_t>(b)];
  }
  std::int64_t max_q_len() const;
  std::int64_t max_kv_len() const;
  friend bool operator==(const MaskShape&, const MaskShape&) = default;
};
/// Checks that counts are positive and lengths are as MaskShape says. Errors: invalid_argument,
/// shape_mismatch.
Result<void> validate(const MaskShape& shape);
/// Checks that both sides are multiples of 16 in [16, kMaxBlockSide]. Errors: invalid_argument.
Result<void> validate(BlockShape block);

/// A mask as stored: one format, one block shape, and one stored mask per group of identical
/// (batch, head) pairs.
///
/// Shapes      group_of [num_batches * num_heads] int32; the group of (b, h) is at
///             b * num_heads + h; groups are numbered by first occurrence
/// Invariants  every alternative of Storage holds num_groups entries
///             q_len and kv_len of a group are those of its batch elements
///             segment, bitset and bcsr entries have the block `block`
///             validate checks all of these
/// Owner       owns everything (host)
struct BlockMask {
  using Storage =
      std::variant<std::vector<SegmentMask>, std::vector<ParametricMask>, std::vector<BlockBitset>,
                   std::vector<BcsrMask>, std::vector<ColumnIntervals>, std::vector<DenseBits>>;

  BlockShape block;
  MaskShape shape;
  MaskOrigin origin;
  std::vector<std::int32_t> group_of;
  Storage groups;
  std::string spec;  ///< the text that the mask was compiled from, or empty; not part of any hash
  /// The mask was written with b (is_per_batch) or h (is_per_head). Where num_batches (num_heads)
  /// is 1, such a mask belongs to one element (head): make_plan refuses to use it for several.
  /// Neither flag is part of any hash.
  bool is_per_batch = false;
  bool is_per_head = false;

  MaskFormat format() const { return static_cast<MaskFormat>(groups.index()); }
  std::int64_t num_groups() const;
  /// Bytes of the stored arrays of all groups.
  std::int64_t size_bytes() const;
  std::int32_t group(std::int64_t b, std::int64_t h) const {
    return group_of[static_cast<std::size_t>(b * shape.num_heads + h)];
  }
};

/// Makes a BlockMask from segment masks; identical ones are stored once. `masks` has one entry for
/// all (batch, head) pairs, or num_batches * num_heads entries.
BlockMask make_block_mask(MaskShape shape, BlockShape block, std::vector<SegmentMask> masks);

/// As above, where pair p = b * num_heads + h has mask masks[mask_of[p]]. Masks that no pair uses
/// are dropped.
BlockMask make_block_mask(MaskShape shape, BlockShape block, std::vector<SegmentMask> masks,
                          std::span<const std::int32_t> mask_of);

}  // namespace fdma
