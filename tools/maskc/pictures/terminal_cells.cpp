#include "pictures/terminal_cells.hpp"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "fdma/formats/convert.hpp"

namespace fdma::maskc {

std::string draw_on_terminal(const BlockMask& mask, std::int32_t group,
                             const DrawOptions& options) {
  const SegmentMask cells = segment_of_group(mask, group, mask.block);
  if (cells.q_len == 0 || cells.kv_len == 0 || cells.q_len > kMaxCellRows ||
      cells.kv_len > kMaxCellKeys || cells.kv_len > options.max_width) {
    return draw(mask, group, options);
  }
  const std::string_view live = options.unicode ? "\u2588" : "#";
  const std::string_view masked = options.unicode ? "\u00b7" : ".";
  std::string text;
  std::vector<Interval> keys;
  std::int64_t num_live = 0;
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    row_intervals_of(cells, q, keys);
    std::int64_t at = 0;
    for (const Interval& interval : keys) {
      for (; at < interval.begin; ++at) text += masked;
      for (; at < interval.end; ++at, ++num_live) text += live;
    }
    for (; at < cells.kv_len; ++at) text += masked;
    text += '\n';
  }
  return text + fmt::format("{} attends, {} masked; {} x {} cells, {} allowed pairs\n", live,
                            masked, cells.q_len, cells.kv_len, num_live);
}

}  // namespace fdma::maskc
