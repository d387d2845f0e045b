// Boolean operations on two segment masks.
//
// Without column tables both masks are layers (tile_layers.hpp) and one word operation serves every
// distinct pair of partial tiles. A column table gives its cells key by key. If the other mask has
// not many more query intervals than the table, it is also listed by keys, and two ascending lists
// of borders are merged for every key. Otherwise (for example every second key under an eviction)
// listing it would cost far more than its bitmaps, and the masks are combined tile by tile.
#include "algebra/combine_segments.hpp"

#include <algorithm>

#include "algebra/tile_layers.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

// Sets `out` to the operation word by word. A null pointer stands for words that are all `value`.
void apply(TruthTable table, const std::uint64_t* a, bool a_value, const std::uint64_t* b,
           bool b_value, std::int64_t num_words, std::uint64_t* out) {
  const auto spread = [](bool bit) { return bit ? ~std::uint64_t{0} : std::uint64_t{0}; };
  const auto for_words = [&](auto&& word) {
    for (std::int64_t i = 0; i < num_words; ++i) out[i] = word(i);
  };
  if (a == nullptr || b == nullptr) {  // a function of the other one: (x & on) | (~x & off)
    const std::uint64_t* words = a == nullptr ? b : a;
    const std::uint64_t on =
        spread(a == nullptr ? holds(table, a_value, true) : holds(table, true, b_value));
    const std::uint64_t off =
        spread(a == nullptr ? holds(table, a_value, false) : holds(table, false, b_value));
    const std::uint64_t turn = on ^ off;
    for_words([&](std::int64_t i) { return (words[i] & turn) ^ off; });
    return;
  }
  switch (table) {
    case truth_table(SetOperation::intersection):
      return for_words([&](std::int64_t i) { return a[i] & b[i]; });
    case truth_table(SetOperation::union_of):
      return for_words([&](std::int64_t i) { return a[i] | b[i]; });
    case truth_table(SetOperation::difference):
      return for_words([&](std::int64_t i) { return a[i] & ~b[i]; });
    default:
      return for_words([&](std::int64_t i) { return a[i] ^ b[i]; });
  }
}

// The class of a result tile if the classes of its operands decide it, else partial.
TileClass class_of(TruthTable table, TileClass a, TileClass b) {
  bool can_be_true = false, can_be_false = false;
  for (const bool x : {false, true}) {
    if ((x && a == TileClass::empty) || (!x && a == TileClass::full)) continue;
    for (const bool y : {false, true}) {
      if ((y && b == TileClass::empty) || (!y && b == TileClass::full)) continue;
      (holds(table, x, y) ? can_be_true : can_be_false) = true;
    }
  }
  if (can_be_true && can_be_false) return TileClass::partial;
  return can_be_true ? TileClass::full : TileClass::empty;
}

TileClass class_of(const LayerTile& tile) {
  return tile.source == kEmptyTiles  ? TileClass::empty
         : tile.source == kFullTiles ? TileClass::full
                                     : TileClass::partial;
}

// One or two layers that cover the result exactly, so that a full tile is full whatever its edges.
class BooleanFunction final : public TileFunction {
 public:
  BooleanFunction(TruthTable table, const UniformRuns& a, const UniformRuns& b)
      : table_(table),
        a_(a),
        b_(b),
        scratch_a_(static_cast<std::size_t>(a.mask().words_per_bitmap())),
        scratch_b_(scratch_a_.size()) {}

  TileClass classify(std::span<const LayerTile> tiles) const override {
    return class_of(table_, class_of(tiles[0]),
                    tiles.size() == 1 ? TileClass::empty : class_of(tiles[1]));
  }
  void evaluate(std::span<const LayerTile> tiles, std::uint64_t* words) override {
    const auto bitmap = [](const UniformRuns& parts, const LayerTile& tile,
                           std::vector<std::uint64_t>& scratch) {
      return tile.source < kFirstPartial ? nullptr : parts.bitmap_of(tile.source, scratch.data());
    };
    const LayerTile second = tiles.size() == 1 ? LayerTile{} : tiles[1];
    apply(table_, bitmap(a_, tiles[0], scratch_a_), tiles[0].source == kFullTiles,
          bitmap(b_, second, scratch_b_), second.source == kFullTiles, std::ssize(scratch_a_),
          words);
  }

