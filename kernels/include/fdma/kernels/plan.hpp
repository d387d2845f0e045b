// AttentionPlan: what will run. A header, and one of the forms in which a plan holds its work.
//
// Backward plans are plans of the transposed mask: their rows are keys and their columns queries. A
// work tile is then a key tile of a query head and its tiles are query tiles. What this file says
// of rows and columns holds for both directions (PlanHeader::mask_tile, row_len, column_len).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/closed_form_plan.hpp"
#include "fdma/kernels/direction.hpp"
#include "fdma/kernels/kv_worklist.hpp"
#include "fdma/kernels/plan_report.hpp"
#include "fdma/kernels/segment_plan.hpp"

namespace fdma {

struct DeviceProfile;

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
  /// The device whose costs decide (cost_model.hpp); null: the default_profile of the backend.
  std::shared_ptr<const DeviceProfile> profile;
  /// Workers that rows are split for; 0: those of `profile`, without it 132 for sm90, the
  /// multiprocessors of an H100 or H200.
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

/// What every form of a plan has.
///
/// Invariants  shape and tile are valid; heads_per_tile is a power of two that the backend's tile
///             allows, in backward plans 1; counts are those of the form (validate)
struct PlanHeader {
  Backend backend = Backend::cpu;
  Direction direction = Direction::forward;
  BlockShape tile;  ///< queries and keys, in either direction
  AttentionShape shape;
  ScoreSpec score;
  PlanCounts counts;
  PlanReport report;              ///< what was considered; no array of the plan
  std::int64_t worker_bytes = 0;  ///< workspace of one worker (a thread)
  /// Query heads that share a tile of heads_per_tile * tile.block_q rows (a power of two; 128 rows
  /// for sm90). Row r is query q_tile * block_q + r / heads_per_tile of head
  /// head + r % heads_per_tile, where `head` is the work tile's. The last set of heads of a KV head
  /// is smaller where heads_per_tile does not divide the group. Bitmaps, row panels and column
  /// tables of the plan hold for all heads of a tile.
  std::int32_t heads_per_tile = 1;

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
  std::int64_t words_per_bitmap() const {
    return std::int64_t{heads_per_tile} * tile.block_q * tile.block_kv / 64;
  }
  friend bool operator==(const PlanHeader&, const PlanHeader&) = default;
};

/// What will run: a header and one of several forms, without tensor data. Each form documents its
/// arrays and invariants where it is defined.
///
///   SegmentPlan     work tiles and segments, for any mask (segment_plan.hpp)
///   ClosedFormPlan  closed forms, for masks that have one and do not depend on the head
///                   (closed_form_plan.hpp)
///   KvWorklist      keys sorted by live range, for backward plans of sm90 (kv_worklist.hpp)
///
/// Whoever handles all forms visits `form` with a function for each, so that another form does not
/// compile where it is not handled. Other functions take the form that they mean.
///
/// Example     const auto& segments = std::get<SegmentPlan>(plan.form);
///             segments.work_tiles.size() == plan.num_work_tiles()
/// Owner       owns its arrays (host)
struct AttentionPlan : PlanHeader {
  std::variant<SegmentPlan, ClosedFormPlan, KvWorklist> form;

  /// Work tiles of the form; of a closed-form plan those that its own lengths make.
  std::int64_t num_work_tiles() const;
  /// Bytes of the form: all arrays, and the numbers beside them.
  std::int64_t size_bytes() const;
  /// The option that makes plans of this form; a kv worklist stands in for segments.
  PlanForm planned_form() const;
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
///             plans, kv index lists and kv permutations; a profile without costs for the dtype
///             and direction
/// Cost        O(work tiles * log(work tiles) + segments), and the tiles of one re-blocking where
///             mask.block is not the tile
///             kv index lists: their entries + keys * log(keys)
///             backward plans: the cost of transpose (set_algebra.hpp)
Result<AttentionPlan> make_plan(const BlockMask& mask, const AttentionShape& shape,
                                const ScoreSpec& score = {}, const PlanOptions& options = {});

/// Checks the invariants of the header and of the form. Errors: internal, naming the first entry
/// that breaks one. Cost: O(work tiles + arrays). The live keys of column tiles (num_entries) are
/// not counted again.
Result<void> validate(const AttentionPlan& plan);

/// A short stable text of the header, the counts, the choices with their predicted costs and the
/// first `max_work_tiles` work tiles with their segments, or the first `max_work_tiles` closed
/// forms.
std::string to_text(const AttentionPlan& plan, std::int64_t max_work_tiles = 8);

}  // namespace fdma
