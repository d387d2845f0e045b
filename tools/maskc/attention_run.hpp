// One call of attention_forward as the verbs make it: timed, with a progress bar.
#pragma once

#include <string>

#include "attention_input.hpp"
#include "fdma/formats/block_mask.hpp"
#include "json_output.hpp"

namespace fdma::maskc {

/// Runs the plan and returns the seconds that it took. Failures: those of attention_forward.
Outcome<double> run_attention(const AttentionPlan& plan, const AttentionTensors& tensors,
                              const AttentionOptions& options, bool quiet);

/// True cells of the mask over all batch elements and heads of the shape.
std::int64_t allowed_pairs(const BlockMask& mask, const AttentionShape& shape);
/// 2 (head_dim + head_dim_v) operations for each of them.
double useful_flops(const AttentionShape& shape, std::int64_t pairs);
/// Tiles and gather chunks that the plan walks.
std::int64_t live_tiles(const PlanCounts& counts);

/// "cpu (AVX2)"
std::string backend_text(Backend backend);
/// "q float16 [1, 8192, 8, 64], k float16 [..], v float16 [..], key_bias"
std::string shape_text(const AttentionProblem& problem);
/// "5,016 full, 800 bitmap, 344 row tiles of 128 x 128 in 512 items"
std::string plan_text(const AttentionPlan& plan);

Json shape_json(const AttentionProblem& problem);
Json plan_json(const AttentionPlan& plan);

}  // namespace fdma::maskc
