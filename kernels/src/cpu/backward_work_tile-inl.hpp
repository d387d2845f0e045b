// One group of the backward pass on the CPU: a key tile, over the query tiles that see it, for each
// query head of its KV head. One thread runs it.
//
//   load      K and V tiles transposed into panels of keys, K scaled; K by columns
//   chunks    up to 128 queries at a time (tile_walk-inl.hpp): their rows of q and dout
//   per panel scores and dP by the loop that computes scores forward; P and dS; dV^T += dout^T P and
//             dK^T += q^T dS by the loop that adds weighted values forward
//   dq        of the chunk's queries, from the dS of all keys of the tile, again by the scores' loop
//             (K by columns takes the place of q); added to the accumulators in accumulation order
//   store     dK, dV and the gradients of the score, once for all heads of the group
//
// Where a mask hides some cells of a chunk that holds NaN or infinity, products are added under the
// mask, cell by cell. Included once per instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_BACKWARD_WORK_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_BACKWARD_WORK_TILE_INL
#undef FDMA_CPU_BACKWARD_WORK_TILE_INL
#else
#define FDMA_CPU_BACKWARD_WORK_TILE_INL
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cpu/backward.hpp"
#include "cpu/lane_pairs.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/softmax-inl.hpp"
#include "cpu/tile_walk-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

inline float sum_of(const float* a, std::size_t length) {
  const FloatTag tag;
  FloatVec sum = hn::Zero(tag);
  std::size_t i = 0;
  for (; i + kLanes <= length; i += kLanes) sum = hn::Add(hn::LoadU(tag, a + i), sum);
  float result = hn::GetLane(hn::SumOfLanes(tag, sum));
  for (; i < length; ++i) result += a[i];
  return result;
}

/// The keys of a group. `Score` and `KvReader` are the policies of score-inl.hpp and kv_reader.hpp.
template <class Score, class KvReader>
class KeyTile {
 public:
  KeyTile(const BackwardRun& run, const WorkTile& work_tile, BackwardWorkspace& workspace,
          Score& score, const KvReader& kv)
      : run_(run),
        score_(score),
        kv_(kv),
        ws_(workspace),
        batch_(work_tile.batch),
        kv_head_(work_tile.head / run.plan->shape.group_size()),
        begin_(std::int64_t{work_tile.q_tile} * run.plan->tile.block_kv),
        num_keys_(static_cast<std::size_t>(
            std::min<std::int64_t>(run.plan->tile.block_kv, run.kv_len(work_tile.batch) - begin_))),
        head_dim_(static_cast<std::size_t>(run.plan->shape.head_dim)),
        head_dim_v_(static_cast<std::size_t>(run.plan->shape.head_dim_v)),
        stride_(static_cast<std::size_t>(panel_rows(run.plan->tile.block_kv))) {}

  void load() {
    score_.begin_keys(begin_, num_keys_);
    const auto k_row = [&](std::int64_t key) { return kv_.k_row(key); };
    const auto v_row = [&](std::int64_t key) { return kv_.v_row(key); };
    for (std::size_t row = 0; row < num_keys_;) {
      const Panel panel = panel_of(row, num_keys_);
      load_panel(panel, k_row, run_.k.dtype, head_dim_, ws_.k, run_.scale_log2);
      load_panel(panel, v_row, run_.v.dtype, head_dim_v_, ws_.v, 1.0F);
      std::fill_n(ws_.dk + row * head_dim_, panel.width() * head_dim_, 0.0F);
      std::fill_n(ws_.dv + row * head_dim_v_, panel.width() * head_dim_v_, 0.0F);
      row += panel.width();
    }
    for (std::size_t key = 0; key < num_keys_; ++key) load_columns(key);
  }

  void store() {
    for (std::size_t row = 0; row < num_keys_;) {
      const Panel panel = panel_of(row, num_keys_);
      store_panel(panel, run_.dk, head_dim_, ws_.dk, run_.scale);
      store_panel(panel, run_.dv, head_dim_v_, ws_.dv, 1.0F);
      row += panel.width();
    }
    score_.end_keys();
  }

  /// True iff every element of K is finite.
  bool is_finite() const { return is_finite_; }
  /// Stride between columns in the arrays that have one element for each key.
  std::size_t stride() const { return stride_; }

 private:
  std::int64_t key_at(std::size_t row) const { return begin_ + static_cast<std::int64_t>(row); }

