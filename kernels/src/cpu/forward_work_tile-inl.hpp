// One work tile on the CPU: a query tile of one head over the tiles that its segments name.
//
//   load      Q tile, scaled and transposed into panels of query rows
//   chunks    up to 128 live keys at a time, wherever they lie (tile_walk-inl.hpp)
//   per panel scores, one step of online softmax, weighted values; a panel that sees only some keys
//             of the chunk computes from the first to the last of them
//   store     O tile divided by the sums, transposed back; log-sum-exp
//
// Included once per instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_FORWARD_WORK_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_FORWARD_WORK_TILE_INL
#undef FDMA_CPU_FORWARD_WORK_TILE_INL
#else
#define FDMA_CPU_FORWARD_WORK_TILE_INL
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "cpu/call.hpp"
#include "cpu/lane_pairs.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/softmax-inl.hpp"
#include "cpu/tile_walk-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

constexpr double kLn2 = 0.693147180559945309417;

/// `Score`, `Weight` and `KvReader` are the policies of score-inl.hpp, weight-inl.hpp and
/// kv_reader.hpp.
template <class Score, class Weight, class KvReader>
class ForwardWorkTile : TileWalk<ForwardWorkTile<Score, Weight, KvReader>> {
  using Walk = TileWalk<ForwardWorkTile>;
  using Walk::num_columns, Walk::is_masked, Walk::bits_of, Walk::words_per_column;
  using Walk::num_rows_, Walk::row_begin_, Walk::work_tile_;

 public:
  ForwardWorkTile(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace,
                  const Score& score, const Weight& weight, const KvReader& kv)
      : Walk(*call.plan, call.segments, work_tile,
             call.elements.empty() ? nullptr
                                   : &call.elements[static_cast<std::size_t>(work_tile.batch)],
             workspace.chunk),
        call_(call),
        score_(score),
        weight_(weight),
        kv_(kv),
        ws_(workspace),
        head_dim_(static_cast<std::size_t>(call.plan->shape.head_dim)),
        head_dim_v_(static_cast<std::size_t>(call.plan->shape.head_dim_v)) {
    score_.begin_head(work_tile.batch, work_tile.head);
    weight_.begin_head(work_tile.batch, work_tile.head);
  }

  void run() {
    load_queries();
    this->walk();
    store_results();
  }

 private:
  friend Walk;

  void end_tile(std::int32_t) {}

