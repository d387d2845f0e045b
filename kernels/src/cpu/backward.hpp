// Interface between the CPU's backward pass and its code that is compiled once per instruction set.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "call/backward_call.hpp"
#include "call/dropout_bits.hpp"
#include "cpu/score_gradients.hpp"
#include "cpu/scratch.hpp"
#include "cpu/turns.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/closed_form.hpp"

namespace fdma::cpu {

/// Iterates over the query tiles of a work tile, by `segments` of a plan of segments or by
/// `element` of a closed-form plan; the other is null.
class TileCursor {
 public:
  TileCursor(const PlanHeader& header, const SegmentPlan* segments,
             const ClosedFormElement* element, const WorkTile& work_tile)
      : segments_(segments != nullptr ? segments->segments.data() : nullptr, work_tile),
        patterns_(segments != nullptr ? segments->pattern_arrays() : PatternArrays{}) {
    if (element != nullptr) walk_ = walk_of(*element, header.mask_tile(), work_tile.q_tile);
  }

  /// Sets `tile` to the next tile; returns false after the last.
  bool next(std::int32_t& tile) {
    bool is_full = false;
    if (walk_) return walk_->next(tile, is_full);
    TileStep step;
    if (!segments_.next(step, patterns_)) return false;
    tile = step.tile;
    return true;
  }

 private:
  SegmentIterator segments_;
  PatternArrays patterns_;
  std::optional<ClosedFormWalk> walk_;
};

/// The accumulation order of work tiles in rows of queries, for dq or for D. Key tiles that see the
/// same query tile of a head add to its rows in the order in which they were taken, whichever
/// thread is first. A work tile draws a ticket for every query tile when it is taken, and adds when
/// the earlier tickets of that tile are done. Groups are taken in the order of the plan, so sums
/// are added in that order.
///
/// A group waits only for groups that were taken before it, and the first one waits for none.
/// Threads finish what they took, so they never wait in a cycle.
///
/// Cost    8 B per (batch element, query head, query tile)
class DqTickets {
 public:
  explicit DqTickets(const PlanHeader& plan);

  /// Draws the tickets of `work_tile` in the order in which it walks its tiles, after those of work
  /// tiles taken before it, and appends them. It must not run concurrently with another call.
  /// `tickets` must have capacity.
  void draw(const WorkTile& work_tile, TileCursor tiles, std::vector<std::int32_t>& tickets);
  /// Waits until all tickets before `ticket` of the query tile are done.
  void wait(const WorkTile& work_tile, std::int32_t q_tile, std::int32_t ticket);
  /// Marks this ticket as done.
  void finish(const WorkTile& work_tile, std::int32_t q_tile, std::int32_t ticket);
  /// Maximum number of tickets that a group of work tiles draws.
  std::size_t max_tickets() const { return max_tickets_; }

 private:
  std::size_t place(const WorkTile& work_tile) const;

  const PlanHeader& plan_;
  std::vector<std::size_t> first_of_batch_;
  Turns turns_;
  std::size_t max_tickets_;
};

/// One checked backward call, and the values that are computed before its work tiles run.
///
/// Shapes      exponent, shift [batch, heads_q, max q_len]: lse in powers of two (+inf where it is
///             -inf, so that weights become 0) and D; missing the same or empty: the correction of
///             D, with DeltaSource::corrected; dq_sum float32: the tensor dq itself if it is
///             float32, otherwise memory of this call
struct BackwardRun : CheckedBackwardCall {
  /// `of_segments` are those of a plan of segments, or null.
  BackwardRun(const CheckedBackwardCall& call, const PlanHeader& of_plan,
              const SegmentPlan* of_segments);

  const PlanHeader* plan;
  const SegmentPlan* segments;              ///< of a plan of segments; else null
  std::vector<ClosedFormElement> elements;  ///< of a closed-form plan: one per batch element
  MutableStrided dq_sum;
  DropoutBits dropout_bits;  ///< of the call's dropout
  std::vector<float> exponent, shift, missing, dq_memory;
  std::optional<ScoreGradients> score_gradients;  ///< where the call has newer parts

