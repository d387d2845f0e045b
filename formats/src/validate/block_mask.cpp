// Validation of whole block masks: counts, lengths, group map, then every group.
#include <algorithm>

#include "fdma/formats/convert.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

BlockShape block_of(const BlockMask&, const SegmentMask& mask) { return mask.block; }
BlockShape block_of(const BlockMask&, const BlockBitset& mask) { return mask.block; }
BlockShape block_of(const BlockMask&, const BcsrMask& mask) { return mask.block; }
template <class Mask>
BlockShape block_of(const BlockMask& whole, const Mask&) {
  return whole.block;
}

Result<void> check_counts(const BlockMask& mask) {
  for (const Result<void>& valid : {validate(mask.shape), validate(mask.block)}) {
    if (!valid) return corrupt_in("", valid.error());
  }
  for (const auto& [name, offset] :
       {std::pair{"q_offset", mask.origin.q_offset}, std::pair{"kv_offset", mask.origin.kv_offset},
        std::pair{"batch_offset", mask.origin.batch_offset},
        std::pair{"head_offset", mask.origin.head_offset}}) {
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    if (offset < 0 || offset > kMost) {
      return corrupt(fmt::format("{}: {}, expected 0 to {}", name, offset, kMost));
    }
  }
  FDMA_TRY_VOID(check_size("group_of", mask.group_of.size(),
                           mask.shape.num_batches * mask.shape.num_heads,
                           "num_batches * num_heads"));
  const std::int64_t num_groups = mask.num_groups();
  if (num_groups < 1 || num_groups > static_cast<std::int64_t>(mask.group_of.size())) {
    return corrupt(fmt::format("groups: {}, expected 1 to {}, the number of (batch, head) pairs",
                               num_groups, mask.group_of.size()));
  }
  return {};
}

Result<void> check_group_map(const BlockMask& mask) {
  const std::int64_t num_groups = mask.num_groups();
  std::int64_t next = 0;
  for (std::size_t i = 0; i < mask.group_of.size(); ++i) {
    const std::int32_t group = mask.group_of[i];
    if (group < 0 || group >= num_groups) {
      return corrupt(fmt::format("group_of[{}]: {}, expected 0 to {}", i, group, num_groups - 1));
    }
    if (group > next) {
      return corrupt(fmt::format(
          "group_of[{}]: {}, expected at most {}: groups are numbered by first occurrence", i,
          group, next));
    }
    next = std::max<std::int64_t>(next, group + 1);
  }
  return check_size("groups", static_cast<std::size_t>(num_groups), next, "group_of names as many");
}

// Checks that the lengths of every group agree with those of its batch elements.
template <class Mask>
Result<void> check_group_lengths(const BlockMask& mask, const std::vector<Mask>& groups) {
  const std::int64_t num_heads = mask.shape.num_heads;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const std::int32_t g = mask.group(b, h);
      const Mask& group = groups[static_cast<std::size_t>(g)];
      if (group.q_len == mask.shape.q_len(b) && group.kv_len == mask.shape.kv_len(b)) continue;
      return corrupt(
          fmt::format("group {}: lengths {} x {}, but batch element {} that uses it has "
                      "{} x {}",
                      g, group.q_len, group.kv_len, b, mask.shape.q_len(b), mask.shape.kv_len(b)));
    }
  }
  return {};
}

}  // namespace

Result<void> validate(const BlockMask& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_counts(mask));
  if (level != ValidationLevel::sizes) FDMA_TRY_VOID(check_group_map(mask));
  return std::visit(
      [&](const auto& groups) -> Result<void> {
        for (std::size_t g = 0; g < groups.size(); ++g) {
          const BlockShape block = block_of(mask, groups[g]);
          if (block != mask.block) {
            return corrupt(fmt::format("group {}: block {} x {}, expected {} x {}", g,
                                       block.block_q, block.block_kv, mask.block.block_q,
                                       mask.block.block_kv));
          }
          const Result<void> valid = validate(groups[g], level);
          if (!valid) {
            return groups.size() == 1 ? valid
                                      : corrupt_in(fmt::format("group {}: ", g), valid.error());
          }
        }
        if (level == ValidationLevel::sizes) return {};
        FDMA_TRY_VOID(check_group_lengths(mask, groups));
        if (level == ValidationLevel::structure) return {};
        for (std::size_t g = 1; g < groups.size(); ++g) {
          const auto same =
              std::find(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(g), groups[g]);
          if (same - groups.begin() < static_cast<std::ptrdiff_t>(g)) {
            return corrupt(fmt::format("group {}: equal to group {}, expected to be stored once", g,
                                       same - groups.begin()));
          }
        }
        return {};
      },
      mask.groups);
}

}  // namespace fdma