  void load_queries() {
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      const std::size_t width = panel.width();
      float* q = ws_.q + row * head_dim_;
      std::fill_n(q, head_dim_ * width, 0.0F);
      std::fill_n(ws_.out + row * head_dim_v_, head_dim_v_ * width, 0.0F);
      std::fill_n(ws_.max + row, width, -std::numeric_limits<float>::infinity());
      std::fill_n(ws_.sum + row, width, 0.0F);
      for (std::size_t r = 0; r < panel.num_rows; ++r) {
        const auto q_row = row_begin_ + static_cast<std::int64_t>(row + r);
        load_row(call_.q.row(work_tile_.batch, q_row, work_tile_.head), call_.q.dtype, head_dim_,
                 ws_.row);
        for (std::size_t d = 0; d < head_dim_; ++d) {
          q[d * width + r] = ws_.row[d] * call_.scale_log2;
        }
      }
      row += width;
    }
  }

  /// Computes the chunk and empties it.
  void flush() {
    this->find_rows([&](std::int64_t key) { return kv_.k_row(key); }, call_.k.dtype, head_dim_,
                    ws_.k, ws_.k_rows);
    this->find_rows([&](std::int64_t key) { return kv_.v_row(key); }, call_.v.dtype, head_dim_v_,
                    ws_.v, ws_.v_rows);
    score_.begin_chunk(ws_.chunk.columns.data(), num_columns());
    weight_.begin_chunk(ChunkPairs<false>{ws_.chunk.columns.data(), 0, row_begin_}, num_columns(),
                        num_rows_);
    const bool is_clean = !is_masked() || all_finite(ws_.v_rows.data(), num_columns(), head_dim_v_);
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      with_width(panel, [&](auto nv) { this->template compute<nv.value>(panel, is_clean); });
      row += panel.width();
    }
    this->clear_chunk();
  }

  template <int kNv>
  void compute(const Panel& panel, bool is_clean) {
    const ColumnRange seen = this->seen_by(panel);
    if (seen.begin == seen.end) return;
    const std::size_t first = seen.begin, num_keys = seen.end - seen.begin, row = panel.first_row;
    const std::uint64_t* bits = is_masked() ? bits_of(first) : nullptr;
    const ChunkPairs<false> pairs{ws_.chunk.columns.data(), first, row_begin_};
    float* out = ws_.out + row * head_dim_v_;
    score_.template begin_panel<kNv>(pairs, num_keys, row, panel.num_rows);
    scores_of_chunk<kNv>(ws_.q + row * head_dim_, head_dim_, ws_.k_rows.data() + first, num_keys,
                         ws_.scores);
    const bool is_rescaled =
        softmax_step<kNv>(ws_.scores, num_keys, score_, weight_, pairs, bits, words_per_column(),
                          row, ws_.max + row, ws_.sum + row, ws_.alpha);
    const float* alpha = is_rescaled ? ws_.alpha : nullptr;
    if (is_clean) {
      add_chunk<kNv>(ws_.scores, ws_.v_rows.data() + first, num_keys, head_dim_v_, alpha, out);
    } else {
      add_seen_only<kNv>(ws_.scores, ws_.v_rows.data() + first, num_keys, head_dim_v_, alpha, out,
                         bits, words_per_column(), row);
    }
  }

  // ---- results

  void store_results() {
    if (call_.max_logit != nullptr) raise_max_logit();
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      const std::size_t width = panel.width();
      const float* out = ws_.out + row * head_dim_v_;
      for (std::size_t r = 0; r < panel.num_rows; ++r) {
        const float sum = ws_.sum[row + r];
        const auto q_row = row_begin_ + static_cast<std::int64_t>(row + r);
        const float factor =
            sum == 0.0F ? 0.0F : 1.0F / score_.finish_row(ws_.max[row + r], sum, q_row);
        for (std::size_t j = 0; j < head_dim_v_; ++j) ws_.row[j] = out[j * width + r] * factor;
        const auto row_of = [&](const MutableStrided& tensor) {
          return tensor.row(work_tile_.batch, q_row, work_tile_.head);
        };
        store_row(ws_.row, call_.out.dtype, head_dim_v_, row_of(call_.out));
        if (call_.out_low.data != nullptr) {
          store_out_low(ws_.row, call_.out.dtype, head_dim_v_, row_of(call_.out),
                        row_of(call_.out_low));
        }
        if (call_.lse.data != nullptr) {
          call_.lse.at(work_tile_.batch, work_tile_.head, static_cast<std::int32_t>(q_row)) =
              sum == 0.0F ? -std::numeric_limits<float>::infinity()
                          : static_cast<float>(ws_.max[row + r] * kLn2 + std::log(double{sum}));
        }
      }
      row += width;
    }
  }

  /// Raises the head's largest logit to that of the tile. The largest of numbers does not depend on
  /// their order; NaN is none.
  void raise_max_logit() {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      for (std::size_t r = 0; r < panel.num_rows; ++r) {
        largest = std::max(largest, ws_.max[row + r]);
      }
      row += panel.width();
    }
    largest = static_cast<float>(largest * kLn2);
    const std::atomic_ref<float> of_head(call_.max_logit[work_tile_.head * call_.max_logit_stride]);
    float now = of_head.load(std::memory_order_relaxed);
    while (now < largest && !of_head.compare_exchange_weak(now, largest)) {
    }
  }

  const CpuCall& call_;
  Score score_;
  Weight weight_;
  KvReader kv_;
  Workspace& ws_;
  std::size_t head_dim_, head_dim_v_;
};

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
