// The score of calls with a bias of pairs, slopes, a relative table, a sink or dropout, alone or with
// a softcap and a key bias. Parts are told apart at run time, so that they do not multiply the kernels
// that are compiled; calls without them have the policies of score-inl.hpp.
//
// Before a panel is computed, what its parts add to logits is written to an array `terms`, a vector
// for each column, in powers of two. The gradient of a logit takes the place of its term, and goes to
// the gradients of the parts after the panel:
//
//   key bias, bias      elements of one group of work tiles alone are added to in place. A bias that
//                       is the same for several batch elements or heads is summed per work tile, and
//                       work tiles add up in the order in which they were taken
//   relative table      the same, for all work tiles of a head
//   sink                has no pairs: query_rows-inl.hpp
//
// Included once per instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_PARTS_SCORE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_PARTS_SCORE_INL
#undef FDMA_CPU_PARTS_SCORE_INL
#else
#define FDMA_CPU_PARTS_SCORE_INL
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "call/checked_inputs.hpp"
#include "cpu/lane_pairs.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/rows-inl.hpp"
#include "cpu/score-inl.hpp"
#include "cpu/score_gradients.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

/// ScoreSpec::sink, where the call has one.
class SinkScore : public NoScore {
 public:
  static constexpr bool kFinishesRows = true;

  explicit SinkScore(const CheckedInputs& inputs) : sinks_(inputs.sinks) {}

  void begin_head(std::int64_t batch, std::int64_t head) {
    batch_ = static_cast<std::int32_t>(batch);
    head_ = static_cast<std::int32_t>(head);
  }
  /// A sink counts as at most 2^100 times the largest exponential of its row: more would be infinite,
  /// and the weights of the row are 0 to any accuracy.
  float finish_row(float max, float sum, std::int64_t q) const {
    if (sinks_.data == nullptr) return sum;
    float sink = 0;
    load_row(static_cast<const char*>(sinks_.data) +
                 sinks_.offset(batch_, head_, q) * size_bytes(sinks_.dtype),
             sinks_.dtype, 1, &sink);
    return sum + std::exp2(std::min(sink * kLog2E - max, 100.0F));
  }

 protected:
  std::int32_t batch_ = 0, head_ = 0;

 private:
  PairValues<const void> sinks_;
};

/// Every part of a score that the call has.
class PartsScore : public SinkScore {
 public:
  static constexpr bool kIsIdentity = false, kHasFarLogits = true;

  /// `position_shift` is kv_len - q_len of the batch element. `gradients` are those of a backward
  /// call that wants some in this pass, or null.
  ///
  /// Shapes      terms [kChunkColumns, kMaxPanelRows]; key_terms one element for each key of a chunk
  ///             or tile, rounded up to whole panels
  PartsScore(const CheckedInputs& inputs, std::int64_t position_shift, std::int32_t kv_head,
             std::int32_t batch, float* terms, float* key_terms,
             ScoreGradientSums* gradients = nullptr)
      : SinkScore(inputs),
        softcap_(inputs.softcap),
        has_softcap_(inputs.softcap != 0.0F),
        key_bias_(inputs.key_bias.data == nullptr ? nullptr : inputs.key_bias.head(batch, kv_head)),
        bias_(inputs.bias),
        slopes_(inputs.alibi_slopes),
        relative_(inputs.relative),
        has_terms_(key_bias_ != nullptr || bias_.data != nullptr || slopes_.data != nullptr ||
                   relative_.data != nullptr),
        shift_(position_shift),
        terms_(terms),
        key_terms_(key_terms),
        gradients_(gradients) {}

  void begin_head(std::int64_t batch, std::int64_t head) {
    SinkScore::begin_head(batch, head);
    if (slopes_.data != nullptr) slope_ = slopes_.at(batch_, head_, 0) * kLog2E;
    if (relative_.data != nullptr) table_ = relative_.data + head * relative_.head_stride;
    if (gradients_ != nullptr) gradients_->begin_head(batch_, head_);
  }
  void begin_chunk(const std::int32_t* keys, std::size_t num_keys) {
    is_run_ = is_run(keys, num_keys);
    if (key_bias_ == nullptr) return;
    for (std::size_t i = 0; i < num_keys; ++i) key_terms_[i] = key_bias_[keys[i]] * kLog2E;
  }
  void begin_keys(std::int64_t first_key, std::size_t num_keys) {
    if (gradients_ != nullptr) gradients_->begin_keys(first_key, num_keys);
    if (key_bias_ == nullptr) return;
    std::fill_n(key_terms_, panel_rows(static_cast<std::int64_t>(num_keys)), 0.0F);
    for (std::size_t i = 0; i < num_keys; ++i) {
      key_terms_[i] = key_bias_[first_key + static_cast<std::int64_t>(i)] * kLog2E;
    }
  }

