#include "mask_fixtures.hpp"

#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "fdma/formats/segment_builder.hpp"

namespace fdma::testing {
namespace {

using Bitmap = std::vector<std::uint64_t>;

// The cells of one tile and its class.
struct Tile {
  Bitmap words;
  bool is_empty = true;
  bool is_full = true;
};

Tile tile_of(const Cells& cells, BlockShape block, std::int64_t row, std::int64_t col) {
  Tile tile;
  tile.words.resize(static_cast<std::size_t>(block.block_q * block.block_kv / 64));
  for (std::int64_t r = 0; r < block.block_q; ++r) {
    for (std::int64_t c = 0; c < block.block_kv; ++c) {
      const std::int64_t q = row * block.block_q + r, k = col * block.block_kv + c;
      if (q >= cells.q_len || k >= cells.kv_len) continue;
      const bool value = cells.at(q, k);
      tile.is_empty = tile.is_empty && !value;
      tile.is_full = tile.is_full && value;
      const std::int64_t bit = r * block.block_kv + c;
      if (value) tile.words[static_cast<std::size_t>(bit / 64)] |= std::uint64_t{1} << (bit % 64);
    }
  }
  return tile;
}

// Numbers bitmaps by first occurrence.
class Interner {
 public:
  explicit Interner(std::vector<std::uint64_t>& bitmaps) : bitmaps_(bitmaps) {}
  std::int32_t operator()(const Bitmap& words) {
    const auto [it, is_new] = index_.try_emplace(words, static_cast<std::int32_t>(index_.size()));
    if (is_new) bitmaps_.insert(bitmaps_.end(), words.begin(), words.end());
    return it->second;
  }

 private:
  std::vector<std::uint64_t>& bitmaps_;
  std::map<Bitmap, std::int32_t> index_;
};

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "fdma_io_XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

Cells make_cells(std::int64_t q_len, std::int64_t kv_len, const CellRule& rule) {
  Cells cells{q_len, kv_len, {}};
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k) cells.values.push_back(rule(q, k));
  }
  return cells;
}

Cells cells_of(const SegmentMask& mask) {
  Cells cells{mask.q_len, mask.kv_len, {}};
  cells.values.resize(static_cast<std::size_t>(mask.q_len * mask.kv_len));
  std::vector<Interval> intervals;
  for (std::int64_t q = 0; q < mask.q_len; ++q) {
    row_intervals_of(mask, q, intervals);
    for (const Interval& keys : intervals) {
      for (std::int64_t k = keys.begin; k < keys.end; ++k) {
        cells.values[static_cast<std::size_t>(q * mask.kv_len + k)] = true;
      }
    }
  }
  return cells;
}

SegmentMask segment_of(const Cells& cells, BlockShape block) {
  SegmentBuilder builder(cells.q_len, cells.kv_len, block);
  const auto num_cols = static_cast<std::int32_t>(ceil_div(cells.kv_len, block.block_kv));
  for (std::int64_t row = 0; row < ceil_div(cells.q_len, block.block_q); ++row) {
    std::vector<TileRange> ranges;
    if (num_cols > 0) ranges.push_back({0, num_cols, false});
    builder.add_tile_row(
        ranges,
        [&](std::int32_t col, std::uint64_t* words) {
          const Tile tile = tile_of(cells, block, row, col);
          std::copy(tile.words.begin(), tile.words.end(), words);
        },
        true);
  }
  return builder.finish();
}

BcsrMask bcsr_of(const Cells& cells, BlockShape block) {
  BcsrMask mask;
  mask.q_len = cells.q_len;
  mask.kv_len = cells.kv_len;
  mask.block = block;
  mask.row_offsets.push_back(0);
  Interner intern(mask.bitmaps);
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    for (std::int64_t col = 0; col < mask.num_tile_cols(); ++col) {
      const Tile tile = tile_of(cells, block, row, col);
      if (tile.is_empty) continue;
      mask.col_indices.push_back(static_cast<std::int32_t>(col));
      mask.bitmap_index.push_back(tile.is_full ? BcsrMask::kFullBlock : intern(tile.words));
    }
    mask.row_offsets.push_back(std::ssize(mask.col_indices));
  }
  return mask;
}

BlockBitset bitset_of(const Cells& cells, BlockShape block) {
  BlockBitset mask;
  mask.q_len = cells.q_len;
  mask.kv_len = cells.kv_len;
  mask.block = block;
  mask.active.resize(static_cast<std::size_t>(mask.num_tile_rows() * mask.words_per_row()));
  mask.full = mask.active;
  mask.partial_offsets.push_back(0);
  Interner intern(mask.bitmaps);
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    for (std::int64_t col = 0; col < mask.num_tile_cols(); ++col) {
      const Tile tile = tile_of(cells, block, row, col);
      if (tile.is_empty) continue;
      const auto word = static_cast<std::size_t>(row * mask.words_per_row() + col / 64);
      mask.active[word] |= std::uint64_t{1} << (col % 64);
      if (tile.is_full) {
        mask.full[word] |= std::uint64_t{1} << (col % 64);
      } else {
        mask.bitmap_index.push_back(intern(tile.words));
      }
    }
    mask.partial_offsets.push_back(std::ssize(mask.bitmap_index));
  }
  return mask;
}

