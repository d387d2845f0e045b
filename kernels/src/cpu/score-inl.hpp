// Score policies of the CPU kernels: what happens to a logit between the scaled product of query and
// key and the softmax. A score is one structure here and a line in work_tile_kernel.cpp and in
// backward_kernel.cpp. Included once per instruction set, as microkernels-inl.hpp is.
//
// Logits are in powers of two (times log2(e)). A policy is a value that a work tile owns, with
//
//   kIsIdentity            logit returns what it is given
//   kFinishesRows          finish_row returns something other than the sum
//   kHasFarLogits          logits may be so large that lse, a float32, is far from exact: backward,
//                          weights above 1 count as 1
//   begin_head(b, h)       before the work tiles of a query head
//   begin_chunk(keys, n)   forward, before a chunk: the keys of its columns
//   begin_keys(first, n)   backward, before a key tile: its keys
//   begin_panel<kNv>(pairs, n, row, num_rows)
//                          before logits of a panel of rows and n columns
//   logit(x, pairs)        the logits of a vector of scaled products
//   gradient(ds, x, pairs) the gradients of the scaled products x from those of their logits
//   finish_row(max, sum, q)
//                          what the output of a row is divided by: forward after its last key,
//                          backward before its first (query_rows-inl.hpp). 2^max * sum is the sum
//                          of exponentials, which lse keeps
//   end_panel<kNv>(pairs, n, row, num_rows)
//                          backward, after the gradients of a panel
//   end_head()             backward, after all queries of a query head
//   end_keys()             backward, after all query heads of a key tile
//
// logit and gradient of a vector follow each other, so that the compiler keeps what both compute.
// A policy may specialise KeyPanel, to keep sums over queries in registers, and overload for_column,
// to keep there what all rows of a key share.
#if defined(FDMA_CPU_SCORE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_SCORE_INL
#undef FDMA_CPU_SCORE_INL
#else
#define FDMA_CPU_SCORE_INL
#endif

#include <algorithm>

#include "call/strided_views.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/scratch.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

/// The logits are the scaled products.
struct NoScore {
  static constexpr bool kIsIdentity = true, kFinishesRows = false, kHasFarLogits = false;

  void begin_head(std::int64_t, std::int64_t) {}
  void begin_chunk(const std::int32_t*, std::size_t) {}
  void begin_keys(std::int64_t, std::size_t) {}
  template <int kNv, class Pairs>
  void begin_panel(const Pairs&, std::size_t, std::size_t, std::size_t) {}
  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs&) const {
    return x;
  }
  float finish_row(float, float sum, std::int64_t) const { return sum; }
  template <class Pairs>
  HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec, const Pairs&) const {
    return ds;
  }
  template <int kNv, class Pairs>
  void end_panel(const Pairs&, std::size_t, std::size_t, std::size_t) {}
  void end_head() {}
  void end_keys() {}
};

/// The score of one column of a forward chunk: `logit(x, pairs)`.
template <class Score>
HWY_INLINE const Score& for_column(const Score& score, std::size_t) {
  return score;
}

/// The score of kNv vectors of keys of a backward panel, whose first key is `row` of the tile:
/// logit and gradient of vector v. store() follows the last query.
template <int kNv, class Score>
class KeyPanel {
 public:
  KeyPanel(const Score& score, std::size_t) : score_(score) {}
  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs& pairs, int) const {
    return score_.logit(x, pairs);
  }
  template <class Pairs>
  HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec x, const Pairs& pairs, int) {
    return score_.gradient(ds, x, pairs);
  }
  void store() {}

 private:
  const Score& score_;
};

/// tanh(x) with relative error below 3e-7; NaN stays NaN. Near 0 it is a Taylor polynomial of degree
/// 9, whose error at 0.3 is 5e-8, because there 1 - e would lose digits.
HWY_INLINE FloatVec tanh_of(FloatVec x) {
  const FloatTag tag;
  const FloatVec one = hn::Set(tag, 1.0F), magnitude = hn::Abs(x), square = hn::Mul(x, x);
  FloatVec series = hn::Set(tag, 62.0F / 2835.0F);
  series = hn::MulAdd(series, square, hn::Set(tag, -17.0F / 315.0F));
  series = hn::MulAdd(series, square, hn::Set(tag, 2.0F / 15.0F));
  series = hn::MulAdd(series, square, hn::Set(tag, -1.0F / 3.0F));
  series = hn::MulAdd(hn::Mul(series, square), x, x);
  const FloatVec e = exp2_of(hn::Mul(magnitude, hn::Set(tag, -2.0F * kLog2E)));
  const FloatVec ratio = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(tag, 0.3F)), series, hn::CopySign(ratio, x));
}

/// ScoreSpec::softcap: a scaled product x becomes cap * tanh(x / cap).
class SoftcapScore : public NoScore {
 public:
  static constexpr bool kIsIdentity = false;

