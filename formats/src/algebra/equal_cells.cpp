// Equality of cells. Each pair of groups that some (batch, head) has is compared once: as stored
// where the formats agree, otherwise as segment masks in equal blocks. Canonical masks with equal
// cells have equal arrays. Where one of the two has patterns, their symmetric difference is empty.
#include <optional>
#include <set>
#include <utility>

#include "algebra/combine_segments.hpp"
#include "fdma/formats/convert.hpp"

namespace fdma {
namespace {

class SegmentGroups {
 public:
  SegmentGroups(const BlockMask& mask, BlockShape block)
      : mask_(mask), block_(block), groups_(static_cast<std::size_t>(mask.num_groups())) {}
  const SegmentMask& operator[](std::int32_t group) {
    std::optional<SegmentMask>& known = groups_[static_cast<std::size_t>(group)];
    if (!known) known = segment_of_group(mask_, group, block_);
    return *known;
  }

 private:
  const BlockMask& mask_;
  const BlockShape block_;
  std::vector<std::optional<SegmentMask>> groups_;
};

bool equal_segments(const SegmentMask& a, const SegmentMask& b) {
  if (a == b) return true;
  if (!a.has_patterns() && !b.has_patterns()) return false;
  // Segments of patterns may be empty where they lie: their tiles are counted.
  const TileCounts different =
      count_tiles(combine_segments(a, b, SetOperation::symmetric_difference));
  return different.full + different.partial == 0;
}

bool equal_as_stored(const BlockMask& a, std::int32_t group_a, const BlockMask& b,
                     std::int32_t group_b) {
  if (a.format() != b.format()) return false;
  return std::visit(
      [&](const auto& masks) {
        const auto& others = std::get<std::remove_cvref_t<decltype(masks)>>(b.groups);
        return masks[static_cast<std::size_t>(group_a)] ==
               others[static_cast<std::size_t>(group_b)];
      },
      a.groups);
}

}  // namespace

bool equal_cells(const BlockMask& a, const BlockMask& b) {
  if (a.shape.num_batches != b.shape.num_batches || a.shape.num_heads != b.shape.num_heads) {
    return false;
  }
  for (std::int64_t batch = 0; batch < a.shape.num_batches; ++batch) {
    if (a.shape.q_len(batch) != b.shape.q_len(batch) ||
        a.shape.kv_len(batch) != b.shape.kv_len(batch)) {
      return false;
    }
  }
  std::set<std::pair<std::int32_t, std::int32_t>> pairs;
  for (std::size_t i = 0; i < a.group_of.size(); ++i) pairs.emplace(a.group_of[i], b.group_of[i]);
  SegmentGroups groups_a(a, a.block), groups_b(b, a.block);
  for (const auto& [group_a, group_b] : pairs) {
    if (equal_as_stored(a, group_a, b, group_b)) continue;
    if (!equal_segments(groups_a[group_a], groups_b[group_b])) return false;
  }
  return true;
}

}  // namespace fdma
