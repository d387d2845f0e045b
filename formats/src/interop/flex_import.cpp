// A mask from FlexAttention's arrays.
//
// The lists of each row are sorted and checked: indices in range, none twice, none in both. The
// cells come either with the arrays, as one bitmap for each partial tile, or from a mask whose
// tiles must have the classes that the lists give. In the second case that mask is the result.
#include <algorithm>
#include <bit>
#include <optional>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/interop/flex_block_mask.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "interop/checks.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

using interop::mismatch;
using interop::wrong;

// A tile that a row lists; `place` is its position in the partial list.
struct ListedTile {
  std::int32_t col;
  bool is_full;
  std::int32_t place;
};

Result<void> check_table(const FlexIndexTable& table, std::string_view name, std::int64_t rows,
                         std::int64_t cols) {
  if (table.width < 0 || table.width > kMaxLength) {
    return mismatch(
        fmt::format("{}_indices: width {}, expected 0 to {}", name, table.width, kMaxLength));
  }
  FDMA_TRY_VOID(
      interop::check_extent(fmt::format("{}_num_blocks", name), table.num_blocks.size(), rows, 1));
  FDMA_TRY_VOID(interop::check_extent(fmt::format("{}_indices", name), table.indices.size(), rows,
                                      table.width));
  const std::int64_t most = std::min(table.width, cols);
  for (std::size_t row = 0; row < table.num_blocks.size(); ++row) {
    const std::int32_t count = table.num_blocks[row];
    if (count < 0 || count > most) {
      return wrong(fmt::format("{}_num_blocks[{}]: {}, expected 0 to {}", name, row, count, most));
    }
    const std::int32_t* first = table.indices.data() + static_cast<std::int64_t>(row) * table.width;
    for (std::int32_t i = 0; i < count; ++i) {
      if (first[i] >= 0 && first[i] < cols) continue;
      return wrong(fmt::format("{}_indices[{}, {}]: {}, expected 0 to {}", name, row, i, first[i],
                               cols - 1));
    }
  }
  return {};
}

class Importer {
 public:
  Importer(const FlexBlockMask& flex, const BlockMask* source) : flex_(flex), source_(source) {}

  Result<BlockMask> run() {
    FDMA_TRY_VOID(check_shape());
    FDMA_TRY_VOID(check_table(flex_.kv, "kv", pairs_ * rows_, cols_));
    if (flex_.full_kv) {
      FDMA_TRY_VOID(check_table(*flex_.full_kv, "full_kv", pairs_ * rows_, cols_));
      if (flex_.full_kv->width != flex_.kv.width) {
        return mismatch(fmt::format("full_kv_indices: width {}, but kv_indices has {}",
                                    flex_.full_kv->width, flex_.kv.width));
      }
    }
    if (flex_.full_q && !flex_.full_kv)
      return wrong("full_q_indices: given without full_kv_indices");
    FDMA_TRY_VOID(check_transpose(flex_.kv, flex_.q, "q"));
    if (flex_.full_kv) FDMA_TRY_VOID(check_transpose(*flex_.full_kv, flex_.full_q, "full_q"));
    if (flex_.cells) FDMA_TRY_VOID(check_cells());
    if (flex_.cells || source_ == nullptr) {
      FDMA_TRY(BlockMask mask, from_own_cells());
      if (source_ != nullptr) FDMA_TRY_VOID(compare_with_source(mask));
      return mask;
    }
    return from_source();
  }

