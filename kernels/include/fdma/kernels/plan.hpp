// AttentionPlan: what will run. Work items in the order in which workers take them, and the
// segments that each of them walks.
//
// A plan keeps the closed form of the mask: segments belong to runs of tile rows that move in step,
// and an item says how many steps it is into its run. Plan memory is therefore that of the mask in
// tiles, plus 40 bytes for each (batch, head, query tile), plus the gather lists.
//
// Backward plans are plans of the transposed mask: their rows are keys and their columns queries.
// An item is a key tile of a query head and its tiles are query tiles, so what is said here of
// rows and columns holds of both (AttentionPlan::mask_tile, row_len, column_len).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma {

/// Who runs a plan.
enum class Backend : std::uint8_t {
  cpu,
  sm90,  ///< Hopper (H100, H200): wgmma and TMA. Plans are made anywhere, run on such a GPU
  sm80,  ///< rejected by name for now
};
std::string_view to_string(Backend backend);
Result<Backend> parse_backend(std::string_view name);

/// Which of the two passes of attention.
enum class Direction : std::uint8_t { forward, backward };
std::string_view to_string(Direction direction);
/// invalid_argument unless "forward" or "backward".
Result<Direction> parse_direction(std::string_view name);

/// How the cells of a plan segment are given. Backward plans have all but gather lists,
/// transposed: bitmaps of keys by queries, query intervals per key, key intervals per query.
enum class PlanSegmentKind : std::int32_t {
  full = 0,     ///< every existing cell of these tiles is true: no mask is read
  bitmap = 1,   ///< each tile has the cells of bitmap `payload`
  rows = 2,     ///< row panel `payload`: key intervals per query row, relative to the first tile
  columns = 3,  ///< column table `payload`: query intervals per key, read as the kernel goes
  gather = 4,   ///< gather list `payload`: keys by index, in chunks of tile.block_kv entries
  formula = 5,  ///< the cells of the plan's formula; not stored, tiles of parametric plans have it
  order = 6,    ///< no tiles: those of the item's other segments count keys in order `payload`
};

/// A stretch of tiles of one kind and how it moves per step of its run: in the tile row that is i
/// steps into the run, tiles [first_tile + i * step_first, end_tile + i * step_end). Of kind
/// gather: chunks [0, end_tile) of its list, steps 0; it follows the tile segments of its item. Of
/// kind order: an item's first segment, all other fields 0.
struct PlanSegment {
  std::int32_t first_tile;
  std::int32_t end_tile;
  std::int32_t step_first;
  std::int32_t step_end;
  PlanSegmentKind kind;
  std::int32_t payload;
  friend bool operator==(const PlanSegment&, const PlanSegment&) = default;
};

/// WorkItem::partial of an item that walks all keys of its rows.
inline constexpr std::int32_t kWholeRow = -1;

