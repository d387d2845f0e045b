// Crops: a window of query rows, keys, batch elements and heads as a mask of its own.
//
// Each group that is still used is cut in its own format. A closed form is shifted, columns are
// clipped, dense rows are moved by whole words or shifts. The tiled formats go through the
// canonical form, from which the window is gathered in the same blocks (reblock.cpp), aligned or
// not.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "algebra/column_window.hpp"
#include "algebra/reblock.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "segment/bit_copy.hpp"

namespace fdma {
namespace {

SegmentMask crop_group(const SegmentMask& mask, const CellWindow& window) {
  return reblock(mask, window, mask.block);
}

BlockBitset crop_group(const BlockBitset& mask, const CellWindow& window) {
  return bitset_from_segment(reblock(segment_from_bitset(mask), window, mask.block));
}

BcsrMask crop_group(const BcsrMask& mask, const CellWindow& window) {
  return bcsr_from_segment(reblock(segment_from_bcsr(mask), window, mask.block));
}

ColumnIntervals crop_group(const ColumnIntervals& mask, const CellWindow& window) {
  return column_window(mask.offsets, mask.intervals, window);
}

DenseBits crop_group(const DenseBits& mask, const CellWindow& window) {
  DenseBits result;
  result.q_len = window.q_end - window.q_begin;
  result.kv_len = window.kv_end - window.kv_begin;
  result.words.resize(static_cast<std::size_t>(result.q_len * result.words_per_row()));
  for (std::int64_t q = 0; q < result.q_len; ++q) {
    copy_bits(result.words.data() + q * result.words_per_row(), 0,
              mask.words.data() + (window.q_begin + q) * mask.words_per_row(), window.kv_begin,
              result.kv_len);
  }
  return result;
}

// Shifts the closed form, and returns the one that the cells alone determine, where there is one.
ParametricMask crop_group(const ParametricMask& mask, const CellWindow& window) {
  ParametricMask result = mask;
  result.q_len = window.q_end - window.q_begin;
  result.kv_len = window.kv_end - window.kv_begin;
  const auto key = [&](std::int64_t k) {
    return std::clamp<std::int64_t>(k - window.kv_begin, 0, result.kv_len);
  };
  result.pos_offset += window.q_begin - window.kv_begin;
  result.prefix = key(mask.prefix);
  result.sink = key(mask.sink);
  result.kv_begin = key(mask.kv_begin);
  result.kv_end = key(mask.kv_end);
  for (std::int64_t& border : result.cu_seqlens) border -= window.kv_begin;
  auto canonical = parametric_from_segment(segment_from_parametric(result, BlockShape{}));
  return canonical ? *std::move(canonical) : result;
}

Result<void> check_range(const char* name, std::int64_t begin, std::int64_t end, std::int64_t limit,
                         const std::string& of) {
  if (0 <= begin && begin <= end && end <= limit) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("crop: {} [{}, {}), expected a range inside [0, {}){}", name, begin, end,
                           limit, of)};
}

Result<void> check(const BlockMask& mask, const CropRange& range) {
  const MaskShape& shape = mask.shape;
  FDMA_TRY_VOID(
      check_range("batch elements", range.batch_begin, range.batch_end, shape.num_batches, ""));
  FDMA_TRY_VOID(check_range("heads", range.head_begin, range.head_end, shape.num_heads, ""));
  if (range.batch_begin == range.batch_end || range.head_begin == range.head_end) {
    return Error{ErrorCode::invalid_argument,
                 "crop: expected at least one batch element and one head"};
  }
  for (std::int64_t b = range.batch_begin; b < range.batch_end; ++b) {
    const bool is_uniform = shape.q_lens.size() == 1 && shape.kv_lens.size() == 1;
    const std::string of = is_uniform ? "" : fmt::format(" of batch element {}", b);
    FDMA_TRY_VOID(check_range("query rows", range.q_begin, range.q_end, shape.q_len(b), of));
    FDMA_TRY_VOID(check_range("keys", range.kv_begin, range.kv_end, shape.kv_len(b), of));
    if (is_uniform) break;
  }
  return {};
}

// Sets groups and group_of of the result.
void crop_groups(const BlockMask& mask, const CropRange& range, BlockMask& result) {
  std::visit(
      [&](const auto& masks) {
        const CellWindow window{range.q_begin, range.q_end, range.kv_begin, range.kv_end};
        std::remove_cvref_t<decltype(masks)> cut;
        std::vector<std::int32_t> new_group(masks.size(), -1);
        for (std::int64_t b = range.batch_begin; b < range.batch_end; ++b) {
          for (std::int64_t h = range.head_begin; h < range.head_end; ++h) {
            const auto old_group = static_cast<std::size_t>(mask.group(b, h));
            std::int32_t& group = new_group[old_group];
            if (group < 0) {  // groups that differed elsewhere may be equal in the window
              auto cells = crop_group(masks[old_group], window);
              const auto known = std::find(cut.begin(), cut.end(), cells);
              group = static_cast<std::int32_t>(known - cut.begin());
              if (known == cut.end()) cut.push_back(std::move(cells));
            }
            result.group_of.push_back(group);
          }
        }
        result.groups = std::move(cut);
      },
      mask.groups);
}

}  // namespace

Result<BlockMask> crop(const BlockMask& mask, const CropRange& range) {
  FDMA_TRY_VOID(check(mask, range));
  BlockMask result;
  result.block = mask.block;
  result.shape.num_batches = range.batch_end - range.batch_begin;
  result.shape.num_heads = range.head_end - range.head_begin;
  result.shape.q_lens = {range.q_end - range.q_begin};
  result.shape.kv_lens = {range.kv_end - range.kv_begin};
  result.origin = {mask.origin.q_offset + range.q_begin, mask.origin.kv_offset + range.kv_begin,
                   mask.origin.batch_offset + range.batch_begin,
                   mask.origin.head_offset + range.head_begin};
  mark_as(mask, result);
  result.group_of.reserve(
      static_cast<std::size_t>(result.shape.num_batches * result.shape.num_heads));
  try {
    crop_groups(mask, range, result);
  } catch (const std::bad_alloc&) {  // a builder throws where memory does not suffice
    return Error{ErrorCode::out_of_memory,
                 "crop: not enough memory for the segments of the result"};
  }
  return result;
}

}  // namespace fdma
