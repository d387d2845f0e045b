// An attention call whose tensors are checked. Every backend starts from it.
#pragma once

#include "call/checked_inputs.hpp"
#include "fdma/kernels/attention.hpp"

namespace fdma {

/// Only checked_call makes one.
struct CheckedCall : CheckedInputs {
  MutableStrided out;
  MutableStrided out_low;      ///< data = nullptr: not wanted
  QueryValues<float> lse{};    ///< likewise
  float* max_logit = nullptr;  ///< likewise; that of head h at h * max_logit_stride
  std::int64_t max_logit_stride = 0;

 private:
  CheckedCall() = default;
  friend Result<CheckedCall> checked_call(const AttentionShape&, const ScoreSpec&,
                                          const AttentionTensors&, const AttentionOptions&, Device,
                                          bool);
};

/// Returns the call, or what is wrong with its tensors: shape_mismatch, invalid_argument,
/// unsupported. `is_closed_form`: the plan takes lengths and documents. Their values are not
/// checked.
Result<CheckedCall> checked_call(const AttentionShape& shape, const ScoreSpec& score,
                                 const AttentionTensors& tensors, const AttentionOptions& options,
                                 Device device, bool is_closed_form = false);

}  // namespace fdma
