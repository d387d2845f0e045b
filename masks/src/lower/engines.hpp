// The two lowering engines. lower.cpp chooses; each file's head explains its method.
#pragma once

#include <optional>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/masks/lower.hpp"
#include "lower/work_meter.hpp"

namespace fdma {

/// Interval form (intervals/engine.cpp). Empty if the program is not a union of few intervals per
/// row or column, if these take more than its budgets of memory and steps, or if it cannot prove
/// every cell defined: box form then decides. Empty too where the meter stopped the work.
std::optional<SegmentMask> lower_intervals(const IrProgram& program, BlockShape block,
                                           WorkMeter& meter);

/// Box form (boxes/engine.cpp): any program. Errors: invalid_argument that names an undefined cell
/// and the culprit; what the meter stopped the work with.
Result<SegmentMask> lower_boxes(const IrProgram& program, BlockShape block, int num_threads,
                                WorkMeter& meter);

}  // namespace fdma
