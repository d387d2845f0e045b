// The arguments of zoh_scores and its backward: their checks, and the checked call.
#pragma once

#include <string>
#include <string_view>

#include "fdma/base/result.hpp"
#include "selection/host/zoh_call.hpp"

namespace fdma::zoh {

Error mismatch(std::string message);
/// "[2, 8]"
std::string extents_text(const TensorView& view);

/// Errors      unsupported: no float32, float16 or bfloat16; invalid_argument: null or misaligned
///             data
Result<void> check_elements(const TensorView& view, std::string_view name);
Result<void> check_num_threads(const ZohOptions& options);

/// The call, whose scores are still to be set; rows of weights are padded to multiples of
/// `padding`.
HostScoresCall make_call(const ZohShape& shape, ZohMode mode, const TensorView& values,
                         const TensorView& dt_proj, const TensorView& a_coef, std::int64_t padding);

}  // namespace fdma::zoh