  /// The element of a closed-form plan, or null.
  const ClosedFormElement* element(std::int64_t batch) const {
    return elements.empty() ? nullptr : &elements[static_cast<std::size_t>(batch)];
  }
  std::int64_t q_len(std::int64_t batch) const {
    return elements.empty() ? plan->shape.q_len(batch) : element(batch)->num_columns;
  }
  std::int64_t kv_len(std::int64_t batch) const {
    return elements.empty() ? plan->shape.kv_len(batch) : element(batch)->num_rows;
  }
  /// True iff a gradient of newer parts is wanted that belongs to pairs.
  bool wants_pair_gradients() const {
    return has_newer_parts() &&
           (dkey_bias.data != nullptr || dbias.data != nullptr || drelative.data != nullptr);
  }
  float* dq_sum_of(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return static_cast<float*>(dq_sum.data) + batch * dq_sum.batch_stride +
           row * dq_sum.row_stride + head * dq_sum.head_stride;
  }
  TileCursor tiles_of(const WorkTile& work_tile) const {
    return {*plan, segments, element(work_tile.batch), work_tile};
  }

  std::size_t row_index(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    const AttentionShape& shape = plan->shape;
    return static_cast<std::size_t>((batch * shape.heads_q + head) * shape.max_q_len() + row);
  }
};

/// One walk over all groups: for gradients, or before that for the correction of D.
struct BackwardPass {
  BackwardPass(const PlanHeader& plan, bool adds_up_rows_here)
      : dq_tickets(plan), adds_up_rows(adds_up_rows_here) {}

  DqTickets dq_tickets;
  bool adds_up_rows;  ///< sums dS into BackwardRun::missing, and does nothing else
};

/// Scratch memory of one thread. Panels are groups of keys that lie in vector lanes: element (d, r)
/// of a panel is at d * width + r. Panels of columns hold `width` columns of all keys of the tile.
struct BackwardArrays {
  float* k = nullptr;          ///< [panels, head_dim, width], scaled
  float* v = nullptr;          ///< [panels, head_dim_v, width]
  float* k_columns = nullptr;  ///< [panels of head_dim, keys, width]
  float* dk = nullptr;         ///< [panels, head_dim, width]
  float* dv = nullptr;         ///< [panels, head_dim_v, width]
  float* bias = nullptr;       ///< [keys], in powers of two
  float* dbias = nullptr;      ///< [keys]
  float* terms = nullptr;      ///< [kChunkColumns, width], where the call has newer parts
  float* q = nullptr;          ///< [kChunkColumns, head_dim]: rows in float32, where q is not
  float* dout = nullptr;       ///< [kChunkColumns, head_dim_v]
  float* weights = nullptr;    ///< [kChunkColumns, width]: scores, then P
  float* dscores = nullptr;    ///< [kChunkColumns, width]: dP, then dS
  float* ds_rows = nullptr;    ///< [kChunkColumns, keys]: dS of all keys of the tile
  float* dq = nullptr;         ///< [panels of head_dim, kChunkColumns, width]
  float* row = nullptr;        ///< [kMaxHeadDim]

  void add_to(FloatBlock& block, const AttentionShape& shape, BlockShape tile, bool has_terms);
};

struct BackwardWorkspace : BackwardArrays {
  BackwardWorkspace(BackwardRun& run, const BackwardPass& pass);
  static std::int64_t bytes(const AttentionShape& shape, BlockShape tile);

  FloatBlock memory;
  Chunk chunk;  ///< its queries, and their rows of q and dout
  std::vector<const float*> q_rows, dout_rows, ds_row_at;
  std::vector<std::int32_t> tickets;      ///< of the current group
  std::vector<SumTickets> sum_tickets;    ///< likewise, of its work tiles
  std::optional<ScoreGradientSums> sums;  ///< where the pass adds to them
};

/// Computes exponent and shift of queries [begin, end), and clears their dq accumulators. With
/// DeltaSource::corrected shift is D of `out` until add_missing.
void prepare_rows(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                  std::int64_t end);

/// Adds the correction that the first pass has found to shift.
void add_missing(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                 std::int64_t end);

/// Runs the work tiles of a group, whose tickets the workspace holds.
void run_group(BackwardRun& run, BackwardPass& pass, const WorkTile* work_tiles,
               BackwardWorkspace& workspace);

/// Stores the accumulators of queries [begin, end) in dq, unless dq is the accumulator itself.
void store_dq(const BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
              std::int64_t end);

}  // namespace fdma::cpu
