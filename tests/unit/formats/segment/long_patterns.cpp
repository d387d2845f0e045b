#include "long_patterns.hpp"

#include <vector>

#include "../cell_oracle.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma::testing {

SegmentMask long_pattern_mask(std::mt19937& rng) {
  const BlockShape block = pick(rng, 0, 1) == 0 ? BlockShape{16, 16} : BlockShape{16, 48};
  const auto num_rows = static_cast<std::int32_t>(pick(rng, 1, 200));
  const auto num_cols = static_cast<std::int32_t>(pick(rng, 1, 200));
  const std::int64_t q_len = std::int64_t{num_rows} * block.block_q - pick(rng, 0, 15);
  const std::int64_t kv_len = std::int64_t{num_cols} * block.block_kv - pick(rng, 0, 15);
  SegmentBuilder builder(q_len, kv_len, block);
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(block.block_q * block.block_kv / 64));
  bits[0] = 1;  // a cell that exists in every tile
  const std::int32_t choices[] = {kFullTile, kEmptyTile, builder.intern_bitmap(bits.data())};
  const auto pattern_rows = static_cast<std::int32_t>(pick(rng, 1, 5));
  const auto pattern_cols = static_cast<std::int32_t>(pick(rng, 1, pick(rng, 0, 6) == 0 ? 400 : 9));
  std::vector<std::int32_t> tiles;
  for (std::int32_t i = 0; i < pattern_rows * pattern_cols; ++i) {
    tiles.push_back(choices[pick(rng, 0, 2)]);
  }
  const auto skew = static_cast<std::int32_t>(pick(rng, 0, pattern_cols - 1));
  const auto content = builder.add_pattern(pattern_rows, pattern_cols, skew, tiles);
  const std::int32_t stride = row_period(block);
  const auto step_first = static_cast<std::int32_t>(pick(rng, -1, 1));
  const auto step_end = static_cast<std::int32_t>(pick(rng, -1, 1));
  for (std::int32_t row = 0; row < stride && row < num_rows; ++row) {
    // As many rows as fit; the others are empty.
    const auto first = static_cast<std::int32_t>(step_first < 0 ? pick(rng, 0, num_cols - 1) : 0);
    const auto end = static_cast<std::int32_t>(pick(rng, first + 1, num_cols));
    const std::int32_t most = (num_rows - row - 1) / stride + 1;
    std::int32_t count = 0;
    while (!content.is_empty && count < most && first + count * step_first >= 0 &&
           end + count * step_end <= num_cols &&
           first + count * step_first < end + count * step_end) {
      ++count;
    }
    const TileSegment segment{first, end, step_first, step_end, content.kind, content.data_index};
    builder.add_rows(row, count, std::span(&segment, 1));
    builder.add_rows(row + count * stride, most - count, {});
  }
  builder.skip_to(num_rows);
  return builder.finish();
}

}  // namespace fdma::testing
