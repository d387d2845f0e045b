#include "commands/difference_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/number_text.hpp"

namespace fdma::maskc {

std::string difference_summary(const MaskDifference& difference) {
  if (difference.is_equal()) return {};
  if (!difference.shape_reason.empty()) return difference.shape_reason;
  return fmt::format(
      "{} in {} of {} x {}", plural(difference.only_in_a + difference.only_in_b, "cell"),
      plural(difference.num_tiles, "tile"), difference.block.block_q, difference.block.block_kv);
}

std::string cell_lines(const MaskDifference& difference, const std::string& a,
                       const std::string& b) {
  std::string text;
  for (const DifferingCell& cell : difference.cells) {
    text += fmt::format("  batch {}, head {}, q {}, k {}: {} in {}, {} in {}\n", cell.batch,
                        cell.head, cell.q, cell.k, cell.is_in_a, a, !cell.is_in_a, b);
  }
  return text;
}

std::string tile_table(const MaskDifference& difference) {
  std::string text = fmt::format(
      "  {:>5} {:>4} {:>8} {:>8} {:>19} {:>19} {:>8} {:>8} {:>9} {:>9}\n", "batch", "head",
      "tile row", "tile col", "q", "k", "in a", "in b", "only in a", "only in b");
  for (const DifferingTile& tile : difference.tiles) {
    text += fmt::format(
        "  {:>5} {:>4} {:>8} {:>8} {:>19} {:>19} {:>8} {:>8} {:>9} {:>9}{}\n", tile.batch,
        tile.head, tile.row, tile.col, fmt::format("[{}, {})", tile.q_begin, tile.q_end),
        fmt::format("[{}, {})", tile.k_begin, tile.k_end), to_string(tile.in_a),
        to_string(tile.in_b), tile.only_in_a, tile.only_in_b,
        tile.num_pairs > 1
            ? fmt::format("  and {} like it", plural(tile.num_pairs - 1, "(batch, head) pair"))
            : "");
  }
  const auto shown = static_cast<std::int64_t>(difference.tiles.size());
  if (difference.num_tiles > shown) {
    text += fmt::format("  {} shown of {} differing tiles\n", count_text(shown),
                        count_text(difference.num_tiles));
  }
  return text;
}

Json cells_json(const MaskDifference& difference) {
  Json cells = Json::array();
  for (const DifferingCell& cell : difference.cells) {
    cells.push_back({{"batch", cell.batch},
                     {"head", cell.head},
                     {"q", cell.q},
                     {"k", cell.k},
                     {"in_a", cell.is_in_a},
                     {"in_b", !cell.is_in_a}});
  }
  return cells;
}

Json tiles_json(const MaskDifference& difference) {
  Json tiles = Json::array();
  for (const DifferingTile& tile : difference.tiles) {
    tiles.push_back({{"batch", tile.batch},
                     {"head", tile.head},
                     {"num_pairs", tile.num_pairs},
                     {"row", tile.row},
                     {"col", tile.col},
                     {"q", {tile.q_begin, tile.q_end}},
                     {"k", {tile.k_begin, tile.k_end}},
                     {"in_a", to_string(tile.in_a)},
                     {"in_b", to_string(tile.in_b)},
                     {"only_in_a", tile.only_in_a},
                     {"only_in_b", tile.only_in_b}});
  }
  return tiles;
}

}  // namespace fdma::maskc
