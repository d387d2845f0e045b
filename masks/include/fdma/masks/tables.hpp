// Tables: the arrays that a specification names with @.
#pragma once

#include <map>
#include <string>

#include "fdma/base/tensor_view.hpp"

namespace fdma {

/// Borrowed tables by name (without the @): boolean or integer, rank 0 to 4, on the host, any
/// strides. float32 is only for the scores of topk.
using Tables = std::map<std::string, TensorView, std::less<>>;

}  // namespace fdma
