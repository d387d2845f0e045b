#include "backend/pattern_cases.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>
#include <vector>

#include "fdma/formats/segment_builder.hpp"
#include "segment/pattern_masks.hpp"

namespace fdma::testing {
namespace {

BlockMask as_block_mask(SegmentMask mask) {
  MaskShape shape;
  shape.q_lens = {mask.q_len};
  shape.kv_lens = {mask.kv_len};
  const BlockShape block = mask.block;
  std::vector<SegmentMask> masks;
  masks.push_back(std::move(mask));
  return make_block_mask(std::move(shape), block, std::move(masks));
}

// What add_pattern takes for tile (row, col) of a condition.
template <class Condition>
std::int32_t tile_of(SegmentBuilder& builder, std::int32_t block, std::int64_t row,
                     std::int64_t col, const Condition& condition) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(block) * block / 64);
  std::int64_t num_live = 0;
  for (std::int64_t r = 0; r < block; ++r) {
    for (std::int64_t c = 0; c < block; ++c) {
      if (!condition(row * block + r, col * block + c)) continue;
      const std::int64_t bit = r * block + c;
      words[static_cast<std::size_t>(bit / 64)] |= std::uint64_t{1} << (bit % 64);
      ++num_live;
    }
  }
  if (num_live == 0) return kEmptyTile;
  if (num_live == std::int64_t{block} * block) return kFullTile;
  return builder.intern_bitmap(words.data());
}

void append(const SegmentBuilder::PatternContent& content, const TileSegment& place,
            std::vector<TileSegment>& segments) {
  if (content.is_empty) return;
  segments.push_back(place);
  segments.back().kind = content.kind;
  segments.back().data_index = content.data_index;
}

}  // namespace

SegmentMask causal_periodic(std::int64_t num_tiles, std::int32_t block, std::int64_t period,
                            std::int64_t live) {
  SegmentBuilder builder(num_tiles * block, num_tiles * block, {block, block});
  const auto turn = static_cast<std::int32_t>(period / std::gcd(period, std::int64_t{block}));
  std::vector<std::int32_t> past, diagonal;
  for (std::int32_t i = 0; i < turn; ++i) {
    past.push_back(tile_of(builder, block, 0, i, [&](auto, auto k) { return k % period < live; }));
    diagonal.push_back(
        tile_of(builder, block, i, i, [&](auto q, auto k) { return k <= q && k % period < live; }));
  }
  const auto before = builder.add_pattern(1, turn, 0, past);
  const auto last = builder.add_pattern(turn, 1, 0, diagonal);
  std::vector<TileSegment> segments;
  append(last, {0, 1, 1, 1, {}, 0}, segments);
  builder.add_rows(0, 1, segments);
  builder.skip_to(1);
  if (num_tiles > 1) {
    segments.clear();
    append(before, {0, 1, 0, 1, {}, 0}, segments);
    append(last, {1, 2, 1, 1, {}, 0}, segments);
    builder.add_rows(1, static_cast<std::int32_t>(num_tiles) - 1, segments);
    builder.skip_to(static_cast<std::int32_t>(num_tiles));
  }
  return builder.finish();
}

MaskCase causal_periodic_case(std::int64_t num_tiles, std::int32_t block, std::int64_t period,
                              std::int64_t live) {
  MaskCase result;
  result.name = fmt::format("causal & k % {} < {}, {} tiles of {}", period, live, num_tiles, block);
  result.mask = as_block_mask(causal_periodic(num_tiles, block, period, live));
  result.cells = {make_cells(num_tiles * block, num_tiles * block,
                             [&](auto q, auto k) { return k <= q && k % period < live; })};
  return result;
}

MaskCase window_periodic_case(std::int64_t num_tiles, std::int32_t block, std::int64_t window,
                              std::int64_t period, std::int64_t live) {
  const auto is_live = [=](std::int64_t q, std::int64_t k) {
    return ((q - k) % period + period) % period < live;
  };
  const auto is_seen = [=](std::int64_t q, std::int64_t k) {
    return q - window < k && k <= q && is_live(q, k);
  };
  const std::int64_t tokens = num_tiles * block;
  SegmentBuilder builder(tokens, tokens, {block, block});
  const auto turn = static_cast<std::int32_t>(period / std::gcd(period, std::int64_t{block}));
  const auto num_inside = static_cast<std::int32_t>(window / block);
  std::vector<std::int32_t> inside;  // column c of row 0 mod turn
  for (std::int32_t c = 0; c < turn; ++c) {
    inside.push_back(tile_of(builder, block, turn, c, is_live));
  }
  const auto middle = builder.add_pattern(1, turn, turn == 1 ? 0 : 1, inside);
  const std::vector<std::int32_t> edges{
      tile_of(builder, block, num_inside, 0, is_seen),  // the first tile of a row
      tile_of(builder, block, num_inside, num_inside, is_seen)};
  const auto edge = [](std::int32_t tile) {
    return SegmentBuilder::PatternContent{
        tile == kEmptyTile, tile == kFullTile ? SegmentKind::full : SegmentKind::bitmap,
        tile < 0 ? 0 : tile};
  };
  std::vector<TileSegment> segments;
  for (std::int32_t row = 0; row < num_tiles; ++row) {
    segments.clear();
    if (row >= num_inside) {
      append(edge(edges[0]), {row - num_inside, row - num_inside + 1, 1, 1, {}, 0}, segments);
    }
    const std::int32_t first = std::max(row - num_inside + 1, 0);
    if (first < row) append(middle, {first, row, 1, 1, {}, 0}, segments);
    append(edge(edges[1]), {row, row + 1, 1, 1, {}, 0}, segments);
    builder.add_rows(row, 1, segments);
    builder.skip_to(row + 1);
  }
  MaskCase result;
  result.name = fmt::format("window({}) & (q - k) % {} < {}", window, period, live);
  result.mask = as_block_mask(builder.finish());
  result.cells = {make_cells(tokens, tokens, is_seen)};
  return result;
}

MaskCase random_pattern_mask(std::mt19937& rng) {
  PatternCase random = random_pattern_case(rng);
  MaskCase result;
  result.name = fmt::format("patterns {} x {}", random.mask.q_len, random.mask.kv_len);
  result.mask = as_block_mask(std::move(random.mask));
  result.cells = {std::move(random.cells)};
  return result;
}

MaskCase written_out(const MaskCase& each) {
  MaskCase result;
  result.name = each.name + ", written out";
  result.mask =
      as_block_mask(expand_patterns(std::get<std::vector<SegmentMask>>(each.mask.groups).front()));
  result.cells = each.cells;
  return result;
}

}  // namespace fdma::testing
