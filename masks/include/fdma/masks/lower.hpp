// From MaskIr to compiled masks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// The engine that lowers a program. `automatic` tries interval form and periodic form, periodic
/// form first where the program has remainders, and box form where both decline. It does not take
/// periodic form where box form evaluates few tiles, or not many more.
enum class LoweringEngine : std::uint8_t { automatic, interval, box, periodic };
/// "automatic", "interval", "box", "periodic".
std::string_view to_string(LoweringEngine engine);

/// How one program of a MaskIr was lowered.
///
/// Tiles       a tile is decided by bounds, its cells are evaluated, or it repeats a tile that is known;
///             an engine that does not go from tile to tile, as interval form, counts none
struct ProgramReport {
  struct Decline {
    LoweringEngine engine;
    std::string reason;  ///< a clause: "mod combines q and k"
  };
  struct Phase {
    std::string what;    ///< what was done: "evaluating cells"
    double seconds = 0;  ///< summed over threads
  };
  LoweringEngine engine = LoweringEngine::automatic;  ///< the one that made the mask
  std::string method;                                 ///< a clause: how that engine made it
  std::vector<Decline> declined;                      ///< engines that were tried before it
  double seconds = 0;                                 ///< elapsed, all engines
  std::int64_t num_tiles = 0;
  std::int64_t num_bounded_tiles = 0;
  std::int64_t num_evaluated_tiles = 0;
  std::int64_t num_repeated_tiles = 0;
  std::vector<Phase> phases;  ///< of the engine that made the mask
};

/// What a report says, a line each without its end: the engines that declined and why, the one that
/// made the mask and how, the tiles, and for slow programs where the time went.
std::vector<std::string> report_lines(const ProgramReport& report);

/// How a mask was lowered: one report for each program of its MaskIr, in that order.
struct LoweringReport {
  std::vector<ProgramReport> programs;
};

/// Default of LowerOptions::max_work: 2^38, some ten minutes of one core.
inline constexpr std::int64_t kDefaultMaxWork = std::int64_t{1} << 38;

struct LowerOptions {
  BlockShape block;
  LoweringEngine engine = LoweringEngine::automatic;
  int num_threads = 0;  ///< 0: all cores that oneTBB gives; the result does not depend on it
  /// Asked every few milliseconds of work, by any thread and by the caller's; true stops with
  /// ErrorCode::io "interrupted". A single selection of topk is not interrupted.
  std::function<bool()> is_cancelled = {};
  /// Limit of the evaluations that the loops (any, all) of the mask take, approximately. One
  /// evaluation is one operation in the body of a loop, for one cell (query row, key) and one value
  /// of the loop variable. More is ErrorCode::unsupported; 0: no limit. Loops that are short enough
  /// to be unrolled, and everything outside loops, do not count.
  std::int64_t max_work = kDefaultMaxWork;
  /// Told how many of all tile rows are done, by any thread but by one at a time. The count never
  /// descends.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress = {};
  LoweringReport* report = nullptr;  ///< filled where not null and lower succeeds
};

/// The compiled mask: a BlockMask of segment masks, identical groups stored once, no spec text.
///
/// Errors      invalid_argument: an undefined cell (the message names one and its cause), a bad
///             block
///             unsupported: the engine asked for cannot express the program, or its loops take more
///             than max_work
///             io: is_cancelled said so
/// Cost        O(runs) for masks that move in step, else O(tables + live partial tiles)
///             memory: never O(q_len * kv_len); what an engine holds besides the result stays below
///             256 MiB, or below the bytes of the result where these are more, for lengths up to
///             256K tokens, and grows linearly beyond
Result<BlockMask> lower(const MaskIr& ir, const LowerOptions& options = {});

/// True iff the mask has a topk. Only compile can lower such a mask.
bool needs_selection(const MaskExpr& expr);

/// Selects the keys of topk (fdma::select), binds and lowers. Keeps the text as `spec`.
///
/// Errors      those of bind and lower
///             for topk: scores that are no float32 table of [kv_len], [heads_kv, kv_len] or
///             [batch, heads_kv, kv_len] with heads_kv a divisor of num_heads; NaN; w < 1
Result<BlockMask> compile(const MaskExpr& expr, const Tables& tables, const MaskShape& shape,
                          const LowerOptions& options = {});

}  // namespace fdma
