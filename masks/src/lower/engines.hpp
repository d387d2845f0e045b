// The three lowering engines. lower.cpp chooses one; the head of each engine's file has its method.
//
// An engine that gets a report fills it. One that declines appends itself and its reason to
// `declined` and leaves the rest alone; one that makes the mask sets `engine`, `method`, the numbers
// of tiles and `phases`. lower.cpp sets `seconds` and `num_tiles`. An engine tells the meter of each
// tile row that it has done (WorkMeter::add_tile_rows); lower.cpp adds those that it did not tell of.
#pragma once

#include <optional>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/masks/lower.hpp"
#include "lower/work_meter.hpp"

namespace fdma {

/// Interval form (intervals/engine.cpp). The result is empty, and box form then decides, if the
/// program is not a union of few intervals per row or column, if these take more than the engine's
/// budgets of memory and steps, or if the engine cannot prove every cell defined. It is also empty
/// where the meter stopped the work.
std::optional<SegmentMask> lower_intervals(const IrProgram& program, BlockShape block,
                                           WorkMeter& meter, ProgramReport* report = nullptr);

/// Periodic form (periodic/engine.cpp). The result is empty, and box form then decides, if the
/// tiles of the mask do not repeat in a way that the engine can follow, or it cannot prove every
/// cell defined; if it would not save most of the work of box form, unless `is_asked`; and where
/// the meter stopped the work.
std::optional<SegmentMask> lower_periodic(const IrProgram& program, BlockShape block, bool is_asked,
                                          WorkMeter& meter, ProgramReport* report = nullptr);

/// Box form (boxes/engine.cpp), for any program. Errors: invalid_argument that names an undefined
/// cell and its cause; the error with which the meter stopped the work.
Result<SegmentMask> lower_boxes(const IrProgram& program, BlockShape block, int num_threads,
                                WorkMeter& meter, ProgramReport* report = nullptr);

}  // namespace fdma
