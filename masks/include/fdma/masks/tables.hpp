// Tables: the arrays that a specification names with @.
#pragma once

#include <map>
#include <string>

#include "fdma/base/tensor_view.hpp"

namespace fdma {

/// Tables by name (without the @). Boolean or integer, rank 0 to 4, host, any strides;
/// float32 for the scores of topk and nothing else. Borrowed.
using Tables = std::map<std::string, TensorView, std::less<>>;

}  // namespace fdma
