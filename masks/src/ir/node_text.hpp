// A node of a program as the mask language would write it, for reports.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// The text of a node, fully in parentheses. Longer parts than about `max_length` characters are
/// written as "..".
///
/// Example     "((q * k) % 7) < 3", "@t[q // 64, k // 64]"
std::string node_text(const std::function<const IrNode&(IrId)>& node,
                      std::span<const IrTable> tables, IrId id, std::size_t max_length = 72);

}  // namespace fdma
