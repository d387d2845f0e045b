// What the CPU's backward pass hands to the code that is compiled once per instruction set.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "call/backward_call.hpp"
#include "cpu/scratch.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/closed_form.hpp"

namespace fdma::cpu {

/// The query tiles of an item, one after the other; `element` of a parametric plan, or null.
class TileCursor {
 public:
  TileCursor(const AttentionPlan& plan, const FormulaElement* element, const WorkItem& item)
      : segments_(plan.segments.data(), item) {
    if (element != nullptr) walk_ = walk_of(*element, plan.mask_tile(), item.q_tile);
  }

  /// Sets `tile` to the next one; false after the last.
  bool next(std::int32_t& tile) {
    bool is_full = false;
    if (walk_) return walk_->next(tile, is_full);
    TileStep step;
    if (!segments_.next(step)) return false;
    tile = step.tile;
    return true;
  }

 private:
  SegmentIterator segments_;
  std::optional<FormulaWalk> walk_;
};

/// The turns in which items add to rows of queries: to dq, or to D. Key tiles that see the same
/// query tile of a head add to its rows in the order in which they were taken, whichever thread is
/// first: each draws a ticket for every query tile when it is taken, and adds when that tile's
/// tickets before it are done. As groups are taken in the order of the plan, so are sums.
///
/// A group waits for groups that were taken before it, and the first of all for none: threads that
/// finish what they took never wait in a circle.
///
/// Cost    8 B for each (batch element, query head, query tile)
class QueryTurns {
 public:
  explicit QueryTurns(const AttentionPlan& plan);

  /// Draws the tickets of `item` in the order in which it walks its tiles, after those of items
  /// taken before it, and appends them. Not at the same time as another call; `tickets` must have
  /// room.
  void draw(const WorkItem& item, TileCursor tiles, std::vector<std::int32_t>& tickets);
  /// Returns when all tickets before `ticket` of the query tile are done.
  void wait(const WorkItem& item, std::int32_t q_tile, std::int32_t ticket);
  /// This ticket is done.
  void finish(const WorkItem& item, std::int32_t q_tile, std::int32_t ticket);
  /// Most tickets that a group of items draws.
  std::size_t max_tickets() const { return max_tickets_; }

 private:
  std::size_t place(const WorkItem& item) const;

  const AttentionPlan& plan_;
  std::vector<std::size_t> first_of_batch_;
  std::vector<std::int32_t> drawn_;
  std::vector<std::atomic<std::int32_t>> done_;
  std::size_t max_tickets_;
};

/// One backward call, checked, and what is found before its items run.
///
/// Shapes      exponent, shift [batch, heads_q, max q_len]: lse in powers of two (+inf where it is
///             -inf, so that weights become 0) and D; missing the same or empty: what D of `out`
///             lacks, with RowSums::keys; dq_sum float32: the tensor dq itself where it is float32,
///             otherwise memory of this call
struct BackwardRun : BackwardCall {
  BackwardRun(const BackwardCall& call, const AttentionPlan& plan);

  const AttentionPlan* plan;
  std::vector<FormulaElement> elements;  ///< of a parametric plan: one for each batch element
  Strided dq_sum;
  std::vector<float> exponent, shift, missing, dq_memory;

  /// Of a parametric plan, or null.
  const FormulaElement* element(std::int64_t batch) const {
    return elements.empty() ? nullptr : &elements[static_cast<std::size_t>(batch)];
  }
  std::int64_t q_len(std::int64_t batch) const {
    return elements.empty() ? plan->shape.q_len(batch) : element(batch)->num_columns;
  }
  std::int64_t kv_len(std::int64_t batch) const {
    return elements.empty() ? plan->shape.kv_len(batch) : element(batch)->num_rows;
  }
  TileCursor tiles_of(const WorkItem& item) const { return {*plan, element(item.batch), item}; }

  std::size_t row_index(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    const AttentionShape& shape = plan->shape;
    return static_cast<std::size_t>((batch * shape.heads_q + head) * shape.max_q_len() + row);
  }
};

/// One walk over all groups: for gradients, or before that for what D of `out` lacks.
struct BackwardPass {
  BackwardPass(const AttentionPlan& plan, bool adds_up_rows_here)
      : turns(plan), adds_up_rows(adds_up_rows_here) {}

  QueryTurns turns;
  bool adds_up_rows;  ///< of dS, into BackwardRun::missing; nothing else
};

/// Scratch of one thread. Panels are groups of keys that lie in vector lanes: element (d, r) of a
/// panel is at d * width + r; panels of columns hold `width` columns of all keys of the tile.
struct BackwardArrays {
  float* k = nullptr;          ///< [panels, head_dim, width], scaled
  float* v = nullptr;          ///< [panels, head_dim_v, width]
  float* k_columns = nullptr;  ///< [panels of head_dim, keys, width]
  float* dk = nullptr;         ///< [panels, head_dim, width]
  float* dv = nullptr;         ///< [panels, head_dim_v, width]
  float* bias = nullptr;       ///< [keys], in powers of two
  float* dbias = nullptr;      ///< [keys]
  float* q = nullptr;          ///< [kChunkColumns, head_dim]: rows in float32, where q is not
  float* dout = nullptr;       ///< [kChunkColumns, head_dim_v]
  float* weights = nullptr;    ///< [kChunkColumns, width]: scores, then P
  float* dscores = nullptr;    ///< [kChunkColumns, width]: dP, then dS
  float* ds_rows = nullptr;    ///< [kChunkColumns, keys]: dS of all keys of the tile
  float* dq = nullptr;         ///< [panels of head_dim, kChunkColumns, width]
  float* row = nullptr;        ///< [kMaxHeadDim]

  void add_to(FloatBlock& block, const AttentionShape& shape, BlockShape tile);
};

struct BackwardWorkspace : BackwardArrays {
  BackwardWorkspace(const BackwardRun& run, const BackwardPass& pass);
  static std::int64_t bytes(const AttentionShape& shape, BlockShape tile);

  FloatBlock memory;
  Chunk chunk;  ///< its queries, and their rows of q and dout
  std::vector<const float*> q_rows, dout_rows, ds_row_at;
  std::vector<std::int32_t> tickets;  ///< of the group in hand
};

/// Finds exponent and shift of queries [begin, end), and clears their sums of dq. With
/// RowSums::keys shift is D of `out` until add_missing.
void prepare_rows(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                  std::int64_t end);

/// Adds what the first pass has found to shift.
void add_missing(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                 std::int64_t end);

/// Runs the items of a group, whose tickets the workspace holds.
void run_group(BackwardRun& run, BackwardPass& pass, const WorkItem* items,
               BackwardWorkspace& workspace);

/// Stores the sums of queries [begin, end) in dq, where those are not dq itself.
void store_dq(const BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
              std::int64_t end);

}  // namespace fdma::cpu
