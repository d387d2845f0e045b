// Set operations on whole block masks. Each distinct pair of groups is combined once, in parallel.
//
// Groups that are row bands with few intervals (from_segment.hpp) are combined as bands,
// whatever blocks they were stored in, and lowered into the block of the result. Any other group is
// combined tile by tile (tile_layers.hpp) in that block, and so is every group that it is paired
// with. A group that is already stored in that block is used in place.
#include "fdma/formats/set_algebra.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "algebra/combine_segments.hpp"
#include "bands/from_segment.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/formats/band_algebra.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"

namespace fdma {
namespace {

// Group g of a mask, as bands if it has such a form, and as a segment mask, borrowed where it is
// stored as one.
class GroupOperand {
 public:
  GroupOperand(const BlockMask& mask, std::int64_t group, BlockShape block) {
    const auto* stored = std::get_if<std::vector<SegmentMask>>(&mask.groups);
    if (stored != nullptr) {
      borrowed_ = &(*stored)[static_cast<std::size_t>(group)];
    } else {
      owned_ = segment_of_group(mask, group, block);
    }
    bands_ = bands_from_segment(segments());
  }
  const std::optional<RowBands>& bands() const { return bands_; }
  const SegmentMask& segments() const { return borrowed_ != nullptr ? *borrowed_ : owned_; }

  /// Brings the segment mask into `block`.
  void bring_to(BlockShape block) {
    if (segments().block == block) return;
    owned_ = bands_ ? segment_from_bands(*bands_, block) : segment_from_segment(segments(), block);
    borrowed_ = nullptr;
  }

 private:
  const SegmentMask* borrowed_ = nullptr;
  SegmentMask owned_;
  std::optional<RowBands> bands_;
};

std::string lengths_text(const std::vector<std::int64_t>& lengths) {
  if (lengths.size() == 1) return std::to_string(lengths.front());
  return fmt::format("[{}]", fmt::join(lengths, ", "));
}

std::string shape_text(const MaskShape& shape) {
  return fmt::format("batch {}, heads {}, q_len {}, kv_len {}", shape.num_batches, shape.num_heads,
                     lengths_text(shape.q_lens), lengths_text(shape.kv_lens));
}

Error mismatch(const MaskShape& a, const MaskShape& b, const std::string& what) {
  return {ErrorCode::shape_mismatch, fmt::format("combine: {}, but the masks are ({}) and ({})",
                                                 what, shape_text(a), shape_text(b))};
}

// The one of two equal lists of lengths that has one entry, if any.
const std::vector<std::int64_t>& shorter(const std::vector<std::int64_t>& a,
                                         const std::vector<std::int64_t>& b) {
  return b.size() < a.size() ? b : a;
}

Result<MaskShape> common_shape(const MaskShape& a, const MaskShape& b) {
  const auto can_serve = [](std::int64_t x, std::int64_t y) { return x == y || x == 1 || y == 1; };
  if (!can_serve(a.num_batches, b.num_batches)) {
    return mismatch(a, b, "expected equal batches, or 1 in one of the masks");
  }
  if (!can_serve(a.num_heads, b.num_heads)) {
    return mismatch(a, b, "expected equal heads, or 1 in one of the masks");
  }
  MaskShape shape;
  shape.num_batches = std::max(a.num_batches, b.num_batches);
  shape.num_heads = std::max(a.num_heads, b.num_heads);
  for (std::int64_t i = 0; i < shape.num_batches; ++i) {
    const std::int64_t in_a = a.num_batches == 1 ? 0 : i, in_b = b.num_batches == 1 ? 0 : i;
    if (a.q_len(in_a) != b.q_len(in_b) || a.kv_len(in_a) != b.kv_len(in_b)) {
      return mismatch(a, b, fmt::format("expected equal lengths in batch element {}", i));
    }
  }
  shape.q_lens = shorter(a.q_lens, b.q_lens);
  shape.kv_lens = shorter(a.kv_lens, b.kv_lens);
  return shape;
}

Result<BlockMask> in_format(BlockMask mask, const SetAlgebraOptions& options) {
  const MaskFormat format = options.format.value_or(MaskFormat::segment);
  if (format == MaskFormat::segment) return mask;
  FDMA_TRY(BlockMask converted, convert(mask, format, mask.block));
  return converted;
}

// Counts finished steps and asks whether to go on.
class GroupProgress {
 public:
  GroupProgress(const SetAlgebraOptions& options, std::size_t total)
      : options_(options), total_(static_cast<std::int64_t>(total)) {}

