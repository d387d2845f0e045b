// From MaskIr to compiled masks.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/result.hpp"
#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// Which engine lowers a program. Automatic tries interval form and takes box form where that
/// declines.
enum class LoweringEngine : std::uint8_t { automatic, interval, box };

struct LowerOptions {
  BlockShape block;
  LoweringEngine engine = LoweringEngine::automatic;
  int num_threads = 0;  ///< 0: all cores that oneTBB gives; the result does not depend on it
};

/// The compiled mask: a BlockMask of segment masks, identical groups stored once, no spec text.
///
/// Errors      invalid_argument: an undefined cell (the message names one and the culprit), a bad
/// block; unsupported: the
///             engine asked for cannot express the program
/// Cost        O(runs) for masks that move in step, else O(tables + live partial tiles); never
/// O(q_len * kv_len) memory
Result<BlockMask> lower(const MaskIr& ir, const LowerOptions& options = {});

/// parse, bind and lower in one call; keeps the text as `spec`.
Result<BlockMask> compile(const MaskExpr& expr, const Tables& tables, const MaskShape& shape,
                          const LowerOptions& options = {});

}  // namespace fdma
