// Masks in closed form, and what they are for lengths and documents that a call brings.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/mask_cases.hpp"
#include "fdma/formats/parametric_mask.hpp"

namespace fdma::testing {

/// Lengths and documents that one batch element of a call has in place of the plan's; without
/// cu_seqlens the plan's documents stay.
struct CallElement {
  std::int64_t q_len;
  std::int64_t kv_len;
  std::vector<std::int32_t> cu_seqlens = {};
};

/// `mask` stored as it is, of one batch element and head.
BlockMask block_mask_of(const ParametricMask& mask);

/// Causal masks, windows, prefixes, sinks, padding, documents and mixtures over these lengths.
std::vector<ParametricMask> plain_forms(std::int64_t q_len, std::int64_t kv_len);

/// Anything that a closed-form plan takes, up to these lengths.
ParametricMask random_form(std::mt19937& rng, std::int64_t max_q_len, std::int64_t max_kv_len);

/// Lengths and documents that a call brings, at random: num_borders > 0 for each element, or one
/// list for all if `is_shared`. The first element is as long as planned: tensors are, too.
struct RandomCall {
  RandomCall(std::mt19937& rng, const ParametricMask& planned, std::int64_t batch,
             std::int64_t num_borders, bool is_shared);

  std::vector<CallElement> elements;
  std::vector<std::int32_t> q_lens, kv_lens;
  std::vector<std::int32_t> borders;  ///< as cu_seqlens has them
};

/// What the plan of `mask` computes for an element of a call, by the definition of ParametricMask.
ParametricMask at_call(const ParametricMask& mask, const CallElement& element);

/// `mask` at the elements of a call, its cells by definition.
MaskCase case_at_call(const std::string& name, const ParametricMask& mask,
                      const std::vector<CallElement>& elements);

}  // namespace fdma::testing
