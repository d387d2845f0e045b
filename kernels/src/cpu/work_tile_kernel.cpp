// One work tile on the CPU: a query tile of one head over the tiles that its segments name.
//
//   load      Q tile, scaled and transposed into panels of query rows
//   chunks    up to 128 live keys at a time, wherever they lie (tile_walk-inl.hpp)
//   per panel scores, one step of online softmax, weighted values; a panel that sees only some keys
//             of the chunk computes from the first to the last of them
//   store     O tile divided by the sums, transposed back; log-sum-exp
//
// Highway compiles this file once for each instruction set and selects one at run time. One thread
// runs a work tile in the order of its segments, so the result does not depend on the number of
// threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/work_tile_kernel.cpp"
// AVX2 and AVX-512 are the targets that matter; SSE4 and the compiler's baseline are the fallback.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/call.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/tile_walk-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

constexpr double kLn2 = 0.693147180559945309417;

class ForwardWorkTile : TileWalk<ForwardWorkTile> {
 public:
  ForwardWorkTile(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace)
      : TileWalk(*call.plan, call.segments, work_tile,
                 call.elements.empty() ? nullptr
                                       : &call.elements[static_cast<std::size_t>(work_tile.batch)],
                 workspace.chunk),
        call_(call),
        ws_(workspace),
        head_dim_(static_cast<std::size_t>(call.plan->shape.head_dim)),
        head_dim_v_(static_cast<std::size_t>(call.plan->shape.head_dim_v)),
        kv_head_(work_tile.head / call.plan->shape.group_size()) {}

  void run() {
    load_queries();
    walk();
    store_results();
  }

 private:
  friend TileWalk<ForwardWorkTile>;

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
    find_rows(call_.k, kv_head_, head_dim_, ws_.k, ws_.k_rows);
    find_rows(call_.v, kv_head_, head_dim_v_, ws_.v, ws_.v_rows);
    if (call_.key_bias.data != nullptr) {
      const float* bias = call_.key_bias.head(work_tile_.batch, kv_head_);
      for (std::size_t i = 0; i < num_columns(); ++i) {
        ws_.bias[i] = bias[ws_.chunk.columns[i]] * kLog2E;
      }
    }
    const bool is_clean = !is_masked() || all_finite(ws_.v_rows.data(), num_columns(), head_dim_v_);
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      with_width(panel, [&](auto nv) { compute<nv.value>(panel, is_clean); });
      row += panel.width();
    }
    clear_chunk();
  }

  template <int kNv>
  void compute(const Panel& panel, bool is_clean) {
    const ColumnRange seen = seen_by(panel);
    if (seen.begin == seen.end) return;
    const std::size_t first = seen.begin, num_keys = seen.end - seen.begin, row = panel.first_row;
    const std::uint64_t* bits = is_masked() ? bits_of(first) : nullptr;
    const float* bias = call_.key_bias.data == nullptr ? nullptr : ws_.bias + first;
    float* out = ws_.out + row * head_dim_v_;
    scores_of_chunk<kNv>(ws_.q + row * head_dim_, head_dim_, ws_.k_rows.data() + first, num_keys,
                         ws_.scores);
    const bool is_rescaled = softmax_step<kNv>(ws_.scores, num_keys, bias, bits, words_per_column(),
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
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_of(row, num_rows_);
      const std::size_t width = panel.width();
      const float* out = ws_.out + row * head_dim_v_;
      for (std::size_t r = 0; r < panel.num_rows; ++r) {
        const float sum = ws_.sum[row + r];
        const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
        for (std::size_t j = 0; j < head_dim_v_; ++j) ws_.row[j] = out[j * width + r] * factor;
        const auto q_row = row_begin_ + static_cast<std::int64_t>(row + r);
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

  const CpuCall& call_;
  Workspace& ws_;
  std::size_t head_dim_, head_dim_v_;
  std::int32_t kv_head_;
};

void run_work_tile_here(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace) {
  ForwardWorkTile(call, work_tile, workspace).run();
}

const char* target_name_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::cpu {
HWY_EXPORT(run_work_tile_here);

void run_work_tile(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace) {
  HWY_DYNAMIC_DISPATCH(run_work_tile_here)(call, work_tile, workspace);
}

HWY_EXPORT(target_name_here);

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name_here)(); }

}  // namespace fdma::cpu
#endif
