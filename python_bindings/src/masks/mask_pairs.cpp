// Selects batch elements and heads of a mask, and stacks the batch elements of several masks. Each
// group is copied once, in its own format. Groups are numbered anew by first occurrence.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "arrays/python_error.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "masks/block_mask_binding.hpp"
#include "masks/pair_selection.hpp"

namespace fdma::python {
namespace {

// The lengths of elements [begin, end). A single length that applies to all elements stays single.
std::vector<std::int64_t> lengths_of(const std::vector<std::int64_t>& lengths, std::int64_t begin,
                                     std::int64_t end) {
  if (lengths.size() == 1) return lengths;
  return {lengths.begin() + begin, lengths.begin() + end};
}

// Keeps only one length if all elements have the same.
void make_uniform(std::vector<std::int64_t>& lengths) {
  if (std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end()) {
    lengths.resize(1);
  }
}

}  // namespace

BlockMask select_pairs(const BlockMask& mask, std::int64_t batch_begin, std::int64_t batch_end,
                       std::int64_t head_begin, std::int64_t head_end) {
  static_cast<void>(PairSelection(mask, PairRange(batch_begin, batch_end),
                                  PairRange(head_begin, head_end)));  // throws for a wrong range
  BlockMask result;
  result.block = mask.block;
  result.shape = {batch_end - batch_begin, head_end - head_begin,
                  lengths_of(mask.shape.q_lens, batch_begin, batch_end),
                  lengths_of(mask.shape.kv_lens, batch_begin, batch_end)};
  result.origin = mask.origin;
  result.origin.batch_offset += batch_begin;
  result.origin.head_offset += head_begin;
  mark_as(mask, result);
  std::visit(
      [&](const auto& masks) {
        std::remove_cvref_t<decltype(masks)> kept;
        std::vector<std::int32_t> new_group(masks.size(), -1);
        for (std::int64_t b = batch_begin; b < batch_end; ++b) {
          for (std::int64_t h = head_begin; h < head_end; ++h) {
            const auto old_group = static_cast<std::size_t>(mask.group(b, h));
            std::int32_t& group = new_group[old_group];
            if (group < 0) {
              group = static_cast<std::int32_t>(kept.size());
              kept.push_back(masks[old_group]);
            }
            result.group_of.push_back(group);
          }
        }
        result.groups = std::move(kept);
      },
      mask.groups);
  return result;
}

BlockMask stack_batches(const std::vector<const BlockMask*>& masks) {
  if (masks.empty()) {
    throw PythonError({ErrorCode::invalid_argument, "masks: expected at least one"});
  }
  const BlockMask& first = *masks.front();
  BlockMask result;
  result.block = first.block;
  result.origin = first.origin;
  result.shape.num_batches = 0;
  result.shape.num_heads = first.shape.num_heads;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const BlockMask& mask = *masks[i];
    if (mask.format() != first.format() || mask.block != first.block ||
        mask.shape.num_heads != first.shape.num_heads) {
      throw PythonError(
          {ErrorCode::shape_mismatch,
           fmt::format("masks[{}]: {} in blocks of {} x {} with {} heads, expected {} in blocks of "
                       "{} x {} with {}",
                       i, to_string(mask.format()), mask.block.block_q, mask.block.block_kv,
                       mask.shape.num_heads, to_string(first.format()), first.block.block_q,
                       first.block.block_kv, first.shape.num_heads)});
    }
    for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
      result.shape.q_lens.push_back(mask.shape.q_len(b));
      result.shape.kv_lens.push_back(mask.shape.kv_len(b));
    }
    result.shape.num_batches += mask.shape.num_batches;
    result.is_per_batch |= mask.is_per_batch;
    result.is_per_head |= mask.is_per_head;
  }
  make_uniform(result.shape.q_lens);
  make_uniform(result.shape.kv_lens);
  std::visit(
      [&](const auto& of_first) {
        std::remove_cvref_t<decltype(of_first)> kept;
        for (const BlockMask* mask : masks) {
          const auto& groups = std::get<std::remove_cvref_t<decltype(of_first)>>(mask->groups);
          std::vector<std::int32_t> new_group(groups.size(), -1);
          for (const std::int32_t old_group : mask->group_of) {
            std::int32_t& group = new_group[static_cast<std::size_t>(old_group)];
            if (group < 0) {
              const auto& cells = groups[static_cast<std::size_t>(old_group)];
              const auto known = std::find(kept.begin(), kept.end(), cells);
              group = static_cast<std::int32_t>(known - kept.begin());
              if (known == kept.end()) kept.push_back(cells);
            }
            result.group_of.push_back(group);
          }
        }
        result.groups = std::move(kept);
      },
      first.groups);
  return result;
}

BlockMask convert_keeping_spec(BlockMask mask, MaskFormat format, BlockShape block) {
  if (mask.format() == format && mask.block == block) return mask;
  BlockMask converted = value_or_throw(convert(mask, format, block));
  converted.spec = std::move(mask.spec);
  return converted;
}

}  // namespace fdma::python
