// The score of a call, that is what happens to its logits and weights, as Python hands it over: a
// tuple of the fields of ScoreArguments (fdma/attention/score.py) in their order, or None.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/score_spec.hpp"
#include "fdma/kernels/attention.hpp"

namespace fdma::python {

/// The tensors and numbers of a score. A tensor that is not given has no data.
struct CallScore {
  TensorView key_bias, bias, alibi_slopes, relative, sinks;
  float softcap = 0;
  std::int64_t relative_left = 0;
  Dropout dropout;

  /// The parts that the call brings.
  ScoreSpec spec() const;

  /// Its tensors, in their order.
  std::array<const TensorView*, 5> tensors() const {
    return {&key_bias, &bias, &alibi_slopes, &relative, &sinks};
  }

  /// Sets the fields of a forward or backward call that have the same names.
  template <class Tensors, class Options>
  void set(Tensors& call_tensors, Options& options) const {
    call_tensors.key_bias = key_bias;
    call_tensors.bias = bias;
    call_tensors.alibi_slopes = alibi_slopes;
    call_tensors.relative = relative;
    call_tensors.sinks = sinks;
    options.softcap = softcap;
    options.relative_left = relative_left;
    options.dropout = dropout;
  }
};

/// The tuple of a score, which must outlive it.
class GivenScore {
 public:
  /// Throws TypeError if `given` is neither None nor a tuple, or has too many fields.
  explicit GivenScore(nanobind::handle given);

  /// The score. view_of(name, object) describes a tensor as a TensorView. A seed is two adjacent
  /// 64-bit integers; ValueError is thrown otherwise.
  template <class ViewOf>
  CallScore score(ViewOf&& view_of) const {
    CallScore score;
    const auto set = [&](std::size_t field, const char* name, TensorView& view) {
      if (const nanobind::handle tensor = at(field); !tensor.is_none()) {
        view = view_of(name, tensor);
      }
    };
    set(0, "key_bias", score.key_bias);
    set(1, "bias", score.bias);
    set(2, "alibi_slopes", score.alibi_slopes);
    set(3, "relative", score.relative);
    set(4, "sinks", score.sinks);
    set_numbers(score);
    if (score.dropout.rate > 0) {
      TensorView seed;
      set(5, "dropout_seed", seed);
      set_seed(score, seed);
    }
    return score;
  }

 private:
  nanobind::handle at(std::size_t field) const;
  void set_numbers(CallScore& score) const;
  static void set_seed(CallScore& score, const TensorView& seed);

  nanobind::handle given_;
  std::size_t size_ = 0;
};

}  // namespace fdma::python
