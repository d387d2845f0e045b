// AttentionPlan: what will run. It holds the work tiles in the order in which workers take them,
// and the segments that each of them walks.
//
// A plan keeps the closed form of the mask: segments belong to runs of tile rows that move in step,
// and a work tile says how many steps it is into its run. Plan memory is therefore that of the mask
// in tiles, plus 40 bytes for each (batch, head, query tile), plus the kv index lists.
//
// Backward plans are plans of the transposed mask: their rows are keys and their columns queries. A
// work tile is then a key tile of a query head and its tiles are query tiles. What this file says
// of rows and columns holds for both directions (AttentionPlan::mask_tile, row_len, column_len).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/direction.hpp"
#include "fdma/kernels/kv_worklist.hpp"
#include "fdma/kernels/plan_arrays.hpp"

namespace fdma {

/// How make_plan treats tiles of few live keys, above all those of column intervals (learned top-k,
/// eviction). There are three ways:
///
///   scan     visits a tile as it is
///   gather   puts its live keys into a kv index list: 8 bytes for each of them and query tile
///   reorder  orders the keys that are ever seen by their live ranges, so that keys that live
///            together lie in tiles together: 4 bytes a key, and its intervals once more
///
/// The CPU computes live keys only, whatever the way. On sm90 a tile costs the same however few of
/// its keys live.
///
/// `automatic` predicts the cost of each way for each tile row and each of its partial tiles
/// (regions.hpp) and takes the cheapest. On the CPU it gathers where less than one key in 8 is
/// alive.
enum class ColumnMode : std::uint8_t {
  automatic,
  scan,     ///< every tile is visited
  gather,   ///< column tiles become kv index lists; so do other partial tiles where cheaper
  reorder,  ///< keys with column intervals are reordered, where the query heads of a KV head share
            ///< their mask; partial tiles of the new order are treated as in `automatic`
};
std::string_view to_string(ColumnMode mode);
Result<ColumnMode> parse_column_mode(std::string_view name);

/// What a plan stores of the mask.
enum class PlanForm : std::uint8_t {
  segments,  ///< work tiles and segments
  parametric,  ///< a closed form (closed_form_mask.hpp) without work tiles. Each call may give lengths
               ///< and documents. For masks in closed form that do not depend on the head
};
std::string_view to_string(PlanForm form);
Result<PlanForm> parse_plan_form(std::string_view name);

/// Whether rows with many keys are split over several work tiles.
enum class SplitMode : std::uint8_t {
  automatic,  ///< sm90: where workers would idle for lack of work tiles. cpu: never
  never,
};

/// Whether query heads that share a KV head are computed in one tile.
enum class PackMode : std::uint8_t {
  automatic,  ///< sm90: where queries do not fill a tile of 128 rows. cpu: never
  never,
};

struct PlanOptions {
  Backend backend = Backend::cpu;
  /// The pass that the plan is for. Backward plans have no kv index lists, no splitting and no
  /// packing; kv worklists (kv_worklist.hpp) exist for sm90 only.
  Direction direction = Direction::forward;
  PlanForm form = PlanForm::segments;
  SplitMode split = SplitMode::automatic;
  PackMode pack = PackMode::automatic;
  /// Workers that rows are split for; 0: 132 for sm90, the multiprocessors of an H100 or H200.
  std::int32_t num_workers = 0;
  /// Query rows and keys of a tile, multiples of 16. {0, 0}: the backend's own choice, 128 x 128.
  /// sm90 has no other; its rows may be shared by heads.
  BlockShape tile{0, 0};
  ColumnMode columns = ColumnMode::automatic;
  /// The kv index lists that `automatic` makes take at most this; masks beyond it are scanned.
  std::int64_t max_kv_index_bytes = std::int64_t{2} << 30;
  /// Bytes of shared cache (heads in L2): KV heads are taken in sets whose keys and values fit, and
  /// work tiles are ordered longest first inside a set.
  std::int64_t l2_bytes = std::int64_t{32} << 20;
  /// Threads that make the plan; 0: all. The plan does not depend on their number.
  int num_threads = 0;
};

/// Counts over all work tiles of a plan, over all heads and batch elements (heads that share a tile
/// count once). For a closed-form plan they are taken at its own lengths.
struct PlanCounts {
  std::int64_t full_tiles = 0;
  std::int64_t formula_tiles = 0;  ///< tiles of closed-form plans that are not full
  std::int64_t bitmap_tiles = 0;
  std::int64_t row_tiles = 0;
  std::int64_t column_tiles = 0;
  std::int64_t column_entries = 0;  ///< live keys of the column tiles, once per row interval
  std::int64_t gather_chunks = 0;
  std::int64_t gather_entries = 0;
  std::int64_t moved_keys = 0;  ///< keys of the kv permutations of all (batch element, KV head)
  std::int64_t empty_items = 0;
  friend bool operator==(const PlanCounts&, const PlanCounts&) = default;
};

/// What will run: a header and plain arrays, without tensor data.
///
/// Shapes      bitmaps         [num_bitmaps, words_per_bitmap] uint64
///                             cpu: cell (r, c) is bit c * block_q + r, column by column
///                             (mask_tile().block_q rows)
///                             sm90: two 32-bit words for each of the 256 threads that compute the
///                             tile; every mask row occurs once for each of the heads that share
///                             the tile (bitmap_order.hpp)
///             row_offsets     [num_row_panels * block_q + 1] int64, into row_intervals
///             column_tables   [num_tables] int64: where each table begins in column_offsets; a
///                             table has kv_len + 1 entries (with a kv permutation: num_keys + 1)
///             column_offsets  int64, into column_intervals
///             order_of        [batch * heads_kv] int32, or empty
/// Invariants  every tile of every (batch, head set, query tile) is in exactly one work tile: in
///             the one work tile of the query tile, or in one of those that its SplitRow lists
///             segments of a work tile ascend and do not overlap (kv index lists aside)
///             partials are those of the split rows; one work tile writes each
///             backward: the work tiles of one key tile and the query heads of one KV head are
///             adjacent, in the order of heads, including empty ones; work tiles
///             [i * group_size, (i + 1) * group_size) are one group, whose gradients of k and v
///             add up
///             validate checks all of these
/// Owner       owns its arrays (host)
/// Cost        40 B a work tile, 20 B a split row, 24 B a segment
///             8 B a word of a bitmap, 8 B an entry of a kv index list
///             4 B a key of a kv permutation
struct AttentionPlan {
  Backend backend = Backend::cpu;
  Direction direction = Direction::forward;
  BlockShape tile;  ///< queries and keys, in either direction
  AttentionShape shape;
  ScoreSpec score;
  PlanCounts counts;
  std::int64_t worker_bytes = 0;  ///< workspace of one worker (a thread)
  /// Query heads that share a tile of heads_per_tile * tile.block_q rows (a power of two; 128 rows
  /// for sm90). Row r is query q_tile * block_q + r / heads_per_tile of head
  /// head + r % heads_per_tile, where `head` is the work tile's. The last set of heads of a KV head
  /// is smaller where heads_per_tile does not divide the group. Bitmaps, row panels and column
  /// tables of the plan hold for all heads of a tile.
  std::int32_t heads_per_tile = 1;
  std::vector<WorkTile> work_tiles;
  std::vector<SplitRow> split_rows;
  std::vector<PlanSegment> segments;
  std::vector<std::uint64_t> bitmaps;
  std::vector<std::int64_t> row_offsets{0};
  std::vector<Interval> row_intervals;
  std::vector<std::int64_t> column_tables;
  std::vector<std::int64_t> column_offsets;  ///< into column_intervals
  std::vector<Interval> column_intervals;
  std::vector<KvIndexList> kv_index_lists;
  std::vector<KvIndexEntry> kv_index_entries;
  std::vector<KvPermutation> kv_permutations;
  std::vector<std::int32_t> permuted_keys;
  std::vector<std::int32_t> permutation_of;  ///< the kv permutation of (b, KV head), or -1

