// One work item on the CPU: a query tile of one head over the tiles that its segments name.
//
//   load      Q tile, scaled and transposed into panels of query rows
//   chunks    up to 128 live keys at a time, wherever they lie: from full runs, bitmap tiles, row
//             panels, column tiles and gather lists alike; keys that no row of the tile sees are
//             left out, full runs read no mask
//   per panel scores, one step of online softmax, weighted values; a panel that sees only some keys
//             of the chunk computes from the first to the last of them
//   store     O tile divided by the sums, transposed back; log-sum-exp
//
// Highway compiles this file once for each instruction set and picks one at run time. An item is
// run by one thread in the order of its segments, so the bits do not depend on how many threads
// there are.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/item_kernel.cpp"
// AVX2 and AVX-512 are what matters; SSE4 and the compiler's baseline are the way out.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bitmap_order.hpp"
#include "cpu/call.hpp"
#include "cpu/float16.hpp"
#include "cpu/microkernels-inl.hpp"
#include "fdma/kernels/segment_iterator.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

constexpr float kLog2E = 1.44269504088896340736F;
constexpr double kLn2 = 0.693147180559945309417;

/// 16-bit elements [0, length), as float32.
template <class Half>
HWY_INLINE void widen_row(const void* row, std::size_t length, float* to) {
  const FloatTag tag;
  const hn::Rebind<Half, FloatTag> half_tag;
  const auto* from = static_cast<const Half*>(row);
  std::size_t i = 0;
  for (; i + kLanes <= length; i += kLanes) {
    hn::StoreU(hn::PromoteTo(tag, hn::LoadU(half_tag, from + i)), tag, to + i);
  }
  if (i < length) {
    Half rest[kLanes] = {};
    float wide[kLanes];
    std::memcpy(rest, from + i, (length - i) * sizeof(Half));
    hn::StoreU(hn::PromoteTo(tag, hn::LoadU(half_tag, rest)), tag, wide);
    std::copy_n(wide, length - i, to + i);
  }
}

/// Elements [0, length) of a row, as float32.
void load_row(const void* row, DType dtype, std::size_t length, float* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, row, length * sizeof(float));
  } else if (dtype == DType::bfloat16) {
    widen_row<hwy::bfloat16_t>(row, length, to);
  } else {
    widen_row<hwy::float16_t>(row, length, to);
  }
}

void store_row(const float* row, DType dtype, std::size_t length, void* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, row, length * sizeof(float));
  } else if (dtype == DType::bfloat16) {
    auto* out = static_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < length; ++i) out[i] = bfloat16_from_float(row[i]);
  } else {
    auto* out = static_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < length; ++i) out[i] = float16_from_float(row[i]);
  }
}

const char* row_address(const Strided& tensor, std::int64_t batch, std::int64_t row,
                        std::int64_t head) {
  return static_cast<const char*>(tensor.data) +
         (batch * tensor.batch_stride + row * tensor.row_stride + head * tensor.head_stride) *
             size_bytes(tensor.dtype);
}

/// A group of query rows in lanes: `nv` vectors wide, from row `first_row` of the tile.
struct Panel {
  std::size_t first_row;
  std::size_t num_rows;
  int nv;
};

class Item {
 public:
  Item(const Call& call, const WorkItem& item, Workspace& workspace)
      : call_(call), plan_(*call.plan), item_(item), ws_(workspace) {
    const AttentionShape& shape = plan_.shape;
    head_dim_ = static_cast<std::size_t>(shape.head_dim);
    head_dim_v_ = static_cast<std::size_t>(shape.head_dim_v);
    kv_head_ = item.head / shape.group_size();
    element_ =
        call.elements.empty() ? nullptr : &call.elements[static_cast<std::size_t>(item.batch)];
    kv_len_ = element_ != nullptr ? element_->num_columns : shape.kv_len(item.batch);
    q_begin_ = std::int64_t{item.q_tile} * plan_.tile.block_q;
    const std::int64_t q_len = element_ != nullptr ? element_->num_rows : shape.q_len(item.batch);
    num_rows_ =
        static_cast<std::size_t>(std::min<std::int64_t>(plan_.tile.block_q, q_len - q_begin_));
    words_per_key_ = (static_cast<std::size_t>(plan_.tile.block_q) + 63) / 64;
    if (const KeyOrder* order = plan_.key_order(item); order != nullptr) {
      order_ = plan_.ordered_keys.data() + order->first_key;
      kv_len_ = order->num_keys;
    }
  }

