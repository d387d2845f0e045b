// Grouping of (batch, head) pairs with identical masks.
#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

template <class T>
std::uint64_t hash_array(const std::vector<T>& values, std::uint64_t seed) {
  return XXH3_64bits_withSeed(values.data(), values.size() * sizeof(T), seed + values.size());
}

// Equal masks have equal hashes. Equality decides between masks of equal hash.
std::uint64_t hash_mask(const SegmentMask& mask) {
  std::uint64_t hash = static_cast<std::uint64_t>(mask.q_len * 0x9E3779B9 + mask.kv_len);
  for (const TileRun& run : mask.runs) {  // not as bytes: TileRun may hold padding
    const std::int64_t fields[] = {run.first_row, run.num_rows, run.num_segments};
    hash = XXH3_64bits_withSeed(fields, sizeof fields, hash);
  }
  hash = hash_array(mask.segments, hash);
  hash = hash_array(mask.bitmaps, hash);
  hash = hash_array(mask.row_intervals, hash);
  hash = hash_array(mask.pattern_tiles, hash);
  return hash_array(mask.column_intervals, hash);
}

}  // namespace

BlockMask make_block_mask(MaskShape shape, BlockShape block, std::vector<SegmentMask> masks,
                          std::span<const std::int32_t> mask_of) {
  DataIndex known;
  std::vector<std::int32_t> group_of_mask(masks.size(), -1);
  BlockMask result;
  std::vector<SegmentMask> groups;
  result.group_of.reserve(mask_of.size());
  for (const std::int32_t m : mask_of) {
    std::int32_t& group = group_of_mask[static_cast<std::size_t>(m)];
    if (group < 0) {
      SegmentMask& mask = masks[static_cast<std::size_t>(m)];
      const std::uint64_t hash = masks.size() == 1 ? 0 : hash_mask(mask);
      group = known.find(
          hash, [&](std::int32_t g) { return groups[static_cast<std::size_t>(g)] == mask; });
      if (group < 0) {
        group = static_cast<std::int32_t>(groups.size());
        known.insert(hash, group);
        groups.push_back(std::move(mask));
      }
    }
    result.group_of.push_back(group);
  }
  result.block = block;
  result.shape = std::move(shape);
  result.groups = std::move(groups);
  return result;
}

}  // namespace fdma
