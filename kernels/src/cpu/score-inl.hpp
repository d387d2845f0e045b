// Score policies of the CPU kernels: what happens to a logit between the scaled product of query and
// key and the softmax. A score is one structure here and a line of with_score. Included once per
// instruction set, as microkernels-inl.hpp is.
//
// Logits are in powers of two (times log2(e)). A policy is a value that a work tile owns, with
//
//   kIsIdentity            logit returns what it is given
//   begin_head(b, h)       before the work tiles of a query head
//   begin_chunk(keys, n)   forward, before a chunk: the keys of its columns
//   begin_keys(first, n)   backward, before a key tile: its keys
//   logit(x, pairs)        the logits of a vector of scaled products
//   finish_row(max, sum, q)
//                          forward, after the last key of a row: what its output is divided by.
//                          2^max * sum is the sum of exponentials, which lse keeps
//   KeySums<nv>            backward, `nv` vectors of keys of one panel: `gradient(ds, x, pairs, v)`
//                          takes the gradients of the logits of vector v and returns those of the
//                          scaled products x; `store()` follows the last query
//   end_keys()             backward, after all query heads of a key tile
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
  static constexpr bool kIsIdentity = true;

  void begin_head(std::int64_t, std::int64_t) {}
  void begin_chunk(const std::int32_t*, std::size_t) {}
  void begin_keys(std::int64_t, std::size_t) {}
  template <class Pairs>
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs&) const {
    return x;
  }
  float finish_row(float, float sum, std::int64_t) const { return sum; }
  void end_keys() {}

  template <int kNv>
  struct KeySums {
    KeySums(const NoScore&, std::size_t) {}
    template <class Pairs>
    HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec, const Pairs&, int) {
      return ds;
    }
    void store() {}
  };
};

/// ScoreSpec::key_bias: adds a number to all logits of a key.
class KeyBiasScore : public NoScore {
 public:
  static constexpr bool kIsIdentity = false;

  /// `batch` and `kv_head` are those of every work tile.
  ///
  /// Shapes      terms, sums: scratch memory, one element for each key of a chunk or tile, rounded
  ///             up to whole panels; gradient (of the bias) and sums are for backward calls
  KeyBiasScore(const KeyValues<const float>& bias, std::int32_t batch, std::int32_t kv_head,
               float* terms, const KeyValues<float>& gradient = {}, float* sums = nullptr)
      : bias_(bias.head(batch, kv_head)),
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
  HWY_INLINE FloatVec logit(FloatVec x, const Pairs& pairs) const {
    const FloatTag tag;
    if constexpr (Pairs::kAreKeys) {
      return hn::Add(x, hn::LoadU(tag, terms_ + pairs.row));
    } else {
      return hn::Add(x, hn::Set(tag, terms_[pairs.column]));
    }
  }
  void end_keys() {
    if (gradient_ != nullptr) std::copy_n(sums_, num_keys_, gradient_ + first_key_);
  }

  /// The gradient of the bias: dS summed over queries.
  template <int kNv>
  class KeySums {
   public:
    KeySums(const KeyBiasScore& score, std::size_t row) : to_(score.sums_ + row) {
      FDMA_UNROLL for (int v = 0; v < kNv; ++v) sum_[v] = hn::LoadU(FloatTag(), at(v));
    }
    template <class Pairs>
    HWY_INLINE FloatVec gradient(FloatVec ds, FloatVec, const Pairs&, int v) {
      sum_[v] = hn::Add(sum_[v], ds);
      return ds;
    }
    void store() {
      FDMA_UNROLL for (int v = 0; v < kNv; ++v) hn::StoreU(sum_[v], FloatTag(), at(v));
    }

   private:
    float* at(int v) const { return to_ + static_cast<std::size_t>(v) * kLanes; }

    float* to_;
    FloatVec sum_[kNv];
  };

 private:
  const float* bias_;
  float* gradient_;
  float *terms_, *sums_;
  std::int64_t first_key_ = 0;
  std::size_t num_keys_ = 0;
};

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