  void run() {
    load_queries();
    if (element_ != nullptr) {
      append_formula_tiles();
      flush();
      return store_results();
    }
    TileStep step;
    for (SegmentIterator it(plan_.segments.data(), item_); it.next(step);) append_tile(step);
    flush();
    store_results();
  }

 private:
  /// The panel at row `row`: as wide as registers allow, narrower at the end of the tile.
  Panel panel_at(std::size_t row) const {
    const std::size_t left = num_rows_ - row;
    int nv = kMaxNv;
    while (nv > 1 && (static_cast<std::size_t>(nv) / 2) * kLanes >= left) nv /= 2;
    return {row, std::min(left, static_cast<std::size_t>(nv) * kLanes), nv};
  }

  void load_queries() {
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_at(row);
      const std::size_t width = static_cast<std::size_t>(panel.nv) * kLanes;
      float* q = ws_.q + row * head_dim_;
      std::fill_n(q, head_dim_ * width, 0.0F);
      std::fill_n(ws_.out + row * head_dim_v_, head_dim_v_ * width, 0.0F);
      std::fill_n(ws_.max + row, width, -std::numeric_limits<float>::infinity());
      std::fill_n(ws_.sum + row, width, 0.0F);
      for (std::size_t r = 0; r < panel.num_rows; ++r) {
        const auto q_row = q_begin_ + static_cast<std::int64_t>(row + r);
        load_row(row_address(call_.q, item_.batch, q_row, item_.head), call_.q.dtype, head_dim_,
                 ws_.row);
        for (std::size_t d = 0; d < head_dim_; ++d) {
          q[d * width + r] = ws_.row[d] * call_.scale_log2;
        }
      }
      row += width;
    }
  }

  // ---- chunks

  /// The tensors' key of a key of a tile.
  std::int64_t key_at(std::int64_t key) const { return order_ == nullptr ? key : order_[key]; }

  std::uint64_t* bits_of(std::size_t key) { return ws_.row_bits.data() + key * words_per_key_; }

  void append_key(std::int64_t key) {
    ws_.keys[num_keys_] = static_cast<std::int32_t>(key);
    if (++num_keys_ == kChunkKeys) flush();
  }

  /// A key that all rows see.
  void append_full(std::int64_t key) {
    if (is_masked_) std::fill_n(bits_of(num_keys_), words_per_key_, ~std::uint64_t{0});
    append_key(key);
  }

  /// From here on the chunk has bits.
  void begin_masked() {
    if (is_masked_) return;
    is_masked_ = true;
    std::fill_n(ws_.row_bits.data(), num_keys_ * words_per_key_, ~std::uint64_t{0});
  }

  /// A key that the rows of these bytes see (block_q / 8 of them); none: left out.
  void append_bits(std::int64_t key, const unsigned char* bytes) {
    begin_masked();
    std::uint64_t* words = bits_of(num_keys_);
    words[words_per_key_ - 1] = 0;
    std::memcpy(words, bytes, static_cast<std::size_t>(plan_.tile.block_q) / 8);
    std::uint64_t any = 0;
    for (std::size_t w = 0; w < words_per_key_; ++w) any |= words[w];
    if (any != 0) append_key(key);
  }

  /// A key that rows [begin, end) of the tile see.
  void append_interval(std::int64_t key, std::size_t begin, std::size_t end) {
    if (begin == 0 && end >= num_rows_) return append_full(key);
    begin_masked();
    std::uint64_t* words = bits_of(num_keys_);
    for (std::size_t w = 0; w < words_per_key_; ++w) {
      const std::size_t low = std::clamp(begin, w * 64, w * 64 + 64) - w * 64;
      const std::size_t high = std::clamp(end, w * 64, w * 64 + 64) - w * 64;
      words[w] = low == high ? 0 : ~std::uint64_t{0} >> (64 - (high - low)) << low;
    }
    append_key(key);
  }

  void append_formula_tiles() {
    FormulaWalk walk = walk_of(*element_, plan_.tile, item_.q_tile);
    std::int32_t tile = 0;
    for (bool is_full = false; walk.next(tile, is_full);) {
      if (is_full) {
        append_tile({PlanSegmentKind::full, 0, tile, 0});
      } else {
        append_formula(tile);
      }
    }
  }

  void append_tile(const TileStep& step) {
    const std::int64_t begin = std::int64_t{step.tile} * plan_.tile.block_kv;
    const std::int64_t end = std::min(begin + plan_.tile.block_kv, kv_len_);
    switch (step.kind) {
      case PlanSegmentKind::full:
        for (std::int64_t key = begin; key < end; ++key) append_full(key_at(key));
        return;
      case PlanSegmentKind::bitmap:
        return append_words(begin, end,
                            plan_.bitmaps.data() + step.payload * plan_.words_per_bitmap());
      case PlanSegmentKind::rows:
        return append_panel(step, begin, end);
      case PlanSegmentKind::columns:
        return append_columns(step, begin, end);
      case PlanSegmentKind::gather:
        return append_list(step);
      case PlanSegmentKind::formula:
      case PlanSegmentKind::order:
        return;
    }
  }

  /// Keys of a tile whose cells are given key by key.
  void append_words(std::int64_t begin, std::int64_t end, const std::uint64_t* words) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(words);
    for (std::int64_t key = begin; key < end; ++key) {
      append_bits(key_at(key), bytes + (key - begin) * (plan_.tile.block_q / 8));
    }
  }

  /// The words of a tile row by row, all 0.
  std::uint64_t* begin_rows() {
    std::fill_n(ws_.tile_words.data(), plan_.words_per_bitmap(), 0);
    return ws_.tile_words.data();
  }

  /// Row `row` of them sees keys [first, last) of the tile.
  void add_keys(std::uint64_t* row_major, std::int64_t row, std::int64_t first,
                std::int64_t last) const {
    for (std::int64_t c = first; c < last;) {
      const std::int64_t bit = row * plan_.tile.block_kv + c;
      const std::int64_t count = std::min(last - c, 64 - bit % 64);
      row_major[bit / 64] |= ~std::uint64_t{0} >> (64 - count) << (bit % 64);
      c += count;
    }
  }

  /// The keys of a tile whose words lie row by row.
  void append_rows(std::int64_t begin, std::int64_t end, const std::uint64_t* row_major) {
    std::uint64_t* key_major = ws_.tile_words.data() + plan_.words_per_bitmap();
    key_major_from_row_major(row_major, plan_.tile, key_major);
    append_words(begin, end, key_major);
  }

  void append_formula(std::int32_t tile) {
    const std::int64_t begin = std::int64_t{tile} * plan_.tile.block_kv;
    const std::int64_t end = std::min<std::int64_t>(begin + plan_.tile.block_kv, kv_len_);
    std::uint64_t* row_major = begin_rows();
    for (std::size_t r = 0; r < num_rows_; ++r) {
      const auto q = static_cast<std::int32_t>(q_begin_ + static_cast<std::int64_t>(r));
      for (const FormulaRange& keys : element_->intervals(q)) {
        add_keys(row_major, static_cast<std::int64_t>(r),
                 std::max<std::int64_t>(keys.begin - begin, 0),
                 std::min<std::int64_t>(keys.end, end) - begin);
      }
    }
    append_rows(begin, end, row_major);
  }

  void append_panel(const TileStep& step, std::int64_t begin, std::int64_t end) {
    const std::int64_t block_q = plan_.tile.block_q;
    std::uint64_t* row_major = begin_rows();
    const std::int64_t skip = std::int64_t{step.offset} * plan_.tile.block_kv;
    for (std::int64_t r = 0; r < block_q; ++r) {
      const auto row = static_cast<std::size_t>(step.payload * block_q + r);
      for (std::int64_t i = plan_.row_offsets[row]; i < plan_.row_offsets[row + 1]; ++i) {
        const Interval keys = plan_.row_intervals[static_cast<std::size_t>(i)];
        add_keys(row_major, r, std::max<std::int64_t>(keys.begin - skip, 0),
                 std::min<std::int64_t>(keys.end - skip, end - begin));
      }
    }
    append_rows(begin, end, row_major);
  }

  void append_columns(const TileStep& step, std::int64_t begin, std::int64_t end) {
    const std::int64_t* offsets =
        plan_.column_offsets.data() + plan_.column_tables[static_cast<std::size_t>(step.payload)];
    const auto q_end = q_begin_ + static_cast<std::int64_t>(num_rows_);
    for (std::int64_t key = begin; key < end; ++key) {
      const Interval* first = plan_.column_intervals.data() + offsets[key];
      const Interval* last = plan_.column_intervals.data() + offsets[key + 1];
      if (last - first > 8) {
        first = std::upper_bound(first, last, q_begin_,
                                 [](std::int64_t q, const Interval& i) { return q < i.end; });
      }
      for (; first != last && first->begin < q_end; ++first) {
        if (first->end <= q_begin_) continue;
        append_interval(
            key_at(key),
            static_cast<std::size_t>(std::max(first->begin - q_begin_, std::int64_t{0})),
            static_cast<std::size_t>(first->end - q_begin_));
      }
    }
  }

  void append_list(const TileStep& step) {
    const GatherList& list = plan_.gather_lists[static_cast<std::size_t>(step.payload)];
    const std::int64_t begin = std::int64_t{step.tile} * plan_.tile.block_kv;
    const std::int64_t end = std::min<std::int64_t>(begin + plan_.tile.block_kv, list.num_entries);
    for (std::int64_t i = begin; i < end; ++i) {
      const GatherEntry& entry =
          plan_.gather_entries[static_cast<std::size_t>(list.first_entry + i)];
      append_interval(entry.key, entry.row_begin, entry.row_end);
    }
  }

  // ---- computing a chunk

  /// Points `rows` at the chunk's rows of a tensor, converted where they are not float32.
  void find_rows(const Strided& tensor, std::size_t length, float* scratch,
                 std::vector<const float*>& rows) {
    for (std::size_t i = 0; i < num_keys_; ++i) {
      const char* row = row_address(tensor, item_.batch, ws_.keys[i], kv_head_);
      if (tensor.dtype == DType::float32) {
        rows[i] = reinterpret_cast<const float*>(row);
      } else {
        load_row(row, tensor.dtype, length, scratch + i * length);
        rows[i] = scratch + i * length;
      }
    }
  }

  /// Computes what the chunk holds and empties it.
  void flush() {
    if (num_keys_ == 0) return;
    find_rows(call_.k, head_dim_, ws_.k, ws_.k_rows);
    find_rows(call_.v, head_dim_v_, ws_.v, ws_.v_rows);
    if (call_.key_bias != nullptr) {
      const float* bias = call_.key_bias + item_.batch * call_.bias_batch_stride +
                          kv_head_ * call_.bias_head_stride;
      for (std::size_t i = 0; i < num_keys_; ++i) ws_.bias[i] = bias[ws_.keys[i]] * kLog2E;
    }
    const bool is_clean = !is_masked_ || all_finite(ws_.v_rows.data(), num_keys_, head_dim_v_);
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_at(row);
      switch (panel.nv) {
        case 4:
          compute<kMaxNv>(panel, is_clean);
          break;
        case 2:
          compute<2>(panel, is_clean);
          break;
        default:
          compute<1>(panel, is_clean);
          break;
      }
      row += static_cast<std::size_t>(panel.nv) * kLanes;
    }
    num_keys_ = 0;
    is_masked_ = false;
  }

  /// True iff a row of the panel sees the key.
  bool is_seen(std::size_t key, const Panel& panel) const {
    const std::uint64_t* words = ws_.row_bits.data() + key * words_per_key_;
    std::size_t row = panel.first_row;
    const std::size_t end = row + panel.num_rows;
    while (row < end) {
      const std::size_t count = std::min(end - row, 64 - row % 64);
      if ((words[row / 64] >> (row % 64) & (~std::uint64_t{0} >> (64 - count))) != 0) return true;
      row += count;
    }
    return false;
  }

  template <int kNv>
  void compute(const Panel& panel, bool is_clean) {
    std::size_t first = 0, last = num_keys_;
    if (is_masked_) {
      while (first < last && !is_seen(first, panel)) ++first;
      while (first < last && !is_seen(last - 1, panel)) --last;
      if (first == last) return;
    }
    const std::size_t num_keys = last - first, row = panel.first_row;
    const std::uint64_t* bits = is_masked_ ? bits_of(first) : nullptr;
    const float* bias = call_.key_bias == nullptr ? nullptr : ws_.bias.data() + first;
    float* out = ws_.out + row * head_dim_v_;
    scores_of_chunk<kNv>(ws_.q + row * head_dim_, head_dim_, ws_.k_rows.data() + first, num_keys,
                         ws_.scores);
    const bool is_rescaled = softmax_step<kNv>(ws_.scores, num_keys, bias, bits, words_per_key_,
                                               row, ws_.max + row, ws_.sum + row, ws_.alpha);
    const float* alpha = is_rescaled ? ws_.alpha : nullptr;
    if (is_clean) {
      add_chunk<kNv>(ws_.scores, ws_.v_rows.data() + first, num_keys, head_dim_v_, alpha, out);
    } else {
      add_seen_only<kNv>(ws_.scores, ws_.v_rows.data() + first, num_keys, head_dim_v_, alpha, out,
                         bits, words_per_key_, row);
    }
  }

  // ---- results

  void store_results() {
    for (std::size_t row = 0; row < num_rows_;) {
      const Panel panel = panel_at(row);
      const std::size_t width = static_cast<std::size_t>(panel.nv) * kLanes;
      const float* out = ws_.out + row * head_dim_v_;
      for (std::size_t r = 0; r < panel.num_rows; ++r) {
        const float sum = ws_.sum[row + r];
        const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
        for (std::size_t j = 0; j < head_dim_v_; ++j) ws_.row[j] = out[j * width + r] * factor;
        const auto q_row = q_begin_ + static_cast<std::int64_t>(row + r);
        store_row(ws_.row, call_.out.dtype, head_dim_v_,
                  const_cast<char*>(row_address(call_.out, item_.batch, q_row, item_.head)));
        if (call_.lse != nullptr) {
          call_.lse[item_.batch * call_.lse_batch_stride + item_.head * call_.lse_head_stride +
                    q_row * call_.lse_row_stride] =
              sum == 0.0F ? -std::numeric_limits<float>::infinity()
                          : static_cast<float>(ws_.max[row + r] * kLn2 + std::log(double{sum}));
        }
      }
      row += width;
    }
  }

  const Call& call_;
  const AttentionPlan& plan_;
  const WorkItem& item_;
  const FormulaElement* element_;  ///< of a parametric plan, or null
  Workspace& ws_;
  std::size_t head_dim_, head_dim_v_, num_rows_, words_per_key_;
  std::int64_t kv_head_, kv_len_, q_begin_;
  const std::int32_t* order_ = nullptr;  ///< of the keys of tiles, which are kv_len_ then
  std::size_t num_keys_ = 0;
  bool is_masked_ = false;  ///< row_bits of the chunk's keys are set
};

void run_item_here(const Call& call, const WorkItem& item, Workspace& workspace) {
  Item(call, item, workspace).run();
}

const char* target_name_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::cpu {
HWY_EXPORT(run_item_here);

void run_item(const Call& call, const WorkItem& item, Workspace& workspace) {
  HWY_DYNAMIC_DISPATCH(run_item_here)(call, item, workspace);
}

HWY_EXPORT(target_name_here);

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name_here)(); }

}  // namespace fdma::cpu
#endif