 private:
  const TruthTable table_;
  const UniformRuns &a_, &b_;
  std::vector<std::uint64_t> scratch_a_, scratch_b_;
};

// The query intervals of one key.
void combine_lists(TruthTable table, std::span<const Interval> a, std::span<const Interval> b,
                   std::int64_t q_len, std::vector<Interval>& out) {
  constexpr std::int64_t kNone = INT64_MAX;
  const auto border = [](std::span<const Interval> list, std::size_t i) -> std::int64_t {
    if (i == 2 * list.size()) return kNone;
    return i % 2 == 0 ? list[i / 2].begin : list[i / 2].end;
  };
  std::size_t i = 0, j = 0;  // borders passed
  std::int64_t begin = -1;   // of the current interval
  for (std::int64_t q = 0; q < q_len;) {
    while (border(a, i) <= q) ++i;
    while (border(b, j) <= q) ++j;
    const bool is_true = holds(table, i % 2 != 0, j % 2 != 0);
    if (is_true && begin < 0) begin = q;
    if (!is_true && begin >= 0) {
      out.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(q)});
      begin = -1;
    }
    q = std::min(border(a, i), border(b, j));
  }
  if (begin >= 0) {
    out.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(q_len)});
  }
}

struct TableView {
  std::span<const std::int64_t> offsets;
  std::span<const Interval> intervals;
  std::span<const Interval> of(std::size_t key) const {
    return intervals.subspan(static_cast<std::size_t>(offsets[key]),
                             static_cast<std::size_t>(offsets[key + 1] - offsets[key]));
  }
};

SegmentMask combine_tables(TruthTable table, const TableView& a, const TableView& b,
                           std::int64_t q_len, std::int64_t kv_len, BlockShape block) {
  std::vector<std::int64_t> offsets{0};
  std::vector<Interval> intervals;
  offsets.reserve(static_cast<std::size_t>(kv_len) + 1);
  for (std::size_t k = 0; k < static_cast<std::size_t>(kv_len); ++k) {
    combine_lists(table, a.of(k), b.of(k), q_len, intervals);
    offsets.push_back(std::ssize(intervals));
  }
  return segment_from_columns(q_len, kv_len, block, std::move(offsets), std::move(intervals));
}

// Combines tile by tile: full and empty tiles by class, all others by their cells.
SegmentMask combine_tiles(TruthTable table, const SegmentMask& a, const SegmentMask& b) {
  SegmentBuilder builder(a.q_len, a.kv_len, a.block);
  const auto num_words = static_cast<std::size_t>(a.words_per_bitmap());
  std::vector<std::uint64_t> words_a(num_words), words_b(num_words);
  std::vector<TileRange> ranges;
  std::vector<TileSegment> row_b;
  for_each_tile_row(a, [&](std::int32_t row, std::span<const TileSegment> row_a) {
    row_b = segments_of_row(b, row);
    ranges.clear();
    const auto at = [](std::span<const TileSegment> segments, std::size_t& i, std::int32_t tile) {
      while (i < segments.size() && segments[i].end_tile <= tile) ++i;
      return i < segments.size() && segments[i].first_tile <= tile ? &segments[i] : nullptr;
    };
    const auto next_border = [](std::span<const TileSegment> segments, std::size_t i,
                                std::int32_t tile, std::int32_t end) {
      if (i == segments.size()) return end;
      return segments[i].first_tile > tile ? segments[i].first_tile : segments[i].end_tile;
    };
    const auto kind_of = [](const TileSegment* segment) {
      if (segment == nullptr) return TileClass::empty;
      return segment->kind == SegmentKind::full ? TileClass::full : TileClass::partial;
    };
    const std::int32_t num_cols = a.num_tile_cols();
    std::size_t i = 0, j = 0;
    for (std::int32_t tile = 0; tile < num_cols;) {
      const TileClass kind =
          class_of(table, kind_of(at(row_a, i, tile)), kind_of(at(row_b, j, tile)));
      const std::int32_t end =
          std::min(next_border(row_a, i, tile, num_cols), next_border(row_b, j, tile, num_cols));
      if (kind != TileClass::empty) ranges.push_back({tile, end, kind == TileClass::full});
      tile = end;
    }
    std::size_t cells_i = 0, cells_j = 0;
    builder.add_tile_row(
        ranges,
        [&](std::int32_t tile, std::uint64_t* words) {
          const TileSegment* segment_a = at(row_a, cells_i, tile);
          const TileSegment* segment_b = at(row_b, cells_j, tile);
          const auto fetch = [&](const SegmentMask& mask, const TileSegment* segment,
                                 std::vector<std::uint64_t>& cells) {
            if (segment == nullptr) {
              std::fill(cells.begin(), cells.end(), 0);
            } else {
              tile_cells(mask, *segment, row, tile, cells.data());
            }
          };
          fetch(a, segment_a, words_a);
          fetch(b, segment_b, words_b);
          apply(table, words_a.data(), false, words_b.data(), false, std::ssize(words_a), words);
        },
        true);
  });
  return builder.finish();
}