/// One query tile of one head (or of heads_per_tile heads that share a KV head), or a part of its
/// keys, and where its segments are.
struct WorkItem {
  std::int32_t batch;
  std::int32_t head;  ///< query head, the first of several
  /// Rows [q_tile * tile.block_q, ..) up to the element's q_len. Backward: the key tile, keys
  /// [q_tile * tile.block_kv, ..) up to its kv_len.
  std::int32_t q_tile;
  std::int32_t step;  ///< steps into the run that owns the segments
  std::int32_t first_segment;
  std::int32_t num_segments;
  std::int32_t num_tiles;  ///< tiles and gather chunks that the item walks; 0: rows without keys
  /// Live keys (once per row interval) of its column tiles and gather lists; of all items of a
  /// split row those of the row.
  std::int32_t num_entries;
  std::int32_t first_tile = 0;  ///< tiles of its segments that earlier items of a split row walk
  std::int32_t partial = kWholeRow;  ///< the partial result that it writes, or kWholeRow
  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

/// A query tile whose keys are split over several items: partial results [first_partial,
/// first_partial + num_partials), by ascending keys, are combined in this order.
struct SplitRow {
  std::int32_t batch;
  std::int32_t head;
  std::int32_t q_tile;
  std::int32_t first_partial;
  std::int32_t num_partials;
  friend bool operator==(const SplitRow&, const SplitRow&) = default;
};

/// A key in a gather list and the rows of the query tile that see it: [row_begin, row_end),
/// relative to the tile. A key that several row intervals see is listed once for each.
struct GatherEntry {
  std::int32_t key;
  std::uint16_t row_begin;
  std::uint16_t row_end;
  friend bool operator==(const GatherEntry&, const GatherEntry&) = default;
};

/// Lists begin at multiples of so many entries, so that keys can be loaded several at a time. Zeros
/// (key 0, no rows) fill the gap behind each list.
inline constexpr std::int64_t kGatherAlignment = 8;

/// Entries [first_entry, first_entry + num_entries) of a plan: those that all rows of the query
/// tile see come first (num_full), each part by ascending key. first_entry is a multiple of
/// kGatherAlignment.
struct GatherList {
  std::int64_t first_entry;
  std::int32_t num_entries;
  std::int32_t num_full;
  friend bool operator==(const GatherList&, const GatherList&) = default;
};

/// Another order of an element's keys, or of some of them: key i of it is the tensors' key
/// ordered_keys[first_key + i] of the plan. Each key is there at most once. A backend that cannot
/// read keys wherever they lie moves their rows of K and V before its kernel runs.
struct KeyOrder {
  std::int64_t first_key;
  std::int64_t num_keys;
  friend bool operator==(const KeyOrder&, const KeyOrder&) = default;
};

/// How make_plan treats tiles of few live keys, above all those of column intervals (learned top-k,
/// eviction).
///
/// A tile is visited as it is, or its live keys join a gather list: 8 bytes for each of them and
/// query tile. Or the keys that are ever seen are put in the order of their lifetimes, so that
/// those that live together lie in tiles together: 4 bytes a key, and its intervals once more. The
/// CPU computes live keys only, whatever the way; for sm90 a tile costs the same however few live.
///
/// `automatic` compares what the ways are predicted to cost for each tile row, and for each of its
/// partial tiles (regions.hpp), and takes what gains: for the CPU gather lists where less than
/// one key in 8 is alive.
enum class ColumnMode : std::uint8_t {
  automatic,
  scan,     ///< every tile is visited
  gather,   ///< column tiles become gather lists; other partial tiles where that is cheaper
  reorder,  ///< keys with column intervals are reordered, where the query heads of a KV head share
            ///< their mask; partial tiles of the new order as in `automatic`
};
std::string_view to_string(ColumnMode mode);
Result<ColumnMode> parse_column_mode(std::string_view name);

/// What a plan stores of the mask.
enum class PlanForm : std::uint8_t {
  segments,  ///< items and segments
  parametric,  ///< a formula (closed_form_mask.hpp): no items; lengths and documents may be given with
               ///< each call. Masks in closed form that do not depend on the head
};
std::string_view to_string(PlanForm form);
Result<PlanForm> parse_plan_form(std::string_view name);

/// Whether rows with many keys are split over several items.
enum class SplitMode : std::uint8_t {
  automatic,  ///< sm90: where workers would idle for want of items. cpu: never
  never,
};

/// Whether query heads that share a KV head are computed in one tile.
enum class PackMode : std::uint8_t {
  automatic,  ///< sm90: where queries do not fill a tile of 128 rows. cpu: never
  never,
};

struct PlanOptions {
  Backend backend = Backend::cpu;
  /// Which pass the plan is for. Backward: no gather lists, no splitting, no packing; key lists
  /// (fdma/kernels/kv_worklist.hpp) for sm90 only.
  Direction direction = Direction::forward;
  PlanForm form = PlanForm::segments;
  SplitMode split = SplitMode::automatic;
  PackMode pack = PackMode::automatic;
  /// Workers that items are split for; 0: 132 for sm90, the multiprocessors of an H100 or H200.
  std::int32_t num_workers = 0;
  /// Query rows and keys of a tile, multiples of 16; {0, 0}: the backend's own choice (128 x 128,
  /// the only one of sm90, whose rows heads may share).
  BlockShape tile{0, 0};
  ColumnMode columns = ColumnMode::automatic;
  /// Gather lists that `automatic` makes take no more bytes: masks beyond that are scanned.
  std::int64_t max_gather_bytes = std::int64_t{2} << 30;
  /// KV heads are taken in sections whose keys and values fit in this many bytes of shared cache;
  /// items are ordered longest first inside a section.
  std::int64_t section_bytes = std::int64_t{32} << 20;
  /// Threads that make the plan; 0: all. The plan does not depend on it.
  int num_threads = 0;
};

/// Counts over all items of a plan (heads and batch elements included; heads that share a tile
/// count once). Of a parametric plan: at its own lengths.
struct PlanCounts {
  std::int64_t full_tiles = 0;
  std::int64_t formula_tiles = 0;  ///< of parametric plans: those that are not full
  std::int64_t bitmap_tiles = 0;
  std::int64_t row_tiles = 0;
  std::int64_t column_tiles = 0;
  std::int64_t column_entries = 0;  ///< live keys of the column tiles, once per row interval
  std::int64_t gather_chunks = 0;
  std::int64_t gather_entries = 0;
  std::int64_t moved_keys = 0;  ///< keys of the orders of all (batch element, KV head) pairs
  std::int64_t empty_items = 0;
  friend bool operator==(const PlanCounts&, const PlanCounts&) = default;
};

/// What will run: a header and plain arrays; no tensor data.
///
/// Shapes      bitmaps [num_bitmaps, words_per_bitmap]. For the CPU bit c * block_q + r, that is a
///             tile's cells column by column (mask_tile().block_q rows); for sm90 two 32-bit words
///             for each of the 256 threads that compute the tile, every mask row being there for
///             each of the heads that share the tile (bitmap_order.hpp); row_offsets
///             [num_row_panels * block_q + 1]; column_tables: where each table begins in
///             column_offsets, kv_len + 1 entries of it (of items with a key order: num_keys + 1);
///             order_of [batch * heads_kv], or empty
/// Invariants  every tile of every (batch, head set, query tile) is in exactly one item: in the one
///             item of the query tile, or in one of those that its SplitRow tells of; segments of
///             an item ascend and do not overlap (gather lists aside); partials are those of the
///             split rows, each written by one item. validate checks
///             Backward: the items of the query heads of a KV head and a key tile are adjacent, in
///             the order of heads, also where they are empty: items [i * group_size, (i + 1) *
///             group_size) are one group, whose gradients of k and v add up
/// Owner       owns its arrays (host)
/// Cost        40 B an item, 20 B a split row, 24 B a segment, 8 B a word of a bitmap or a gather
///             entry, 4 B a key of an order
struct AttentionPlan {
  Backend backend = Backend::cpu;
  Direction direction = Direction::forward;
  BlockShape tile;  ///< queries and keys, in either direction
  AttentionShape shape;
  ScoreSpec score;
  PlanCounts counts;
  std::int64_t worker_bytes = 0;  ///< workspace of one worker (a thread; later a block)
  /// Query heads that share a tile of heads_per_tile * tile.block_q rows (a power of two, 128 rows
  /// for sm90): row r is query q_tile * block_q + r / heads_per_tile of head r % heads_per_tile
  /// after the item's. The last set of heads of a KV head has fewer where they do not divide the
  /// group; a plan's bitmaps, row panels and column tables are those of all of them.
  std::int32_t heads_per_tile = 1;
  std::vector<WorkItem> items;
  std::vector<SplitRow> split_rows;
  std::vector<PlanSegment> segments;
  std::vector<std::uint64_t> bitmaps;
  std::vector<std::int64_t> row_offsets{0};
  std::vector<Interval> row_intervals;
  std::vector<std::int64_t> column_tables;
  std::vector<std::int64_t> column_offsets;  ///< into column_intervals
  std::vector<Interval> column_intervals;
  std::vector<GatherList> gather_lists;
  std::vector<GatherEntry> gather_entries;
  std::vector<KeyOrder> key_orders;
  std::vector<std::int32_t> ordered_keys;
  std::vector<std::int32_t> order_of;  ///< the key order of items of (b, KV head), or -1