  /// Backward plans for sm90 whose keys are reordered have this in place of work tiles and all
  /// arrays above.
  KvWorklist kv_worklist;

  // Closed-form plans have these in place of work tiles and all arrays above.
  std::vector<ClosedFormMask> closed_forms;  ///< one, or one for each batch element; else empty
  std::vector<std::int32_t> borders;         ///< of documents (ClosedFormMask::first_border)
  std::int32_t num_splits = 1;               ///< work tiles of each tile row; keys are split evenly
  std::int32_t heads_in_l2 = 1;  ///< KV heads of a batch element that stay together in L2

  bool is_closed_form() const { return !closed_forms.empty(); }
  bool has_worklist() const { return !kv_worklist.empty(); }
  bool is_backward() const { return direction == Direction::backward; }
  /// Rows and columns of a tile as work tiles walk it: queries and keys; backward keys and queries.
  BlockShape mask_tile() const {
    return is_backward() ? BlockShape{tile.block_kv, tile.block_q} : tile;
  }
  std::int64_t row_len(std::int64_t b) const {
    return is_backward() ? shape.kv_len(b) : shape.q_len(b);
  }
  std::int64_t column_len(std::int64_t b) const {
    return is_backward() ? shape.q_len(b) : shape.kv_len(b);
  }
  /// The order in which the tiles of a work tile count keys; null: that of the tensors.
  const KvPermutation* kv_permutation(const WorkTile& work_tile) const {
    if (work_tile.num_segments == 0) return nullptr;
    const PlanSegment& first = segments[static_cast<std::size_t>(work_tile.first_segment)];
    return first.kind == PlanSegmentKind::permutation
               ? &kv_permutations[static_cast<std::size_t>(first.data_index)]
               : nullptr;
  }
  std::int64_t words_per_bitmap() const {
    return std::int64_t{heads_per_tile} * tile.block_q * tile.block_kv / 64;
  }
  std::int64_t num_bitmaps() const {
    return static_cast<std::int64_t>(bitmaps.size()) / words_per_bitmap();
  }
  /// Those of `work_tiles`; of a closed-form plan those that its own lengths make.
  std::int64_t num_work_tiles() const;
  /// Bytes of all arrays.
  std::int64_t size_bytes() const;
  friend bool operator==(const AttentionPlan&, const AttentionPlan&) = default;
};

/// The plan of `mask` for tensors of `shape`. The mask's num_batches is 1 or shape.batch, its
/// num_heads is 1 or shape.heads_q, and lengths agree. Work tiles are ordered longest first inside
/// sets of heads that share L2; the query heads of a group stand side by side.
///
/// options.form = parametric makes a closed-form plan. The mask must have a closed form and be the
/// same for all heads. Fields of a BlockMask of format parametric are taken as they are. Any other
/// format gives the closed form of its cells at these lengths, in which a window wider than the
/// lengths does not show. A backward plan holds the closed form of the mask itself; what sees a key
/// follows from it (closed_form_columns.hpp).
///
/// options.direction = backward makes the plan of the transposed mask, with tiles of options.tile
/// as forward (128 x 128 for sm90). Work tiles come in groups, the group with most tiles first.
/// Runs of the mask stay runs.
///
/// Errors      invalid_argument, shape_mismatch, out_of_memory
///             unsupported: a backend, layout or score, by name; for closed-form plans, masks that
///             differ by head, have no closed form or exceed kClosedFormMaxLength; for backward
///             plans, kv index lists and kv permutations
/// Cost        O(work tiles * log(work tiles) + segments), and the tiles of one re-blocking where
///             mask.block is not the tile
///             kv index lists: their entries + keys * log(keys)
///             backward plans: the cost of transpose (set_algebra.hpp)
Result<AttentionPlan> make_plan(const BlockMask& mask, const AttentionShape& shape,
                                const ScoreSpec& score = {}, const PlanOptions& options = {});

/// Checks the invariants. Errors: internal, naming the first entry that breaks one. Cost:
/// O(work tiles + arrays). The live keys of column tiles (num_entries) are not counted again.
Result<void> validate(const AttentionPlan& plan);

/// A short stable text of the header, the counts and the first `max_work_tiles` work tiles with
/// their segments.
std::string to_text(const AttentionPlan& plan, std::int64_t max_work_tiles = 8);

}  // namespace fdma