  /// Loads the rows of a panel's keys, times `scale`.
  template <class RowOf>
  void load_panel(const Panel& panel, const RowOf& row_of, DType dtype, std::size_t length,
                  float* to, float scale) {
    const std::size_t width = panel.width();
    to += panel.first_row * length;
    std::fill_n(to, length * width, 0.0F);
    for (std::size_t r = 0; r < panel.num_rows; ++r) {
      load_row(row_of(key_at(panel.first_row + r)), dtype, length, ws_.row);
      for (std::size_t d = 0; d < length; ++d) to[d * width + r] = ws_.row[d] * scale;
    }
  }

  /// Loads a row of unscaled K into the panels of its columns.
  void load_columns(std::size_t key) {
    load_row(kv_.k_row(key_at(key)), run_.k.dtype, head_dim_, ws_.row);
    const float* const row = ws_.row;
    is_finite_ = is_finite_ && all_finite(&row, 1, head_dim_);
    for (std::size_t d = 0; d < head_dim_;) {
      const Panel panel = panel_of(d, head_dim_);
      float* to = ws_.k_columns + d * stride_ + key * panel.width();
      std::fill(std::copy_n(row + d, panel.num_rows, to), to + panel.width(), 0.0F);
      d += panel.width();
    }
  }

  void store_panel(const Panel& panel, const MutableStrided& tensor, std::size_t length,
                   const float* from, float scale) {
    from += panel.first_row * length;
    for (std::size_t r = 0; r < panel.num_rows; ++r) {
      for (std::size_t d = 0; d < length; ++d) ws_.row[d] = from[d * panel.width() + r] * scale;
      store_row(ws_.row, tensor.dtype, length,
                tensor.row(batch_, key_at(panel.first_row + r), kv_head_));
    }
  }

  const BackwardRun& run_;
  Score& score_;
  KvReader kv_;
  BackwardWorkspace& ws_;
  std::int32_t batch_, kv_head_;
  std::int64_t begin_;
  std::size_t num_keys_, head_dim_, head_dim_v_, stride_;
  bool is_finite_ = true;
};

/// One query head of a group. Rows are keys, columns queries.
template <class Score, class Weight, class KvReader>
class BackwardWorkTile : TileWalk<BackwardWorkTile<Score, Weight, KvReader>> {
  using Walk = TileWalk<BackwardWorkTile>;
  using Walk::num_columns, Walk::is_masked, Walk::bits_of, Walk::words_per_column;
  using Walk::num_rows_, Walk::row_begin_, Walk::tile_, Walk::work_tile_;

 public:
  /// `ticket` points to the first ticket of the work tile, and past its last one after run().
  BackwardWorkTile(BackwardRun& run, BackwardPass& pass, const WorkTile& work_tile,
                   const KeyTile<Score, KvReader>& keys, Score& score, const Weight& weight,
                   BackwardWorkspace& workspace, const std::int32_t*& ticket)
      : Walk(*run.plan, run.segments, work_tile, run.element(work_tile.batch), workspace.chunk),
        run_(run),
        pass_(pass),
        keys_(keys),
        score_(score),
        weight_(weight),
        ws_(workspace),
        head_dim_(static_cast<std::size_t>(run.plan->shape.head_dim)),
        head_dim_v_(static_cast<std::size_t>(run.plan->shape.head_dim_v)),
        first_row_index_(run.row_index(work_tile.batch, work_tile.head, 0)),
        dq_tiles_(run.tiles_of(work_tile)),
        ticket_(ticket) {
    score_.begin_head(work_tile.batch, work_tile.head);
    weight_.begin_head(work_tile.batch, work_tile.head);
  }

  void run() {
    dq_tiles_.next(dq_tile_);
    this->walk();
    if (!pass_.adds_up_rows) score_.end_head();
  }

 private:
  friend Walk;

  // ---- accumulation order: dq_tile_ is the first tile whose ticket is not done

  void end_tile(std::int32_t) {
    ++num_ended_;
    if (num_columns() == 0) finish_ended();
  }

  void finish_ended() {
    while (num_ended_ > 0) finish_dq_addition();
  }

  void wait_for_dq_semaphore() {
    if (has_dq_position_) return;
    pass_.dq_tickets.wait(work_tile_, dq_tile_, *ticket_);
    has_dq_position_ = true;
  }

  void finish_dq_addition() {
    wait_for_dq_semaphore();
    pass_.dq_tickets.finish(work_tile_, dq_tile_, *ticket_);
    ++ticket_;
    --num_ended_;
    has_dq_position_ = false;
    dq_tiles_.next(dq_tile_);
  }

  // ---- a chunk