  /// Of a backward plan for sm90 whose keys are reordered, in place of items and all arrays above.
  KeyLists key_lists;

  // Of a parametric plan, in place of items and all arrays above.
  std::vector<MaskFormula> formulas;  ///< one, or one for each batch element; else empty
  std::vector<std::int32_t> borders;  ///< of documents (MaskFormula::first_border)
  std::int32_t num_splits = 1;        ///< items of each tile row; their keys are split evenly
  std::int32_t section_heads = 1;     ///< KV heads of a batch element whose items stay together

  bool is_parametric() const { return !formulas.empty(); }
  bool is_listed() const { return !key_lists.empty(); }
  bool is_backward() const { return direction == Direction::backward; }
  /// Rows and columns of a tile as items walk it: queries and keys, backward keys and queries.
  BlockShape mask_tile() const {
    return is_backward() ? BlockShape{tile.block_kv, tile.block_q} : tile;
  }
  std::int64_t row_len(std::int64_t b) const {
    return is_backward() ? shape.kv_len(b) : shape.q_len(b);
  }
  std::int64_t column_len(std::int64_t b) const {
    return is_backward() ? shape.q_len(b) : shape.kv_len(b);
  }
  /// The order in which the tiles of an item count keys; null: that of the tensors.
  const KeyOrder* key_order(const WorkItem& item) const {
    if (item.num_segments == 0) return nullptr;
    const PlanSegment& first = segments[static_cast<std::size_t>(item.first_segment)];
    return first.kind == PlanSegmentKind::order
               ? &key_orders[static_cast<std::size_t>(first.payload)]
               : nullptr;
  }
  std::int64_t words_per_bitmap() const {
    return std::int64_t{heads_per_tile} * tile.block_q * tile.block_kv / 64;
  }
  std::int64_t num_bitmaps() const {
    return static_cast<std::int64_t>(bitmaps.size()) / words_per_bitmap();
  }
  /// Those of `items`; of a parametric plan those that its own lengths make.
  std::int64_t num_items() const;
  /// Bytes of all arrays.
  std::int64_t size_bytes() const;
  friend bool operator==(const AttentionPlan&, const AttentionPlan&) = default;
};

/// The plan of `mask` for tensors of `shape`. The mask's num_batches is 1 or shape.batch, its
/// num_heads 1 or shape.heads_q; lengths agree. Items are ordered longest first inside sections of
/// heads that share K/V, the query heads of a group side by side.
///
/// options.form = parametric: a mask in closed form that is the same for all heads. Of a BlockMask
/// of format parametric the fields are taken as they are; of another the closed form of its cells
/// at these lengths, in which a window wider than they are, say, does not show. Of a backward plan
/// it is the mask's own formula: what sees a key follows from it (closed_form_columns.hpp).
///
/// options.direction = backward: the plan of the transposed mask, tiles of options.tile as forward
/// (128 x 128 for sm90), items in groups, the group with most to do first. Runs of the mask stay
/// runs.
///
/// Errors  invalid_argument, shape_mismatch; unsupported for a backend, layout or score by name,
///         of parametric plans for masks per head, without a closed form or above
///         kFormulaMaxLength, of backward plans for gather lists and key orders; out_of_memory
/// Cost    O(items log items + segments), and the tiles of one re-blocking where mask.block is not
///         the tile; gather lists cost their entries + keys log keys; backward plans what
///         transpose (set_algebra.hpp) costs
Result<AttentionPlan> make_plan(const BlockMask& mask, const AttentionShape& shape,
                                const ScoreSpec& score = {}, const PlanOptions& options = {});

/// internal, naming the first entry that breaks an invariant. O(items + arrays). The live keys of
/// column tiles (num_entries) are not counted again.
Result<void> validate(const AttentionPlan& plan);

/// A short stable text of header, counts and the first `max_items` items with their segments.
std::string to_text(const AttentionPlan& plan, std::int64_t max_items = 8);

}  // namespace fdma
