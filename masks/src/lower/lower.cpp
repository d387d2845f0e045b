#include "fdma/masks/lower.hpp"

#include <fmt/format.h>

#include <chrono>
#include <new>

#include "bind/written_with.hpp"
#include "fdma/base/parallel.hpp"
#include "ir/range.hpp"
#include "lower/engines.hpp"
#include "lower/select_learned.hpp"

namespace fdma {
namespace {

std::int64_t num_tile_rows(const IrProgram& program, BlockShape block) {
  return ceil_div(program.q_len, block.block_q);
}

// True if a remainder, or bits of an integer, depend on the cell.
bool has_remainders(const IrProgram& program) {
  const std::vector<std::uint8_t> mentions = node_mentions(program);
  for (std::size_t id = 0; id < program.nodes.size(); ++id) {
    const IrOp op = program.nodes[id].op;
    const bool is_remainder =
        op == IrOp::mod || op == IrOp::bit_and || op == IrOp::bit_or || op == IrOp::bit_xor;
    if (is_remainder && (mentions[id] & (kMentionsQ | kMentionsK)) != 0) return true;
  }
  return false;
}

Result<SegmentMask> lower_program(const IrProgram& program, const LowerOptions& options,
                                  WorkMeter& meter, ProgramReport* report) {
  if (meter.must_stop()) return meter.error();
  const LoweringEngine engine = options.engine;
  const bool is_automatic = engine == LoweringEngine::automatic;
  std::optional<SegmentMask> mask;
  const auto try_periodic = [&] {
    mask = lower_periodic(program, options.block, !is_automatic, meter, report);
  };
  // Interval form takes long to find that a row has many intervals.
  const bool is_periodic_first =
      engine == LoweringEngine::periodic || (is_automatic && has_remainders(program));
  if (is_periodic_first) try_periodic();
  if (!mask && (is_automatic || engine == LoweringEngine::interval) && !meter.must_stop()) {
    mask = lower_intervals(program, options.block, meter, report);
  }
  if (!mask && is_automatic && !is_periodic_first && !meter.must_stop()) try_periodic();
  if (mask) {
    meter.add_tile_rows(num_tile_rows(program, options.block));
    return *std::move(mask);
  }
  if (meter.must_stop()) return meter.error();
  if (engine == LoweringEngine::interval) {
    return Error{ErrorCode::unsupported,
                 "engine: interval form cannot express this mask, or cannot prove all of its cells "
                 "defined; use automatic or box"};
  }
  if (engine == LoweringEngine::periodic) {
    return Error{ErrorCode::unsupported,
                 "engine: periodic form finds no tiles of this mask that repeat, or cannot prove "
                 "all of its cells defined; use automatic or box"};
  }
  return lower_boxes(program, options.block, options.num_threads, meter, report);
}

void lower_reported(const IrProgram& program, const LowerOptions& options, WorkMeter& meter,
                    std::optional<Result<SegmentMask>>& result, ProgramReport* report) {
  const auto start = std::chrono::steady_clock::now();
  result.emplace(lower_program(program, options, meter, report));
  if (report == nullptr) return;
  report->num_tiles =
      num_tile_rows(program, options.block) * ceil_div(program.kv_len, options.block.block_kv);
  report->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// "batch element 1, head 3: " where there are several programs.
std::string where_used(const MaskIr& ir, std::size_t program) {
  if (ir.programs.size() == 1) return {};
  for (std::size_t pair = 0; pair < ir.program_of.size(); ++pair) {
    if (ir.program_of[pair] != static_cast<std::int32_t>(program)) continue;
    const auto heads = static_cast<std::size_t>(ir.shape.num_heads);
    return fmt::format("batch element {}, head {}: ", pair / heads, pair % heads);
  }
  return {};
}

}  // namespace

Result<BlockMask> lower(const MaskIr& ir, const LowerOptions& options) {
  FDMA_TRY_VOID(validate(options.block));
  FDMA_TRY_VOID(validate(ir.shape));
  if (options.max_work < 0) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("max_work: expected a number of evaluations, or 0 for no limit, got {}",
                    options.max_work)};
  }
  try {
    WorkMeter meter(options.max_work, options.is_cancelled);
    if (options.on_progress) {
      std::int64_t total = 0;
      for (const IrProgram& program : ir.programs) total += num_tile_rows(program, options.block);
      meter.report_progress(total, options.on_progress);
    }
    if (options.report != nullptr) options.report->programs.assign(ir.programs.size(), {});
    std::vector<std::optional<Result<SegmentMask>>> results(ir.programs.size());
    const auto lower_one = [&](std::size_t p) {
      lower_reported(ir.programs[p], options, meter, results[p],
                     options.report == nullptr ? nullptr : &options.report->programs[p]);
    };
    if (ir.programs.size() == 1 || options.num_threads == 1) {
      for (std::size_t p = 0; p < ir.programs.size(); ++p) lower_one(p);
    } else {
      in_arena(options.num_threads,
               [&] { parallel_for(std::size_t{0}, ir.programs.size(), lower_one); });
    }
    std::vector<SegmentMask> masks;
    masks.reserve(results.size());
    for (std::size_t p = 0; p < results.size(); ++p) {
      if (!*results[p]) {
        Error error = std::move(*results[p]).error();
        error.message = where_used(ir, p) + error.message;
        return error;
      }
      masks.push_back(**std::move(results[p]));
    }
    BlockMask mask = make_block_mask(ir.shape, options.block, std::move(masks), ir.program_of);
    mask.is_per_batch = ir.is_per_batch;
    mask.is_per_head = ir.is_per_head;
    return mask;
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "lowering: out of memory"};
  }
}

Result<BlockMask> compile(const MaskExpr& expr, const Tables& tables, const MaskShape& shape,
                          const LowerOptions& options) {
  if (!needs_selection(expr)) {
    FDMA_TRY(const MaskIr ir, bind(expr, tables, shape));
    FDMA_TRY(BlockMask mask, lower(ir, options));
    mask.spec = expr.text();
    return mask;
  }
  try {
    FDMA_TRY_VOID(validate(options.block));
    LowerOptions selecting = options;
    selecting.report = nullptr;  // reports and progress are those of the whole mask
    selecting.on_progress = {};
    if (options.report != nullptr) options.report->programs.clear();
    FDMA_TRY(SelectedExpr selected, select_learned(expr, tables, shape, selecting));
    if (!selected.mask) {
      FDMA_TRY(const MaskIr ir, fdma::bind(selected.expr, selected.tables, shape));
      FDMA_TRY(selected.mask, lower(ir, options));
    }
    selected.mask->spec = expr.text();
    // Taken from the expression of the user: the tables of a replaced topk differ by element and
    // head.
    const WrittenWith marks = written_with(expr, tables);
    selected.mask->is_per_batch = marks.batch;
    selected.mask->is_per_head = marks.head;
    return *std::move(selected.mask);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "selecting keys: out of memory"};
  }
}

}  // namespace fdma