  /// Runs `step` unless the caller has cancelled.
  template <class Step>
  void run(Step&& step) {
    if (is_cancelled_ || (options_.is_cancelled && options_.is_cancelled())) {
      is_cancelled_ = true;
      return;
    }
    step();
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    options_.progress(++done_, total_);
  }
  Result<void> result() const {
    if (is_cancelled_) return Error{ErrorCode::io, "interrupted"};
    return {};
  }

 private:
  const SetAlgebraOptions& options_;
  const std::int64_t total_;
  std::mutex mutex_;
  std::int64_t done_ = 0;
  std::atomic<bool> is_cancelled_{false};
};

// The effect of an operation on one mask for a group.
struct GroupChange {
  std::function<std::optional<RowBands>(const RowBands&)> of_bands;  // empty: not possible as bands
  std::function<SegmentMask(const SegmentMask&)> of_segments;
};

// Runs step(i) for all i in [0, count), in parallel. A builder throws where memory does not suffice.
template <class Step>
Result<void> for_all(std::size_t count, Step&& step) {
  try {
    parallel_for(std::size_t{0}, count, step);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 "set operation: not enough memory for the segments of the result; larger blocks "
                 "need fewer"};
  }
  return {};
}

// Changes every group of `mask`. `shape`, `block` and `origin` are those of the result. `change`
// gets segment masks in `group_block` and returns them in `block`.
Result<BlockMask> for_each_group(const BlockMask& mask, BlockShape group_block, MaskShape shape,
                                 BlockShape block, const MaskOrigin& origin,
                                 const SetAlgebraOptions& options, const GroupChange& change) {
  std::vector<SegmentMask> changed(static_cast<std::size_t>(mask.num_groups()));
  const auto change_group = [&](std::size_t g) {
    GroupOperand group(mask, static_cast<std::int64_t>(g), group_block);
    if (group.bands()) {
      if (const std::optional<RowBands> bands = change.of_bands(*group.bands())) {
        changed[g] = segment_from_bands(*bands, block);
        return;
      }
    }
    group.bring_to(group_block);
    changed[g] = change.of_segments(group.segments());
  };
  GroupProgress progress(options, changed.size());
  FDMA_TRY_VOID(
      for_all(changed.size(), [&](std::size_t g) { progress.run([&] { change_group(g); }); }));
  FDMA_TRY_VOID(progress.result());
  BlockMask result = make_block_mask(std::move(shape), block, std::move(changed), mask.group_of);
  result.origin = origin;
  mark_as(mask, result);
  return in_format(std::move(result), options);
}

}  // namespace