// Listing a mask by keys pays unless it has this many times more intervals than the table.
constexpr std::int64_t kMostTimesLonger = 8;

SegmentMask combine_with_table(TruthTable table, const SegmentMask& a, const SegmentMask& b) {
  const auto is_listed = [](const SegmentMask& mask) { return !mask.column_offsets.empty(); };
  const auto limit = kMostTimesLonger *
                     (a.kv_len + std::ssize(a.column_intervals) + std::ssize(b.column_intervals));
  std::int64_t num_intervals = 0;
  if (!is_listed(a) || !is_listed(b)) num_intervals = count_query_intervals(is_listed(a) ? b : a);
  if (num_intervals > limit) return combine_tiles(table, a, b);
  ColumnIntervals listed;
  const auto view_of = [&](const SegmentMask& mask) -> TableView {
    if (is_listed(mask)) return {mask.column_offsets, mask.column_intervals};
    listed = columns_from_segment(mask);
    return {listed.offsets, listed.intervals};
  };
  const TableView view_a = view_of(a), view_b = view_of(b);
  return combine_tables(table, view_a, view_b, a.q_len, a.kv_len, a.block);
}

// A mask without a column table, or its complement.
SegmentMask from_one_layer(TruthTable table, const SegmentMask& mask,
                           UniformRuns::Patterns patterns) {
  UniformRuns parts(mask, patterns);
  const TileLayer layers[] = {{&parts}};
  BooleanFunction function(table, parts, parts);
  return combine_layers(mask.q_len, mask.kv_len, mask.block, layers, function);
}

}  // namespace

SegmentMask combine_segments(const SegmentMask& a, const SegmentMask& b, SetOperation operation) {
  const TruthTable table = truth_table(operation);
  if (!a.column_offsets.empty() || !b.column_offsets.empty()) {
    return combine_with_table(table, a, b);
  }
  UniformRuns parts_a(a, UniformRuns::Patterns::kept), parts_b(b, UniformRuns::Patterns::kept);
  const TileLayer layers[] = {{&parts_a}, {&parts_b}};
  BooleanFunction function(table, parts_a, parts_b);
  return combine_layers(a.q_len, a.kv_len, a.block, layers, function);
}

SegmentMask canonical_segment(const SegmentMask& mask) {
  return from_one_layer(kA, mask, UniformRuns::Patterns::written_out);
}

SegmentMask expand_patterns(const SegmentMask& mask) {
  return mask.has_patterns() ? canonical_segment(mask) : mask;
}

SegmentMask complement_segment(const SegmentMask& mask) {
  if (!mask.column_offsets.empty()) {
    const std::vector<std::int64_t> no_offsets(mask.column_offsets.size(), 0);
    return combine_tables(kNotA, {mask.column_offsets, mask.column_intervals}, {no_offsets, {}},
                          mask.q_len, mask.kv_len, mask.block);
  }
  return from_one_layer(kNotA, mask, UniformRuns::Patterns::kept);
}

}  // namespace fdma
