// A backward call whose tensors are checked. Every backend starts from it.
#pragma once

#include "call/checked_inputs.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace fdma {

/// The inputs and results of a forward call, and the tensors of the backward pass. Only
/// checked_backward_call makes one.
struct CheckedBackwardCall : CheckedInputs {
  Strided out;
  Strided out_low;  ///< data = nullptr: not given
  QueryValues<const float> lse{};
  Strided dout;
  QueryValues<const float> dlse{};  ///< data = nullptr: zeros
  MutableStrided dq, dk, dv;
  KeyValues<float> dkey_bias{};        ///< data = nullptr: not wanted
  PairValues<void> dbias{}, dsinks{};  ///< likewise; strides of 0 where sums go over an axis
  DistanceTable<float> drelative{};    ///< likewise
  MutableTensorView dbias_view, drelative_view, dsinks_view;  ///< the same tensors, with extents
  bool corrects_delta = false;                                ///< DeltaSource::corrected

 private:
  CheckedBackwardCall() = default;
  friend Result<CheckedBackwardCall> checked_backward_call(Direction, const AttentionShape&,
                                                           const ScoreSpec&, const BackwardTensors&,
                                                           const BackwardOptions&, Device, bool);
};

/// Returns the call, or what is wrong with its tensors, as checked_call does; `direction` is the
/// plan's.
Result<CheckedBackwardCall> checked_backward_call(Direction direction, const AttentionShape& shape,
                                                  const ScoreSpec& score,
                                                  const BackwardTensors& tensors,
                                                  const BackwardOptions& options, Device device,
                                                  bool is_closed_form = false);

}  // namespace fdma