  explicit SoftcapScore(float cap) : cap_(cap * kLog2E), inverse_(1.0F / cap_) {}

  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs&) const {
    return hn::Mul(hn::Set(FloatTag(), cap_), tanh_of_product(x));
  }
  template <class Pairs>
  HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec x, const Pairs&) const {
    const FloatVec t = tanh_of_product(x);
    return hn::NegMulAdd(hn::Mul(ds, t), t, ds);
  }

 private:
  HWY_INLINE FloatVec tanh_of_product(FloatVec x) const {
    return tanh_of(hn::Mul(x, hn::Set(FloatTag(), inverse_)));
  }

  float cap_, inverse_;  // of logits in powers of two
};

/// ScoreSpec::key_bias: adds a number to all logits of a key, after what `Before` does to them.
template <class Before = NoScore>
class KeyBiasScore : public Before {
 public:
  static constexpr bool kIsIdentity = false;

  /// `batch` and `kv_head` are those of every work tile.
  ///
  /// Shapes      terms, sums: scratch memory, one element for each key of a chunk or tile, rounded
  ///             up to whole panels; gradient (of the bias) and sums are for backward calls
  KeyBiasScore(const Before& before, const KeyValues<const float>& bias, std::int32_t batch,
               std::int32_t kv_head, float* terms, const KeyValues<float>& gradient = {},
               float* sums = nullptr)
      : Before(before),
        bias_(bias.head(batch, kv_head)),
        gradient_(gradient.data == nullptr ? nullptr : gradient.head(batch, kv_head)),
        terms_(terms),
        sums_(sums) {}

  void begin_chunk(const std::int32_t* keys, std::size_t num_keys) {
    for (std::size_t i = 0; i < num_keys; ++i) terms_[i] = bias_[keys[i]] * kLog2E;
  }
  void begin_keys(std::int64_t first_key, std::size_t num_keys) {
    first_key_ = first_key;
    num_keys_ = num_keys;
    const auto padded = static_cast<std::size_t>(panel_rows(static_cast<std::int64_t>(num_keys)));
    std::fill_n(sums_, padded, 0.0F);
    std::fill_n(terms_, padded, 0.0F);
    for (std::size_t i = 0; i < num_keys; ++i) {
      terms_[i] = bias_[first_key + static_cast<std::int64_t>(i)] * kLog2E;
    }
  }
  template <class Pairs>
  FloatVec logit(FloatVec, const Pairs&) const = delete;  // for_column and KeyPanel below
  void end_keys() {
    if (gradient_ != nullptr) std::copy_n(sums_, num_keys_, gradient_ + first_key_);
  }

  const Before& before() const { return *this; }
  /// In powers of two: those of the chunk's columns, backward of the tile's keys.
  const float* terms() const { return terms_; }
  /// Backward: dS of the tile's keys, summed over queries.
  float* sums() const { return sums_; }

 private:
  const float* bias_;
  float* gradient_;
  float *terms_, *sums_;
  std::int64_t first_key_ = 0;
  std::size_t num_keys_ = 0;
};

template <class Before>
struct KeyTerm {
  const Before& before;
  FloatVec term;

  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs& pairs) const {
    return hn::Add(before.logit(x, pairs), term);
  }
};
template <class Before>
HWY_INLINE KeyTerm<Before> for_column(const KeyBiasScore<Before>& score, std::size_t column) {
  return {score.before(), hn::Set(FloatTag(), score.terms()[column])};
}

template <int kNv, class Before>
class KeyPanel<kNv, KeyBiasScore<Before>> {
 public:
  KeyPanel(const KeyBiasScore<Before>& score, std::size_t row)
      : before_(score.before()), to_(score.sums() + row) {
    const FloatTag tag;
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      const auto lane = static_cast<std::size_t>(v) * kLanes;
      term_[v] = hn::LoadU(tag, score.terms() + row + lane);
      sum_[v] = hn::LoadU(tag, to_ + lane);
    }
  }
  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs& pairs, int v) const {
    return hn::Add(before_.logit(x, pairs), term_[v]);
  }
  template <class Pairs>
  HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec x, const Pairs& pairs, int v) {
    sum_[v] = hn::Add(sum_[v], ds);
    return before_.gradient(ds, x, pairs);
  }
  void store() {
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      hn::StoreU(sum_[v], FloatTag(), to_ + static_cast<std::size_t>(v) * kLanes);
    }
  }

 private:
  const Before& before_;
  float* to_;
  FloatVec term_[kNv], sum_[kNv];
};

/// Calls run(score) with the score of a call without newer parts. with_bias(score) adds its key bias.
template <class Inputs, class WithBias, class Run>
void with_score_of(const Inputs& inputs, const WithBias& with_bias, const Run& run) {
  const auto run_with = [&](const auto& score) {
    if (inputs.key_bias.data == nullptr) return run(score);
    run(with_bias(score));
  };
  if (inputs.softcap == 0.0F) return run_with(NoScore{});
  run_with(SoftcapScore(inputs.softcap));
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
