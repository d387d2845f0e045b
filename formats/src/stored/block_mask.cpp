#include "fdma/formats/block_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace fdma {
namespace {

constexpr auto kFormatNames = std::to_array<std::string_view>(
    {"segment", "parametric", "bitset", "bcsr", "columns", "dense"});
static_assert(kFormatNames.size() == kMaskFormats.size());
static_assert(std::variant_size_v<BlockMask::Storage> == kMaskFormats.size());

template <class T>
std::int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(T));
}

Result<void> validate_lengths(const char* name, const std::vector<std::int64_t>& lengths,
                              std::int64_t num_batches) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  if (count != 1 && count != num_batches) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("{}: {} entries, expected 1 or num_batches = {}", name, count, num_batches)};
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > kMaxLength) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}[{}]: {}, expected 0 to {}", name, i, lengths[i], kMaxLength)};
    }
  }
  return {};
}

Result<void> validate_side(const char* name, std::int32_t side) {
  if (side >= 16 && side <= kMaxBlockSide && side % 16 == 0) return {};
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("{}: {}, expected a multiple of 16 from 16 to {}", name, side, kMaxBlockSide)};
}

}  // namespace

std::string_view to_string(MaskFormat format) {
  return kFormatNames[static_cast<std::size_t>(format)];
}

Result<MaskFormat> parse_mask_format(std::string_view name) {
  const auto it = std::find(kFormatNames.begin(), kFormatNames.end(), name);
  if (it != kFormatNames.end()) return static_cast<MaskFormat>(it - kFormatNames.begin());
  return Error{ErrorCode::invalid_argument,
               fmt::format("format: '{}', expected one of {}", name,
                           fmt::join(kFormatNames.begin(), kFormatNames.end(), ", "))};
}

std::int64_t MaskShape::max_q_len() const {
  return q_lens.empty() ? 0 : *std::max_element(q_lens.begin(), q_lens.end());
}

std::int64_t MaskShape::max_kv_len() const {
  return kv_lens.empty() ? 0 : *std::max_element(kv_lens.begin(), kv_lens.end());
}

Result<void> validate(const MaskShape& shape) {
  constexpr std::int64_t kMaxPairs = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, count] :
       {std::pair{"num_batches", shape.num_batches}, std::pair{"num_heads", shape.num_heads}}) {
    if (count < 1) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: {}, expected at least 1", name, count)};
    }
  }
  if (shape.num_batches > kMaxPairs / shape.num_heads) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_batches * num_heads: {} * {}, expected at most {}",
                             shape.num_batches, shape.num_heads, kMaxPairs)};
  }
  FDMA_TRY_VOID(validate_lengths("q_lens", shape.q_lens, shape.num_batches));
  return validate_lengths("kv_lens", shape.kv_lens, shape.num_batches);
}

Result<void> validate(BlockShape block) {
  FDMA_TRY_VOID(validate_side("block_q", block.block_q));
  return validate_side("block_kv", block.block_kv);
}

std::int64_t BlockMask::num_groups() const {
  return std::visit([](const auto& masks) { return static_cast<std::int64_t>(masks.size()); },
                    groups);
}

std::int64_t BlockMask::size_bytes() const {
  return std::visit(
      [](const auto& masks) {
        std::int64_t bytes = 0;
        for (const auto& mask : masks) bytes += mask.size_bytes();
        return bytes;
      },
      groups);
}

std::int64_t BlockBitset::size_bytes() const {
  return bytes_of(active) + bytes_of(full) + bytes_of(partial_offsets) + bytes_of(bitmap_index) +
         bytes_of(bitmaps);
}

std::int64_t BcsrMask::size_bytes() const {
  return bytes_of(row_offsets) + bytes_of(col_indices) + bytes_of(bitmap_index) + bytes_of(bitmaps);
}

std::int64_t ColumnIntervals::size_bytes() const { return bytes_of(offsets) + bytes_of(intervals); }

BlockMask make_block_mask(MaskShape shape, BlockShape block, std::vector<SegmentMask> masks) {
  std::vector<std::int32_t> mask_of(static_cast<std::size_t>(shape.num_batches * shape.num_heads));
  if (masks.size() != 1) std::iota(mask_of.begin(), mask_of.end(), 0);
  return make_block_mask(std::move(shape), block, std::move(masks), mask_of);
}

}  // namespace fdma
