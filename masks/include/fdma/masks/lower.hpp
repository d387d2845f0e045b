// From MaskIr to compiled masks.
#pragma once

#include <cstdint>
#include <functional>
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
  /// Asked every few milliseconds of work, by any thread and by the caller's: true stops with
  /// ErrorCode::io "interrupted". One selection of topk is not broken off.
  std::function<bool()> is_cancelled = {};
};

/// The compiled mask: a BlockMask of segment masks, identical groups stored once, no spec text.
///
/// Errors      invalid_argument: an undefined cell (the message names one and the culprit), a bad
/// block; unsupported: the
///             engine asked for cannot express the program
/// Cost        O(runs) for masks that move in step, else O(tables + live partial tiles); never
/// O(q_len * kv_len) memory
Result<BlockMask> lower(const MaskIr& ir, const LowerOptions& options = {});

/// True iff the mask has a topk: only compile can lower it.
bool needs_selection(const MaskExpr& expr);

/// Selects what topk keeps (fdma::select), binds and lowers; keeps the text as `spec`.
///
/// Errors      those of bind and lower; for topk: scores that are no float32 table of [kv_len],
/// [heads_kv,
///             kv_len] or [batch, heads_kv, kv_len] with heads_kv a divisor of num_heads, NaN, w <
///             1
Result<BlockMask> compile(const MaskExpr& expr, const Tables& tables, const MaskShape& shape,
                          const LowerOptions& options = {});

}  // namespace fdma