ColumnIntervals columns_of(const Cells& cells) {
  ColumnIntervals mask;
  mask.q_len = cells.q_len;
  mask.kv_len = cells.kv_len;
  mask.offsets.push_back(0);
  for (std::int64_t k = 0; k < cells.kv_len; ++k) {
    for (std::int64_t q = 0; q < cells.q_len; ++q) {
      if (!cells.at(q, k)) continue;
      if (q > 0 && cells.at(q - 1, k)) {
        ++mask.intervals.back().end;
      } else {
        mask.intervals.push_back({static_cast<std::int32_t>(q), static_cast<std::int32_t>(q + 1)});
      }
    }
    mask.offsets.push_back(std::ssize(mask.intervals));
  }
  return mask;
}

DenseBits dense_of(const Cells& cells) {
  DenseBits mask;
  mask.q_len = cells.q_len;
  mask.kv_len = cells.kv_len;
  mask.words.resize(static_cast<std::size_t>(mask.q_len * mask.words_per_row()));
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    for (std::int64_t k = 0; k < cells.kv_len; ++k) {
      if (cells.at(q, k)) {
        mask.words[static_cast<std::size_t>(q * mask.words_per_row() + k / 64)] |= std::uint64_t{1}
                                                                                   << (k % 64);
      }
    }
  }
  return mask;
}

ParametricMask parametric_of(std::int64_t q_len, std::int64_t kv_len, std::int64_t left) {
  ParametricMask mask;
  mask.q_len = q_len;
  mask.kv_len = kv_len;
  mask.pos_offset = kv_len - q_len;
  mask.left = left;
  mask.right = 0;
  mask.kv_end = kv_len;
  return mask;
}

BlockMask make_mask(MaskFormat format) {
  constexpr std::int64_t kQ = 70, kKv = 100;
  const BlockShape block{32, 16};
  const CellRule rules[] = {
      [](std::int64_t q, std::int64_t k) { return k <= q + 30; },
      [](std::int64_t q, std::int64_t k) { return (q * 7 + k * k) % 11 < 4 || k < 20; },
      [](std::int64_t q, std::int64_t k) { return q / 20 == k / 20 && q != 33; },
  };
  BlockMask mask;
  mask.block = block;
  mask.shape = {2, 3, {kQ}, {kKv}};
  mask.origin = {5, 6, 7, 8};
  mask.group_of = {0, 1, 0, 0, 2, 1};
  mask.spec = "causal & window(1024)  # caf\u00e9 \u2264 \U0001f9e0";
  const auto fill = [&](auto one) {
    std::vector<decltype(one(make_cells(0, 0, rules[0]), 0))> groups;
    for (int g = 0; g < 3; ++g) groups.push_back(one(make_cells(kQ, kKv, rules[g]), g));
    mask.groups = std::move(groups);
  };
  switch (format) {
    case MaskFormat::segment:
      fill([&](const Cells& cells, int) { return segment_of(cells, block); });
      break;
    case MaskFormat::parametric:
      fill([&](const Cells&, int g) {
        ParametricMask one = parametric_of(kQ, kKv, 10 * g);
        if (g == 2) one.cu_seqlens = {0, 40, 40, 90};
        if (g == 0) one.left = kUnbounded;
        return one;
      });
      break;
    case MaskFormat::bitset:
      fill([&](const Cells& cells, int) { return bitset_of(cells, block); });
      break;
    case MaskFormat::bcsr:
      fill([&](const Cells& cells, int) { return bcsr_of(cells, block); });
      break;
    case MaskFormat::columns:
      fill([&](const Cells& cells, int) { return columns_of(cells); });
      break;
    case MaskFormat::dense:
      fill([&](const Cells& cells, int) { return dense_of(cells); });
      break;
  }
  return mask;
}

BlockMask make_pattern_mask() {
  const BlockShape block{16, 16};
  const std::int64_t q_len = 70, kv_len = 100;
  SegmentBuilder builder(q_len, kv_len, block), plain(q_len, kv_len, block);
  const std::uint64_t a[] = {5, 0, 0, 0}, b[] = {0, 0, 0, std::uint64_t{1} << 63};
  const std::int32_t first = builder.intern_bitmap(a), second = builder.intern_bitmap(b);
  const std::int32_t tiles[] = {first, kEmptyTile, kFullTile, kEmptyTile, second, first};
  const auto p = builder.add_pattern(2, 3, 1, tiles);
  const auto q = builder.add_pattern(1, 2, 0, std::span(tiles).first(2));
  const TileSegment segments[] = {{0, 1, 0, 1, p.kind, p.data_index},
                                  {5, 6, 0, 0, q.kind, q.data_index}};
  builder.add_rows(0, 4, segments);
  builder.add_rows(4, 1, {});
  plain.add_rows(0, 5, {});
  const std::int32_t mask_of[] = {0, 1};
  return make_block_mask({1, 2, {q_len}, {kv_len}}, block, {builder.finish(), plain.finish()},
                         mask_of);
}

}  // namespace fdma::testing