Result<BlockMask> combine(const BlockMask& a, const BlockMask& b, SetOperation operation,
                          const SetAlgebraOptions& options) {
  const BlockShape block = options.block.value_or(a.block);
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY(MaskShape shape, common_shape(a.shape, b.shape));
  for (const BlockMask* mask : {&a, &b}) {
    FDMA_TRY_VOID(check_serves(*mask, shape.num_batches, shape.num_heads, "combine: one mask",
                               "the other has"));
  }
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> index_of;
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  std::vector<std::int32_t> pair_of;
  for (std::int64_t i = 0; i < shape.num_batches; ++i) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const auto group_in = [&](const BlockMask& mask) {
        return mask.group(mask.shape.num_batches == 1 ? 0 : i, mask.shape.num_heads == 1 ? 0 : h);
      };
      const std::pair groups{group_in(a), group_in(b)};
      const auto [known, is_new] =
          index_of.try_emplace(groups, static_cast<std::int32_t>(pairs.size()));
      if (is_new) pairs.push_back(groups);
      pair_of.push_back(known->second);
    }
  }
  const auto groups_of = [&](const BlockMask& mask) {
    std::vector<std::optional<GroupOperand>> groups(static_cast<std::size_t>(mask.num_groups()));
    parallel_for(std::size_t{0}, groups.size(), [&](std::size_t g) {
      groups[g].emplace(mask, static_cast<std::int64_t>(g), block);
    });
    return groups;
  };
  auto groups_a = groups_of(a), groups_b = groups_of(b);
  const auto all_bands = [](const auto& groups) {
    return std::all_of(groups.begin(), groups.end(),
                       [](const auto& group) { return group->bands().has_value(); });
  };
  if (!all_bands(groups_a) || !all_bands(groups_b)) {
    for (auto* groups : {&groups_a, &groups_b}) {
      parallel_for(std::size_t{0}, groups->size(),
                   [&](std::size_t g) { (*groups)[g]->bring_to(block); });
    }
  }
  std::vector<SegmentMask> combined(pairs.size());
  const auto combine_pair = [&](std::size_t i) {
    const GroupOperand& group_a = *groups_a[static_cast<std::size_t>(pairs[i].first)];
    const GroupOperand& group_b = *groups_b[static_cast<std::size_t>(pairs[i].second)];
    combined[i] =
        group_a.bands() && group_b.bands()
            ? segment_from_bands(
                  combine_bands(truth_table(operation), *group_a.bands(), *group_b.bands()), block)
            : combine_segments(group_a.segments(), group_b.segments(), operation);
  };
  GroupProgress progress(options, pairs.size());
  FDMA_TRY_VOID(
      for_all(pairs.size(), [&](std::size_t i) { progress.run([&] { combine_pair(i); }); }));
  FDMA_TRY_VOID(progress.result());
  BlockMask result = make_block_mask(std::move(shape), block, std::move(combined), pair_of);
  result.origin = a.origin;
  result.is_per_batch = a.is_per_batch || b.is_per_batch;
  result.is_per_head = a.is_per_head || b.is_per_head;
  return in_format(std::move(result), options);
}

Result<BlockMask> complement(const BlockMask& mask, const SetAlgebraOptions& options) {
  const BlockShape block = options.block.value_or(mask.block);
  FDMA_TRY_VOID(validate(block));
  const auto complement_bands = [](const RowBands& bands) {
    const RowBands nothing{bands.q_len, bands.kv_len, {}, {}};
    return combine_bands(kNotA, bands, nothing);
  };
  return for_each_group(mask, block, mask.shape, block, mask.origin, options,
                        {complement_bands, complement_segment});
}

Result<BlockMask> shift(const BlockMask& mask, std::int64_t dq, std::int64_t dk,
                        const SetAlgebraOptions& options) {
  const BlockShape block = options.block.value_or(mask.block);
  FDMA_TRY_VOID(validate(block));
  for (const auto& [name, distance] : {std::pair{"dq", dq}, std::pair{"dk", dk}}) {
    if (distance < -kMaxLength || distance > kMaxLength) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("shift: {} = {}, expected {} to {}", name, distance, -kMaxLength,
                               kMaxLength)};
    }
  }
  MaskOrigin origin = mask.origin;
  origin.q_offset = std::max<std::int64_t>(origin.q_offset - dq, 0);
  origin.kv_offset = std::max<std::int64_t>(origin.kv_offset - dk, 0);
  return for_each_group(
      mask, block, mask.shape, block, origin, options,
      {[dq, dk](const RowBands& bands) {
         return move_bands(bands, dq, dk, bands.q_len, bands.kv_len);
       },
       [dq, dk](const SegmentMask& group) { return shift_segment(group, dq, dk); }});
}

Result<BlockMask> transpose(const BlockMask& mask, const SetAlgebraOptions& options) {
  const BlockShape block =
      options.block.value_or(BlockShape{mask.block.block_kv, mask.block.block_q});
  FDMA_TRY_VOID(validate(block));
  MaskShape shape = mask.shape;
  std::swap(shape.q_lens, shape.kv_lens);
  MaskOrigin origin = mask.origin;
  std::swap(origin.q_offset, origin.kv_offset);
  return for_each_group(mask, {block.block_kv, block.block_q}, std::move(shape), block, origin,
                        options, {transpose_bands, transpose_segment});
}

}  // namespace fdma