 private:
  Result<void> check_shape() {
    FDMA_TRY_VOID(interop::check_length("seq_lengths[0]", flex_.q_len));
    FDMA_TRY_VOID(interop::check_length("seq_lengths[1]", flex_.kv_len));
    FDMA_TRY_VOID(interop::check_pairs(flex_.num_batches, flex_.num_heads));
    for (const std::int64_t side : {flex_.block_q, flex_.block_kv}) {
      if (side >= 16 && side <= kMaxBlockSide && side % 16 == 0) continue;
      return interop::unsupported(
          fmt::format("BLOCK_SIZE: ({}, {}), expected multiples of 16 from 16 to {}", flex_.block_q,
                      flex_.block_kv, kMaxBlockSide));
    }
    block_ = {static_cast<std::int32_t>(flex_.block_q), static_cast<std::int32_t>(flex_.block_kv)};
    rows_ = ceil_div(flex_.q_len, flex_.block_q);
    cols_ = ceil_div(flex_.kv_len, flex_.block_kv);
    pairs_ = flex_.num_batches * flex_.num_heads;
    if (source_ == nullptr) return {};
    const MaskShape& shape = source_->shape;
    FDMA_TRY_VOID(interop::check_uniform(shape, "a FlexAttention BlockMask"));
    if (shape.q_lens.front() != flex_.q_len || shape.kv_lens.front() != flex_.kv_len) {
      return mismatch(fmt::format("cells: a mask of {} x {}, but seq_lengths is ({}, {})",
                                  shape.q_lens.front(), shape.kv_lens.front(), flex_.q_len,
                                  flex_.kv_len));
    }
    if ((shape.num_batches != 1 && shape.num_batches != flex_.num_batches) ||
        (shape.num_heads != 1 && shape.num_heads != flex_.num_heads)) {
      return mismatch(fmt::format("cells: {} batch elements and {} heads, expected {} and {}, or 1",
                                  shape.num_batches, shape.num_heads, flex_.num_batches,
                                  flex_.num_heads));
    }
    FDMA_TRY_VOID(check_serves(*source_, flex_.num_batches, flex_.num_heads, "cells: it",
                               "the BlockMask has"));
    return {};
  }