  void flush() {
    const auto row_of = [&](const Strided& tensor) {
      return [&](std::int64_t q) { return tensor.row(work_tile_.batch, q, work_tile_.head); };
    };
    this->find_rows(row_of(run_.q), run_.q.dtype, head_dim_, ws_.q, ws_.q_rows);
    this->find_rows(row_of(run_.dout), run_.dout.dtype, head_dim_v_, ws_.dout, ws_.dout_rows);
    const bool is_clean =
        !is_masked() ||
        (keys_.is_finite() && all_finite(ws_.q_rows.data(), num_columns(), head_dim_) &&
         all_finite(ws_.dout_rows.data(), num_columns(), head_dim_v_));
    weight_.begin_chunk(ChunkPairs<true>{ws_.chunk.columns.data(), 0, row_begin_}, num_columns(),
                        num_rows_);
    std::size_t first_row = num_rows_, end_row = 0;  // rows that see any column
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      const ColumnRange seen = this->seen_by(panel);
      clear_unseen(panel, seen);
      if (seen.begin < seen.end) {
        with_width(panel,
                   [&](auto nv) { this->template compute<nv.value>(panel, seen, is_clean); });
        first_row = std::min(first_row, row);
        end_row = row + panel.num_rows;
      }
      row += panel.width();
    }
    if (first_row < end_row && pass_.adds_up_rows) {
      add_to_missing(first_row, end_row);
    } else if (first_row < end_row) {
      if (is_clean) {
        multiply_by_keys(first_row, end_row);
      } else {
        multiply_by_seen_keys();
      }
      add_to_dq();
    }
    this->clear_chunk();
    finish_ended();
  }

  /// Sets dS of columns that no row of the panel sees to 0.
  void clear_unseen(const Panel& panel, ColumnRange seen) {
    for (std::size_t i = 0; i < num_columns(); ++i) {
      if (i == seen.begin) i = seen.end;
      if (i >= num_columns()) return;
      std::fill_n(ws_.ds_rows + i * keys_.stride() + panel.first_row, panel.width(), 0.0F);
    }
  }

  template <int kNv>
  void compute(const Panel& panel, ColumnRange seen, bool is_clean) {
    const std::size_t first = seen.begin, count = seen.end - seen.begin, row = panel.first_row;
    const std::uint64_t* bits = is_masked() ? bits_of(first) : nullptr;
    const float* const* q_rows = ws_.q_rows.data() + first;
    const float* const* dout_rows = ws_.dout_rows.data() + first;
    float* dk = ws_.dk + row * head_dim_;
    float* dv = ws_.dv + row * head_dim_v_;
    scores_of_chunk<kNv>(ws_.k + row * head_dim_, head_dim_, q_rows, count, ws_.weights);
    scores_of_chunk<kNv>(ws_.v + row * head_dim_v_, head_dim_v_, dout_rows, count, ws_.dscores);
    const ChunkPairs<true> pairs{ws_.chunk.columns.data(), first, row_begin_};
    score_.template begin_panel<kNv>(pairs, count, row, panel.num_rows);
    const auto step = [&](auto sums_logits) {
      gradient_step<kNv, sums_logits.value>(
          ws_.weights, ws_.dscores, count, score_, weight_, pairs,
          run_.exponent.data() + first_row_index_, run_.shift.data() + first_row_index_, bits,
          words_per_column(), row, ws_.ds_rows + first * keys_.stride() + row, keys_.stride());
    };
    if (pass_.adds_up_rows) return step(std::true_type());
    step(std::false_type());
    score_.template end_panel<kNv>(pairs, count, row, panel.num_rows);
    if (is_clean) {
      add_chunk<kNv>(ws_.weights, dout_rows, count, head_dim_v_, nullptr, dv);
      add_chunk<kNv>(ws_.dscores, q_rows, count, head_dim_, nullptr, dk);
    } else {
      add_seen_only<kNv>(ws_.weights, dout_rows, count, head_dim_v_, nullptr, dv, bits,
                         words_per_column(), row);
      add_seen_only<kNv>(ws_.dscores, q_rows, count, head_dim_, nullptr, dk, bits,
                         words_per_column(), row);
    }
  }

  // ---- accumulators of queries

  /// Waits for the tickets of tile `dq_tile_`, which is that of `column` afterwards; earlier
  /// tiles are marked as done.
  void wait_for_dq_semaphore_at(std::int32_t column) {
    while (dq_tile_ != column / tile_.block_kv) finish_dq_addition();
    wait_for_dq_semaphore();
  }

  /// Sums dS of each of the chunk's columns over keys [first, end).
  void add_to_missing(std::size_t first, std::size_t end) {
    for (std::size_t i = 0; i < num_columns(); ++i) {
      const std::int32_t column = ws_.chunk.columns[i];
      wait_for_dq_semaphore_at(column);
      run_.missing[first_row_index_ + static_cast<std::size_t>(column)] +=
          sum_of(ws_.ds_rows + i * keys_.stride() + first, end - first);
    }
  }

  float* dq_panel(const Panel& panel) { return ws_.dq + panel.first_row * kChunkColumns; }

  /// Computes dq = dS K for the chunk's columns over keys [first, end).
  void multiply_by_keys(std::size_t first, std::size_t end) {
    for (std::size_t i = 0; i < num_columns(); ++i) {
      ws_.ds_row_at[i] = ws_.ds_rows + i * keys_.stride() + first;
    }
    for (std::size_t d = 0; d < head_dim_;) {
      const Panel panel = panel_of(d, head_dim_);
      const float* columns = ws_.k_columns + d * keys_.stride() + first * panel.width();
      with_width(panel, [&](auto nv) {
        scores_of_chunk<nv.value>(columns, end - first, ws_.ds_row_at.data(), num_columns(),
                                  dq_panel(panel));
      });
      d += panel.width();
    }
  }

  /// The same over the keys that see each column.
  void multiply_by_seen_keys() {
    for (std::size_t d = 0; d < head_dim_;) {
      const Panel panel = panel_of(d, head_dim_);
      const std::size_t width = panel.width();
      std::fill_n(dq_panel(panel), num_columns() * width, 0.0F);
      for (std::size_t i = 0; i < num_columns(); ++i) {
        float* to = dq_panel(panel) + i * width;
        for (std::size_t r = 0; r < num_rows_; ++r) {
          if ((bits_of(i)[r / 64] >> (r % 64) & 1) == 0) continue;
          const float ds = ws_.ds_rows[i * keys_.stride() + r];
          const float* key = ws_.k_columns + d * keys_.stride() + r * width;
          for (std::size_t j = 0; j < width; ++j) to[j] += ds * key[j];
        }
      }
      d += width;
    }
  }

  /// Adds the chunk's dq, scaled, to the accumulators; tiles before it are marked as done.
  void add_to_dq() {
    const FloatTag tag;
    const FloatVec scale = hn::Set(tag, run_.scale);
    for (std::size_t i = 0; i < num_columns(); ++i) {
      const std::int32_t column = ws_.chunk.columns[i];
      wait_for_dq_semaphore_at(column);
      float* sum = run_.dq_sum_of(work_tile_.batch, column, work_tile_.head);
      for (std::size_t d = 0; d < head_dim_;) {
        const Panel panel = panel_of(d, head_dim_);
        const float* from = dq_panel(panel) + i * panel.width();
        std::size_t j = 0;
        for (; j + kLanes <= panel.num_rows; j += kLanes) {
          const FloatVec now = hn::LoadU(tag, sum + d + j);
          hn::StoreU(hn::MulAdd(scale, hn::LoadU(tag, from + j), now), tag, sum + d + j);
        }
        for (; j < panel.num_rows; ++j) sum[d + j] = std::fma(run_.scale, from[j], sum[d + j]);
        d += panel.width();
      }
    }
  }

  BackwardRun& run_;
  BackwardPass& pass_;
  const KeyTile<Score, KvReader>& keys_;
  Score& score_;
  Weight weight_;
  BackwardWorkspace& ws_;
  std::size_t head_dim_, head_dim_v_, first_row_index_;
  TileCursor dq_tiles_;
  std::int32_t dq_tile_ = 0;
  const std::int32_t*& ticket_;
  std::int32_t num_ended_ = 0;  ///< tiles from dq_tile_ on whose columns are all appended
  bool has_dq_position_ = false;
};

/// Runs the work tiles of a group, whose tickets the workspace holds.
template <class Score, class Weight, class KvReader>
void run_group_with(BackwardRun& run, BackwardPass& pass, const WorkTile* work_tiles,
                    BackwardWorkspace& workspace, Score score, const Weight& weight,
                    const KvReader& kv) {
  KeyTile<Score, KvReader> keys(run, work_tiles[0], workspace, score, kv);
  keys.load();
  const std::int32_t* ticket = workspace.tickets.data();
  for (std::int32_t i = 0; i < run.plan->shape.group_size(); ++i) {
    BackwardWorkTile<Score, Weight, KvReader>(run, pass, work_tiles[i], keys, score, weight,
                                              workspace, ticket)
        .run();
  }
  if (!pass.adds_up_rows) keys.store();
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
