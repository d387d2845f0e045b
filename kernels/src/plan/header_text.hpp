// Lines that texts of plans of several forms have in common.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Header, shape and tile counts of plans with stored work tiles.
std::string header_text(const PlanHeader& header, std::int64_t num_work_tiles,
                        std::int64_t size_bytes);

/// How many work tiles are not shown; nothing if all are.
std::string rest_text(std::int64_t num_not_shown);

}  // namespace fdma
