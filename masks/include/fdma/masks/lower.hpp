// From MaskIr to compiled masks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// Which engine lowers a program. Automatic tries interval form and takes box form where that
/// declines.
enum class LoweringEngine : std::uint8_t { automatic, interval, box };

/// LowerOptions::max_work unless it says otherwise: 2^38, some ten minutes of one core.
inline constexpr std::int64_t kDefaultMaxWork = std::int64_t{1} << 38;

struct LowerOptions {
  BlockShape block;
  LoweringEngine engine = LoweringEngine::automatic;
  int num_threads = 0;  ///< 0: all cores that oneTBB gives; the result does not depend on it
  /// Asked every few milliseconds of work, by any thread and by the caller's: true stops with
  /// ErrorCode::io "interrupted". One selection of topk is not broken off.
  std::function<bool()> is_cancelled = {};
  /// Evaluations that the loops (any, all) of the mask may take, about: one operation in the body
  /// of a loop, for one cell (query row, key) and one turn, is one. More is ErrorCode::unsupported;
  /// 0: no limit. Loops that are short enough to be written out, and all else in a specification,
  /// cost nothing here.
  std::int64_t max_work = kDefaultMaxWork;
};

/// The compiled mask: a BlockMask of segment masks, identical groups stored once, no spec text.
///
/// Errors      invalid_argument: an undefined cell (the message names one and the culprit), a bad
///             block; unsupported: the engine asked for cannot express the program, or its loops
///             take more than max_work; io: is_cancelled said so
/// Cost        O(runs) for masks that move in step, else O(tables + live partial tiles); never
///             O(q_len * kv_len) memory: what an engine holds besides the result stays below 256
///             MiB, or the bytes of the result where these are more, for lengths up to 256K tokens
///             (and grows linearly beyond)
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
