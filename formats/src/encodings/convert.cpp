// Conversions of whole block masks: each group to the canonical form, and from it to the format
// asked for.
#include "fdma/formats/convert.hpp"

#include <fmt/format.h>

#include <new>
#include <type_traits>
#include <utility>

#include "algebra/reblock.hpp"
#include "fdma/base/memory.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/formats/served_pairs.hpp"

namespace fdma {
namespace {

SegmentMask segment_from(const SegmentMask& mask, BlockShape block) {
  return segment_from_segment(mask, block);
}
SegmentMask segment_from(const ParametricMask& mask, BlockShape block) {
  return segment_from_parametric(mask, block);
}
SegmentMask segment_from(const BlockBitset& mask, BlockShape block) {
  SegmentMask segments = segment_from_bitset(mask);
  return block == mask.block ? segments : segment_from_segment(segments, block);
}
SegmentMask segment_from(const BcsrMask& mask, BlockShape block) {
  SegmentMask segments = segment_from_bcsr(mask);
  return block == mask.block ? segments : segment_from_segment(segments, block);
}
SegmentMask segment_from(const ColumnIntervals& mask, BlockShape block) {
  return segment_from_columns(mask, block);
}
SegmentMask segment_from(const DenseBits& mask, BlockShape block) {
  return segment_from_dense(mask, block);
}

// Converts every group by `from_segment`, which returns a value or a Result, in parallel. The first
// error by group number is returned. Memory is taken only if there is enough for all groups.
template <class T, class FromSegment>
Result<BlockMask::Storage> convert_groups(const BlockMask& mask, MaskFormat format,
                                          BlockShape block, FromSegment&& from_segment) {
  const auto num_groups = static_cast<std::size_t>(mask.num_groups());
  std::vector<T> groups(num_groups);
  std::vector<std::optional<Error>> errors(num_groups);
  MemoryBudget budget(to_string(format));
  const auto convert_group = [&](std::size_t g) {
    SegmentMask segments = segment_of_group(mask, static_cast<std::int64_t>(g), block);
    const ConversionBytes bytes = conversion_bytes(segments, format);
    if (const Result<void> status = budget.take(bytes.result + bytes.scratch); !status) {
      errors[g] = status.error();
      return;
    }
    auto converted = from_segment(std::move(segments));
    budget.give_back(bytes.scratch);
    if constexpr (std::is_same_v<decltype(converted), T>) {
      groups[g] = std::move(converted);
    } else if (converted) {
      groups[g] = *std::move(converted);
    } else {
      errors[g] = converted.error();
    }
  };
  parallel_for(std::size_t{0}, num_groups, [&](std::size_t g) {
    try {
      convert_group(g);
    } catch (const std::bad_alloc&) {  // a builder throws where memory does not suffice
      errors[g] = Error{
          ErrorCode::out_of_memory,
          fmt::format("{}: not enough memory for the segments of the mask", to_string(format))};
    }
  });
  for (std::size_t g = 0; g < num_groups; ++g) {
    if (!errors[g]) continue;
    if (num_groups == 1) return *errors[g];
    return Error{errors[g]->code, fmt::format("group {}: {}", g, errors[g]->message)};
  }
  return BlockMask::Storage(std::move(groups));
}

Result<BlockMask::Storage> convert_storage(const BlockMask& mask, MaskFormat format,
                                           BlockShape block) {
  switch (format) {
    case MaskFormat::segment:
      return convert_groups<SegmentMask>(mask, format, block, [](SegmentMask m) { return m; });
    case MaskFormat::parametric:
      return convert_groups<ParametricMask>(mask, format, block, parametric_from_segment);
    case MaskFormat::bitset:
      return convert_groups<BlockBitset>(mask, format, block, bitset_from_segment);
    case MaskFormat::bcsr:
      return convert_groups<BcsrMask>(mask, format, block, bcsr_from_segment);
    case MaskFormat::columns:
      return convert_groups<ColumnIntervals>(mask, format, block, columns_from_segment);
    case MaskFormat::dense:
      return convert_groups<DenseBits>(mask, format, block,
                                       [](const SegmentMask& m) { return dense_from_segment(m); });
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("format: {}, expected 0 to {}", static_cast<int>(format),
                           kMaskFormats.size() - 1)};
}

bool has_blocks(MaskFormat format) {
  return format == MaskFormat::segment || format == MaskFormat::bitset ||
         format == MaskFormat::bcsr;
}

}  // namespace

SegmentMask segment_from_segment(const SegmentMask& mask, BlockShape block) {
  return reblock(mask, {0, mask.q_len, 0, mask.kv_len}, block);
}

SegmentMask segment_of_group(const BlockMask& mask, std::int64_t group, BlockShape block) {
  return std::visit(
      [&](const auto& masks) {
        return segment_from(masks[static_cast<std::size_t>(group)], block);
      },
      mask.groups);
}

ConversionBytes conversion_bytes(const SegmentMask& mask, MaskFormat format) {
  ConversionBytes bytes;
  const std::int64_t tile_rows = mask.num_tile_rows();
  switch (format) {
    case MaskFormat::segment:
    case MaskFormat::parametric:
      break;
    case MaskFormat::bitset:
      bytes.result = 16 * tile_rows * ceil_div(ceil_div(mask.kv_len, mask.block.block_kv), 64) +
                     8 * (tile_rows + 1) + 4 * count_tiles(mask).partial;
      break;
    case MaskFormat::bcsr: {
      const TileCounts tiles = count_tiles(mask);
      bytes.result = 8 * (tile_rows + 1) + 8 * (tiles.full + tiles.partial);
      break;
    }
    case MaskFormat::columns: {
      const std::int64_t intervals = count_query_intervals(mask);
      bytes.result = 8 * (mask.kv_len + 1) + 8 * intervals;
      // One change for each key, and one entry for each interval before they are sorted.
      if (mask.column_offsets.empty()) bytes.scratch = 4 * mask.kv_len + 12 * intervals;
      if (mask.has_patterns()) bytes.scratch += bytes.result;  // a list of their last rows
      break;
    }
    case MaskFormat::dense:
      bytes.result = 8 * mask.q_len * ceil_div(mask.kv_len, 64);
      break;
  }
  return bytes;
}

Result<BlockMask> convert(const BlockMask& mask, MaskFormat format, BlockShape block) {
  FDMA_TRY_VOID(validate(block));
  BlockMask result;
  result.block = block;
  result.shape = mask.shape;
  result.origin = mask.origin;
  result.group_of = mask.group_of;
  result.spec = mask.spec;
  mark_as(mask, result);
  if (mask.format() == format && (mask.block == block || !has_blocks(format))) {
    result.groups = mask.groups;
    return result;
  }
  FDMA_TRY(result.groups, convert_storage(mask, format, block));
  return result;
}

}  // namespace fdma