  // Checks that the lists of the rows and those of the columns hold the same pairs.
  Result<void> check_transpose(const FlexIndexTable& table,
                               const std::optional<FlexIndexTable>& transpose,
                               std::string_view name) const {
    if (!transpose) return {};
    FDMA_TRY_VOID(check_table(*transpose, name, pairs_ * cols_, rows_));
    std::vector<std::int32_t> expected, listed;
    for (std::int64_t pair = 0; pair < pairs_; ++pair) {
      // The rows of each column, as compressed lists; they ascend because rows do.
      std::vector<std::int64_t> offsets(static_cast<std::size_t>(cols_) + 1, 0);
      const auto for_each = [&](auto&& visit) {
        for (std::int64_t row = 0; row < rows_; ++row) {
          const std::int64_t at = pair * rows_ + row;
          for (std::int32_t i = 0; i < table.num_blocks[static_cast<std::size_t>(at)]; ++i) {
            visit(row, table.indices[static_cast<std::size_t>(at * table.width + i)]);
          }
        }
      };
      for_each(
          [&](std::int64_t, std::int32_t col) { ++offsets[static_cast<std::size_t>(col) + 1]; });
      for (std::size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
      expected.resize(static_cast<std::size_t>(offsets.back()));
      std::vector<std::int64_t> next = offsets;
      for_each([&](std::int64_t row, std::int32_t col) {
        expected[static_cast<std::size_t>(next[static_cast<std::size_t>(col)]++)] =
            static_cast<std::int32_t>(row);
      });
      for (std::int64_t col = 0; col < cols_; ++col) {
        const std::int64_t at = pair * cols_ + col;
        const auto first = transpose->indices.begin() + at * transpose->width;
        listed.assign(first, first + transpose->num_blocks[static_cast<std::size_t>(at)]);
        std::sort(listed.begin(), listed.end());
        const auto begin = expected.begin() + offsets[static_cast<std::size_t>(col)];
        const auto end = expected.begin() + offsets[static_cast<std::size_t>(col) + 1];
        if (std::equal(listed.begin(), listed.end(), begin, end)) continue;
        return wrong(
            fmt::format("{}_indices[{}]: lists other tiles of key tile {} than {}kv_indices", name,
                        at, col, name == "q" ? "" : "full_"));
      }
    }
    return {};
  }

  Result<void> check_cells() {
    const FlexCells& cells = *flex_.cells;
    std::int64_t listed = 0;
    for (const std::int32_t count : flex_.kv.num_blocks) listed += count;
    if (static_cast<std::int64_t>(cells.bitmap_index.size()) != listed) {
      return mismatch(fmt::format("bitmap_index: {} entries, but kv_num_blocks lists {} tiles",
                                  cells.bitmap_index.size(), listed));
    }
    words_ = std::int64_t{block_.block_q} * block_.block_kv / 64;
    if (static_cast<std::int64_t>(cells.bitmaps.size()) % words_ != 0) {
      return mismatch(fmt::format("bitmaps: {} words, expected a multiple of {}",
                                  cells.bitmaps.size(), words_));
    }
    const std::int64_t count = static_cast<std::int64_t>(cells.bitmaps.size()) / words_;
    for (std::size_t i = 0; i < cells.bitmap_index.size(); ++i) {
      if (cells.bitmap_index[i] >= 0 && cells.bitmap_index[i] < count) continue;
      return wrong(fmt::format("bitmap_index[{}]: {}, expected 0 to {}", i, cells.bitmap_index[i],
                               count - 1));
    }
    extents_ = bitmap_extents(cells.bitmaps, block_);
    true_cells_.assign(static_cast<std::size_t>(count), 0);
    for (std::size_t i = 0; i < cells.bitmaps.size(); ++i) {
      true_cells_[i / static_cast<std::size_t>(words_)] += std::popcount(cells.bitmaps[i]);
    }
    return {};
  }

  // The tiles of one row, ascending.
  Result<void> list_row(std::int64_t pair, std::int64_t row, std::vector<ListedTile>& out) const {
    out.clear();
    const std::int64_t at = pair * rows_ + row;
    const auto append = [&](const FlexIndexTable& table, bool is_full) {
      for (std::int32_t i = 0; i < table.num_blocks[static_cast<std::size_t>(at)]; ++i) {
        out.push_back({table.indices[static_cast<std::size_t>(at * table.width + i)], is_full, i});
      }
    };
    append(flex_.kv, false);
    if (flex_.full_kv) append(*flex_.full_kv, true);
    const auto by_column = [](const ListedTile& a, const ListedTile& b) { return a.col < b.col; };
    if (!std::is_sorted(out.begin(), out.end(), by_column)) {
      std::stable_sort(out.begin(), out.end(), by_column);
    }
    for (std::size_t i = 1; i < out.size(); ++i) {
      if (out[i].col != out[i - 1].col) continue;
      if (out[i].is_full != out[i - 1].is_full) {
        return wrong(fmt::format("{}: listed in kv_indices and in full_kv_indices",
                                 tile_name(pair, row, out[i].col)));
      }
      return wrong(fmt::format("{}: listed twice in {}", tile_name(pair, row, out[i].col),
                               out[i].is_full ? "full_kv_indices" : "kv_indices"));
    }
    return {};
  }

  std::string tile_name(std::int64_t pair, std::int64_t row, std::int64_t col) const {
    return fmt::format("batch {}, head {}, tile ({}, {})", pair / flex_.num_heads,
                       pair % flex_.num_heads, row, col);
  }

  // A tile listed as partial may be all true if FlexAttention could not have listed it as full.
  bool may_be_full(std::int64_t row, std::int64_t col) const {
    return !flex_.full_kv || (row + 1) * block_.block_q > flex_.q_len ||
           (col + 1) * block_.block_kv > flex_.kv_len;
  }

  Result<void> check_bitmap(std::int64_t pair, std::int64_t row, std::int64_t col,
                            std::int32_t bitmap) const {
    const auto index = static_cast<std::size_t>(bitmap);
    const BitmapExtent existing = existing_cells(flex_.q_len, flex_.kv_len, block_, row, col);
    if (extents_[index].rows > existing.rows || extents_[index].keys > existing.keys) {
      return wrong(fmt::format("{}: bitmap {} has true cells past the lengths",
                               tile_name(pair, row, col), bitmap));
    }
    const std::int64_t cells = std::int64_t{existing.rows} * existing.keys;
    if (true_cells_[index] == 0) {
      return wrong(fmt::format("{}: listed as partial, but bitmap {} has no true cell",
                               tile_name(pair, row, col), bitmap));
    }
    if (true_cells_[index] == cells && !may_be_full(row, col)) {
      return wrong(fmt::format("{}: listed as partial, but bitmap {} is full",
                               tile_name(pair, row, col), bitmap));
    }
    return {};
  }

  Result<BlockMask> from_own_cells() const {
    std::vector<SegmentMask> masks;
    std::vector<ListedTile> tiles;
    std::size_t first_entry = 0;  // of this row in bitmap_index
    std::vector<std::uint64_t> bitmaps;
    if (flex_.cells) bitmaps = flex_.cells->bitmaps;
    const std::int64_t num_masks = rows_ == 0 ? 1 : pairs_;  // without rows all are equal
    for (std::int64_t pair = 0; pair < num_masks; ++pair) {
      BcsrMask mask;
      mask.q_len = flex_.q_len;
      mask.kv_len = flex_.kv_len;
      mask.block = block_;
      mask.row_offsets = {0};
      mask.bitmaps = std::move(bitmaps);
      for (std::int64_t row = 0; row < rows_; ++row) {
        FDMA_TRY_VOID(list_row(pair, row, tiles));
        for (const ListedTile& tile : tiles) {
          mask.col_indices.push_back(tile.col);
          if (tile.is_full) {
            FDMA_TRY_VOID(check_full(pair, row, tile.col));
            mask.bitmap_index.push_back(BcsrMask::kFullBlock);
            continue;
          }
          if (!flex_.cells) {
            return wrong(fmt::format(
                "{}: a partial tile, but nothing says which of its cells are true; FlexAttention "
                "keeps them in mask_mod: give the mask that has them (cells)",
                tile_name(pair, row, tile.col)));
          }
          const std::int32_t bitmap =
              flex_.cells->bitmap_index[first_entry + static_cast<std::size_t>(tile.place)];
          FDMA_TRY_VOID(check_bitmap(pair, row, tile.col, bitmap));
          mask.bitmap_index.push_back(bitmap);
        }
        mask.row_offsets.push_back(static_cast<std::int64_t>(mask.col_indices.size()));
        first_entry += static_cast<std::size_t>(
            flex_.kv.num_blocks[static_cast<std::size_t>(pair * rows_ + row)]);
      }
      masks.push_back(segment_from_bcsr(mask));
      bitmaps = std::move(mask.bitmaps);
    }
    return make_block_mask(shape(), block_, std::move(masks));
  }

  // The mask is zero past the lengths, so a full tile cannot reach past them.
  Result<void> check_full(std::int64_t pair, std::int64_t row, std::int64_t col) const {
    if ((row + 1) * block_.block_q <= flex_.q_len && (col + 1) * block_.block_kv <= flex_.kv_len) {
      return {};
    }
    return wrong(fmt::format("{}: listed as full, but it reaches past seq_lengths ({}, {})",
                             tile_name(pair, row, col), flex_.q_len, flex_.kv_len));
  }

  Result<BlockMask> from_source() const {
    std::vector<SegmentMask> groups;
    for (std::int64_t g = 0; g < source_->num_groups(); ++g) {
      groups.push_back(segment_of_group(*source_, g, block_));
    }
    std::vector<std::int32_t> group_of;
    for (std::int64_t pair = 0; pair < pairs_; ++pair) {
      group_of.push_back(source_group(pair));
      FDMA_TRY_VOID(check_classes(pair, groups[static_cast<std::size_t>(group_of.back())]));
    }
    return make_block_mask(shape(), block_, std::move(groups), group_of);
  }

  std::int32_t source_group(std::int64_t pair) const {
    const std::int64_t b = source_->shape.num_batches == 1 ? 0 : pair / flex_.num_heads;
    const std::int64_t h = source_->shape.num_heads == 1 ? 0 : pair % flex_.num_heads;
    return source_->group(b, h);
  }

  Result<void> check_classes(std::int64_t pair, const SegmentMask& cells) const {
    std::optional<Error> error;
    std::vector<ListedTile> tiles;
    for_each_tile_row(cells, [&](std::int32_t row, std::span<const TileSegment> segments) {
      if (error) return;
      const Result<void> agrees = check_row(pair, row, segments, tiles);
      if (!agrees) error = agrees.error();
    });
    if (error) return *error;
    return {};
  }

  Result<void> check_row(std::int64_t pair, std::int64_t row, std::span<const TileSegment> segments,
                         std::vector<ListedTile>& tiles) const {
    FDMA_TRY_VOID(list_row(pair, row, tiles));
    std::size_t next = 0;
    const auto differs = [&](std::int64_t col, std::string_view listed, std::string_view is) {
      return wrong(fmt::format("{}: {}, but {} in the mask that gives the cells",
                               tile_name(pair, row, col), listed, is));
    };
    const auto listed_as = [&] {
      return tiles[next].is_full ? "listed as full" : "listed as partial";
    };
    for (const TileSegment& segment : segments) {
      const bool is_full = segment.kind == SegmentKind::full;
      for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col, ++next) {
        if (next < tiles.size() && tiles[next].col < col) {
          return differs(tiles[next].col, listed_as(), "empty");
        }
        if (next == tiles.size() || tiles[next].col > col) {
          return differs(col, "not listed", is_full ? "full" : "partial");
        }
        if (tiles[next].is_full) {
          FDMA_TRY_VOID(check_full(pair, row, col));
          if (!is_full) return differs(col, listed_as(), "partial");
        } else if (is_full && !may_be_full(row, col)) {
          return differs(col, listed_as(), "full");
        }
      }
    }
    if (next < tiles.size()) return differs(tiles[next].col, listed_as(), "empty");
    return {};
  }

