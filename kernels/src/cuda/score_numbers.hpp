// What the scores of a call are made of, from the call.
#pragma once

#include "call/checked_inputs.hpp"
#include "cuda/policies.hpp"

namespace fdma::gpu {

/// The numbers of a call, without those of gradients.
inline ScoreNumbers score_numbers(const CheckedInputs& call) {
  ScoreNumbers numbers{call.scale, call.softcap};
  numbers.bias = call.bias;
  numbers.alibi_slopes = call.alibi_slopes;
  numbers.relative = call.relative;
  return numbers;
}

/// True iff the call has terms of pairs, which PartsScore adds.
inline bool has_pair_terms(const CheckedInputs& call) {
  return call.bias.data != nullptr || call.alibi_slopes.data != nullptr ||
         call.relative.data != nullptr;
}

}  // namespace fdma::gpu
