// Closed-form masks, and the masks that they become with the lengths and documents of a call.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/mask_cases.hpp"
#include "fdma/formats/parametric_mask.hpp"

namespace fdma::testing {

/// The lengths and documents of one batch element of a call, in place of the plan's. Without
/// cu_seqlens the plan's documents apply.
struct CallElement {
  std::int64_t q_len;
  std::int64_t kv_len;
  std::vector<std::int32_t> cu_seqlens = {};
};

/// `mask` in its own format, with one batch element and head.
BlockMask block_mask_of(const ParametricMask& mask);

/// Causal masks, windows, prefixes, sinks, padding, documents and mixtures over these lengths.
std::vector<ParametricMask> plain_forms(std::int64_t q_len, std::int64_t kv_len);

/// A random mask among all that a closed-form plan takes, up to these lengths.
ParametricMask random_form(std::mt19937& rng, std::int64_t max_q_len, std::int64_t max_kv_len);

/// Random lengths and documents of a call. If num_borders is not 0, each element has that many
/// borders, or all elements share one list if `is_shared`. The first element has the planned
/// lengths, since the tensors have them too.
struct RandomCall {
  RandomCall(std::mt19937& rng, const ParametricMask& planned, std::int64_t batch,
             std::int64_t num_borders, bool is_shared);

  std::vector<CallElement> elements;
  std::vector<std::int32_t> q_lens, kv_lens;
  std::vector<std::int32_t> borders;  ///< the entries of cu_seqlens
};

/// The mask that the plan of `mask` computes for an element of a call, by the definition of
/// ParametricMask.
ParametricMask at_call(const ParametricMask& mask, const CallElement& element);

/// The mask that `mask` becomes for the elements of a call, with its cells by definition.
MaskCase case_at_call(const std::string& name, const ParametricMask& mask,
                      const std::vector<CallElement>& elements);

}  // namespace fdma::testing