  Result<void> compare_with_source(const BlockMask& mask) const {
    const auto& groups = std::get<std::vector<SegmentMask>>(mask.groups);
    std::vector<std::optional<SegmentMask>> sources(
        static_cast<std::size_t>(source_->num_groups()));
    for (std::int64_t pair = 0; pair < pairs_; ++pair) {
      const auto g = static_cast<std::size_t>(source_group(pair));
      if (!sources[g])
        sources[g] = segment_of_group(*source_, static_cast<std::int64_t>(g), block_);
      const std::int32_t group = mask.group_of[static_cast<std::size_t>(pair)];
      if (groups[static_cast<std::size_t>(group)] == *sources[g]) continue;
      return wrong(
          fmt::format("cells: batch {}, head {}: the mask given differs from the bitmaps that "
                      "the arrays carry",
                      pair / flex_.num_heads, pair % flex_.num_heads));
    }
    return {};
  }

  MaskShape shape() const {
    return {flex_.num_batches, flex_.num_heads, {flex_.q_len}, {flex_.kv_len}};
  }

  const FlexBlockMask& flex_;
  const BlockMask* source_;
  BlockShape block_;
  std::int64_t rows_ = 0, cols_ = 0, pairs_ = 0, words_ = 0;
  std::vector<BitmapExtent> extents_;
  std::vector<std::int64_t> true_cells_;
};

}  // namespace

Result<BlockMask> block_mask_from_flex(const FlexBlockMask& flex, const BlockMask* cells) {
  return Importer(flex, cells).run();
}

}  // namespace fdma
