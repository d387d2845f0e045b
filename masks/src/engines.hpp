// The two lowering engines. lower.cpp chooses; each file's head explains its method.
#pragma once

#include <functional>
#include <optional>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/masks/lower.hpp"

namespace fdma {

/// Interval form (interval_engine.cpp). Empty if the program is not a union of few intervals per
/// row or column, or if it cannot prove every cell defined: box form then decides. Empty too where
/// is_cancelled says so.
std::optional<SegmentMask> lower_intervals(const IrProgram& program, BlockShape block,
                                           const std::function<bool()>& is_cancelled = {});

/// Box form (box_engine.cpp): any program. Errors: invalid_argument that names an undefined cell
/// and the culprit; io: is_cancelled said so.
Result<SegmentMask> lower_boxes(const IrProgram& program, BlockShape block, int num_threads,
                                const std::function<bool()>& is_cancelled = {});

/// What a lowering that was cancelled ends with.
inline Error interrupted() { return {ErrorCode::io, "interrupted"}; }

}  // namespace fdma