  /// Writes the terms of `num_columns` columns for the panel of rows [row, row + num_rows) of the
  /// tile.
  template <int kNv, bool kLanesAreKeys>
  void begin_panel(const ChunkPairs<kLanesAreKeys>& pairs, std::size_t num_columns, std::size_t row,
                   std::size_t num_rows) {
    width_ = kNv * kLanes;
    panel_row_ = row;
    if (!has_terms_) return;
    if (bias_.data != nullptr) load_bias(pairs, num_columns, row, num_rows);
    for (std::size_t i = 0; i < num_columns; ++i) add_terms<kNv>(pairs, i, row);
  }

  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs& pairs) const {
    if (has_softcap_) x = softcap_.logit(x, pairs);
    return has_terms_ ? hn::Add(x, hn::LoadU(FloatTag(), term_of(pairs))) : x;
  }
  template <class Pairs>
  HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec x, const Pairs& pairs) const {
    if (gradients_ != nullptr) hn::StoreU(ds, FloatTag(), term_of(pairs));
    return has_softcap_ ? softcap_.gradient(ds, x, pairs) : ds;
  }

  /// Adds the gradients of the panel's logits to those of the parts.
  template <int kNv>
  void end_panel(const ChunkPairs<true>& pairs, std::size_t num_columns, std::size_t row,
                 std::size_t num_rows) {
    if (gradients_ == nullptr) return;
    for (std::size_t i = 0; i < num_columns; ++i) {
      const std::size_t column = pairs.first_column + i;
      const std::int64_t query = pairs.columns[column];
      const float* ds = terms_ + column * width_;
      gradients_->add(ds, num_rows, query, row, pairs.first_row - (query + shift_));
    }
  }
  void end_head() {
    if (gradients_ != nullptr) gradients_->end_head();
  }
  void end_keys() {
    if (gradients_ != nullptr) gradients_->end_keys();
  }

 private:
  template <class Pairs>
  HWY_INLINE float* term_of(const Pairs& pairs) const {
    return terms_ + pairs.column * width_ + (pairs.row - panel_row_);
  }

  static bool is_run(const std::int32_t* keys, std::size_t num_keys) {
    for (std::size_t i = 1; i < num_keys; ++i) {
      if (keys[i] != keys[0] + static_cast<std::int32_t>(i)) return false;
    }
    return true;
  }

  const char* bias_row(std::int64_t query) const {
    return static_cast<const char*>(bias_.data) +
           bias_.offset(batch_, head_, query) * size_bytes(bias_.dtype);
  }

  /// Writes the bias of the panel's pairs, as it is given. Keys of a forward chunk may lie anywhere.
  void load_bias(const ChunkPairs<false>& pairs, std::size_t num_keys, std::size_t row,
                 std::size_t num_rows) {
    float* to = terms_ + pairs.first_column * width_;
    const std::int32_t* keys = pairs.columns + pairs.first_column;
    float values[kRowsAtOnce][kChunkColumns];
    if (bias_.row_stride == 0) {
      load_bias_row(pairs.first_row, keys, num_keys, values[0]);
      for (std::size_t i = 0; i < num_keys; ++i) std::fill_n(to + i * width_, width_, values[0][i]);
      return;
    }
    for (std::size_t r = 0; r < width_; r += kRowsAtOnce) {
      for (std::size_t i = 0; i < kRowsAtOnce; ++i) {
        if (r + i < num_rows) {
          const auto query = pairs.first_row + static_cast<std::int64_t>(row + r + i);
          load_bias_row(query, keys, num_keys, values[i]);
        } else {
          std::fill_n(values[i], num_keys, 0.0F);
        }
      }
      transpose(values, num_keys, to + r);
    }
  }

  void load_bias_row(std::int64_t query, const std::int32_t* keys, std::size_t num_keys,
                     float* to) const {
    const char* from = bias_row(query);
    const std::int64_t bytes = size_bytes(bias_.dtype);
    if (is_run_) return load_row(from + keys[0] * bytes, bias_.dtype, num_keys, to);
    for (std::size_t i = 0; i < num_keys; ++i) {
      load_row(from + keys[i] * bytes, bias_.dtype, 1, to + i);
    }
  }

  static constexpr std::size_t kRowsAtOnce = HWY_TARGET == HWY_SCALAR ? 1 : 4;

  /// to[i * width + r] = values[r][i]: for each key the values of these rows.
  void transpose(const float (&values)[kRowsAtOnce][kChunkColumns], std::size_t num_keys,
                 float* to) const {
    std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::CappedTag<float, 4> tag;
    for (; i + 4 <= num_keys; i += 4) {
      const auto row_0 = hn::LoadU(tag, values[0] + i), row_1 = hn::LoadU(tag, values[1] + i);
      const auto row_2 = hn::LoadU(tag, values[2] + i), row_3 = hn::LoadU(tag, values[3] + i);
      const auto low_02 = hn::InterleaveLower(tag, row_0, row_2);
      const auto low_13 = hn::InterleaveLower(tag, row_1, row_3);
      const auto high_02 = hn::InterleaveUpper(tag, row_0, row_2);
      const auto high_13 = hn::InterleaveUpper(tag, row_1, row_3);
      hn::StoreU(hn::InterleaveLower(tag, low_02, low_13), tag, to + i * width_);
      hn::StoreU(hn::InterleaveUpper(tag, low_02, low_13), tag, to + (i + 1) * width_);
      hn::StoreU(hn::InterleaveLower(tag, high_02, high_13), tag, to + (i + 2) * width_);
      hn::StoreU(hn::InterleaveUpper(tag, high_02, high_13), tag, to + (i + 3) * width_);
    }
#endif
    for (; i < num_keys; ++i) {
      for (std::size_t r = 0; r < kRowsAtOnce; ++r) to[i * width_ + r] = values[r][i];
    }
  }

  void load_bias(const ChunkPairs<true>& pairs, std::size_t num_queries, std::size_t row,
                 std::size_t num_rows) {
    const std::int64_t first_key = pairs.first_row + static_cast<std::int64_t>(row);
    for (std::size_t i = 0; i < num_queries; ++i) {
      const std::size_t column = pairs.first_column + i;
      float* to = terms_ + column * width_;
      load_row(bias_row(pairs.columns[column]) + first_key * size_bytes(bias_.dtype), bias_.dtype,
               num_rows, to);
      std::fill(to + num_rows, to + width_, 0.0F);
    }
  }

  /// Completes the terms of column `index`, whose bias is there already.
  template <int kNv, bool kLanesAreKeys>
  HWY_INLINE void add_terms(const ChunkPairs<kLanesAreKeys>& pairs, std::size_t index,
                            std::size_t row) {
    const FloatTag tag;
    const hn::RebindToSigned<FloatTag> int_tag;
    using IntVec = hn::Vec<hn::RebindToSigned<FloatTag>>;
    const FloatVec log2e = hn::Set(tag, kLog2E);
    const std::size_t column = pairs.first_column + index;
    float* to = terms_ + column * width_;
    // `distance` is that of the key from the query's position in lane 0. It grows by one from lane to
    // lane if lanes are keys, and falls by one if they are queries.
    const std::int64_t of_lanes = pairs.first_row + static_cast<std::int64_t>(row);
    const std::int64_t of_column = pairs.columns[column];
    const std::int64_t distance =
        kLanesAreKeys ? of_lanes - (of_column + shift_) : of_column - (of_lanes + shift_);
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      const std::size_t lane = static_cast<std::size_t>(v) * kLanes;
      FloatVec term = hn::Zero(tag);
      if (key_bias_ != nullptr) {
        term = kLanesAreKeys ? hn::LoadU(tag, key_terms_ + row + lane)
                             : hn::Set(tag, key_terms_[column]);
      }
      if (bias_.data != nullptr) term = hn::MulAdd(hn::LoadU(tag, to + lane), log2e, term);
      if (slopes_.data != nullptr) {
        const FloatVec steps = hn::Iota(tag, static_cast<float>(lane));
        const FloatVec first = hn::Set(tag, static_cast<float>(distance));
        const FloatVec away = kLanesAreKeys ? hn::Add(first, steps) : hn::Sub(first, steps);
        term = hn::NegMulAdd(hn::Set(tag, slope_), hn::Abs(away), term);
      }
      if (relative_.data != nullptr) {
        const IntVec steps = hn::Iota(int_tag, static_cast<std::int32_t>(lane));
        const IntVec first = hn::Set(int_tag, static_cast<std::int32_t>(distance) + relative_.left);
        const IntVec place = kLanesAreKeys ? hn::Add(first, steps) : hn::Sub(first, steps);
        const IntVec last = hn::Set(int_tag, relative_.left + relative_.right);
        const IntVec element = hn::Min(hn::Max(place, hn::Zero(int_tag)), last);
        term = hn::MulAdd(hn::GatherIndex(tag, table_, element), log2e, term);
      }
      hn::StoreU(term, tag, to + lane);
    }
  }

  SoftcapScore softcap_;
  bool has_softcap_;
  const float* key_bias_;
  PairValues<const void> bias_;
  QueryValues<const float> slopes_;
  DistanceTable<const float> relative_;
  bool has_terms_;
  std::int64_t shift_;
  float *terms_, *key_terms_;
  ScoreGradientSums* gradients_;
  bool is_run_ = true;  ///< the keys of the chunk follow each other
  float slope_ = 0;     ///< of the head, in powers of two
  const float* table_ = nullptr;
  std::size_t width_ = 0, panel_row_ = 0;  ///< of the panel
};

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
