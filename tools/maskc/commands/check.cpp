// fdma-maskc check: is a stored mask valid, canonical, and equal to what it should be?
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "cli/work_limits.hpp"
#include "commands/difference_report.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/masks/cell_by_cell.hpp"
#include "fdma/masks/lower.hpp"
#include "inputs/mask_operand.hpp"
#include "inputs/spec_source.hpp"

namespace fdma::maskc {
namespace {

// The specification that a mask stores, bound to its lengths again. The tables must outlive it.
struct StoredSpecification {
  MaskExpr expr;
  OwnedTables tables;
  Tables views;
};

Outcome<StoredSpecification> read_specification(const Arguments& arguments,
                                                const MaskOperand& checked) {
  const std::string_view option = arguments.has("sample") ? "--sample" : "--exact";
  const BlockMask& mask = checked.mask;
  if (mask.spec.empty()) {
    return usage_failure(
        fmt::format("{}: {} stores no specification; give what it should equal, --against "
                    "FILE.h5:/DATASET",
                    option, checked.label));
  }
  if (!(mask.origin == MaskOrigin{})) {
    return usage_failure(
        fmt::format("{}: {} is a crop, which its specification does not describe; give --against",
                    option, checked.label));
  }
  StoredSpecification stored;
  FDMA_TRY(stored.expr, parse_spec({mask.spec, "spec of " + checked.label}));
  FDMA_TRY(stored.tables, read_tables(arguments.all("table"), stored.expr, arguments.has("cast")));
  stored.views = stored.tables.views();
  return stored;
}

// The engine that would make the mask now is not the one that checks it. Box form checks what
// another engine makes; of periodic form it checks which tiles are equal, but the few tiles that are
// evaluated there are evaluated by box form, too. What box form makes is checked cell by cell.
Result<BlockMask> lower_by_another_engine(const MaskIr& ir, LowerOptions options, bool quiet) {
  LoweringReport report;
  options.report = &report;
  {
    WaitingProgress progress("compiling its specification", "tile rows", quiet);
    options.on_progress = progress.callback();
    FDMA_TRY([[maybe_unused]] const BlockMask made, lower(ir, options));
  }
  const bool is_by_box =
      std::any_of(report.programs.begin(), report.programs.end(),
                  [](const ProgramReport& p) { return p.engine == LoweringEngine::box; });
  if (is_by_box) {
    WaitingProgress progress("evaluating every cell of its specification", "rows", quiet);
    return lower_cell_by_cell(ir, options.block, progress.callback());
  }
  options.report = nullptr;
  options.engine = LoweringEngine::box;
  WaitingProgress progress("compiling its specification by box form", "tile rows", quiet);
  options.on_progress = progress.callback();
  return lower(ir, options);
}

Outcome<LowerOptions> lower_options(const Arguments& arguments, const BlockMask& mask,
                                    int num_threads) {
  LowerOptions options;
  options.block = mask.block;
  options.num_threads = num_threads;
  FDMA_TRY(options.max_work, max_work_of(arguments));
  return options;
}

// The mask that the checked one is compared with: the one of --against, or its own specification,
// lowered again by another engine than the one that makes it.
Outcome<MaskOperand> read_reference(const Arguments& arguments, const MaskOperand& checked,
                                    DenseReadOptions dense, bool quiet) {
  if (!arguments.has("block")) dense.block = checked.mask.block;
  if (const auto against = arguments.find("against")) return read_operand(*against, dense, quiet);
  FDMA_TRY(const StoredSpecification stored, read_specification(arguments, checked));
  FDMA_TRY(const LowerOptions options, lower_options(arguments, checked.mask, dense.num_threads));
  MaskOperand reference;
  reference.label = "its specification";
  if (needs_selection(stored.expr)) {
    LowerOptions by_box = options;
    by_box.engine = LoweringEngine::box;
    const Waiting waiting("selecting keys", quiet);
    FDMA_TRY(reference.mask, fdma::compile(stored.expr, stored.views, checked.mask.shape, by_box));
    return reference;
  }
  FDMA_TRY(const MaskIr ir, fdma::bind(stored.expr, stored.views, checked.mask.shape));
  FDMA_TRY(reference.mask, lower_by_another_engine(ir, options, quiet));
  return reference;
}

struct Verdict {
  Json document;
  std::string text;
  std::string complaint;  // empty if the mask is right
};

std::int64_t num_cells_of(const MaskShape& shape) {
  std::int64_t num_cells = 0;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    num_cells += shape.num_heads * shape.q_len(b) * shape.kv_len(b);
  }
  return num_cells;
}

// --sample: compares cells chosen at random, the same ones in every run, with the specification.
Status check_sample(const MaskOperand& operand, const Arguments& arguments, bool quiet,
                    Verdict& verdict) {
  if (arguments.has("exact") || arguments.has("against")) {
    return usage_failure(
        "--sample: compares some cells with the specification stored in the file; "
        "--exact and --against compare all");
  }
  FDMA_TRY(const std::int64_t wanted, arguments.integer("sample", 0, 1, 1'000'000'000));
  FDMA_TRY(const std::int64_t limit, arguments.integer("limit", 10, 0, 1'000'000));
  FDMA_TRY(const StoredSpecification stored, read_specification(arguments, operand));
  if (needs_selection(stored.expr)) {
    return usage_failure("--sample: topk selects among all cells; --exact compares them");
  }
  const MaskShape& shape = operand.mask.shape;
  FDMA_TRY(const MaskIr ir, fdma::bind(stored.expr, stored.views, shape));
  FDMA_TRY(const BlockMask mask, convert(operand.mask, MaskFormat::segment, operand.mask.block));
  const auto& groups = std::get<std::vector<SegmentMask>>(mask.groups);
  std::vector<CellEvaluator> evaluators;
  for (const IrProgram& program : ir.programs) evaluators.emplace_back(program);
  const std::int64_t num_cells = num_cells_of(shape);
  const std::int64_t num_sampled = num_cells == 0 ? 0 : wanted;
  MaskDifference difference;
  difference.block = mask.block;
  std::int64_t num_wrong = 0;
  std::mt19937_64 random(0);
  std::vector<Interval> keys;
  Progress progress("evaluating cells of its specification", "cells", quiet);
  for (std::int64_t i = 0; i < num_sampled; ++i) {
    // A pair in proportion to its cells, then one of these.
    auto at = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(num_cells));
    std::int64_t b = 0;
    while (at >= shape.num_heads * shape.q_len(b) * shape.kv_len(b)) {
      at -= shape.num_heads * shape.q_len(b) * shape.kv_len(b);
      ++b;
    }
    const std::int64_t h = at / (shape.q_len(b) * shape.kv_len(b));
    const std::int64_t q = at / shape.kv_len(b) % shape.q_len(b);
    const std::int64_t k = at % shape.kv_len(b);
    row_intervals_of(groups[static_cast<std::size_t>(mask.group(b, h))], q, keys);
    const bool is_in_mask = std::any_of(keys.begin(), keys.end(), [&](const Interval& interval) {
      return interval.begin <= k && k < interval.end;
    });
    const auto pair = static_cast<std::size_t>(b * shape.num_heads + h);
    const auto value = evaluators[static_cast<std::size_t>(ir.program_of[pair])].at(q, k);
    if (value == CellEvaluator::Value::undefined) {
      return CommandFailure{ExitCode::usage, fmt::format("mask undefined at q = {}, k = {}", q, k)};
    }
    if (i % 1024 == 0) progress.update(i, num_sampled);
    if (is_in_mask == (value == CellEvaluator::Value::allowed)) continue;
    ++num_wrong;
    if (std::ssize(difference.cells) < limit) difference.cells.push_back({b, h, q, k, is_in_mask});
  }
  verdict.document["sample"] = {{"num_cells", num_sampled},
                                {"num_wrong", num_wrong},
                                {"total_cells", num_cells},
                                {"cells", cells_json(difference)}};
  if (num_wrong == 0) {
    verdict.text += fmt::format(
        "  sample: {} of {} equal those of its specification; the others were not compared\n",
        count_text(num_sampled), plural(num_cells, "cell"));
    return Nothing{};
  }
  verdict.complaint = fmt::format("{} differs from its specification in {} of {} sampled\n{}",
                                  operand.label, count_text(num_wrong), plural(num_sampled, "cell"),
                                  cell_lines(difference, "the mask", "the reference"));
  return Nothing{};
}

Outcome<Verdict> check_one(const ResolvedAddress& address, const Arguments& arguments, bool quiet) {
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const MaskOperand operand, read_resolved(address, dense, quiet));
  if (operand.is_dense) {
    return usage_failure(
        fmt::format("{}: is a dense dataset; check takes a mask of FDMA, and --against the dataset",
                    operand.label));
  }
  Verdict verdict;
  verdict.document["name"] = operand.name;
  const Result<void> valid = [&] {
    const Waiting waiting("checking the form", quiet);
    return validate(operand.mask, ValidationLevel::canonical);
  }();
  verdict.document["valid"] = valid.has_value();
  verdict.document["reason"] = valid ? Json(nullptr) : Json(valid.error().message);
  verdict.document["exact"] = nullptr;
  verdict.document["sample"] = nullptr;
  if (!valid) {
    verdict.complaint =
        fmt::format("{}: not in canonical form: {}", operand.label, valid.error().message);
    return verdict;
  }
  verdict.text = fmt::format("{}: valid, canonical {}, {}\n", operand.label,
                             to_string(operand.mask.format()), lengths_text(operand.mask.shape));
  if (arguments.has("sample")) {
    FDMA_TRY_VOID(check_sample(operand, arguments, quiet, verdict));
    return verdict;
  }
  if (!arguments.has("exact") && !arguments.has("against")) return verdict;

  FDMA_TRY(const std::int64_t limit, arguments.integer("limit", 10, 0, 1'000'000));
  FDMA_TRY(const MaskOperand reference, read_reference(arguments, operand, dense, quiet));
  FDMA_TRY_VOID(check_dense_options(arguments, reference.is_dense));
  FDMA_TRY(const BlockShape block, arguments.block(operand.mask.block));
  MaskDifference difference;
  {
    Progress progress("comparing", "rows", quiet);
    difference =
        compare(operand.mask, reference.mask, block, static_cast<std::size_t>(limit), progress);
  }
  const std::int64_t num_cells = num_cells_of(operand.mask.shape);
  verdict.document["exact"] = {
      {"against", reference.label},
      {"equal", difference.is_equal()},
      {"reason", difference.is_equal() ? Json(nullptr) : Json(difference_summary(difference))},
      {"num_cells", num_cells},
      {"only_in_mask", difference.only_in_a},
      {"only_in_reference", difference.only_in_b},
      {"num_tiles", difference.num_tiles},
      {"cells", cells_json(difference)}};
  if (difference.is_equal()) {
    verdict.text += fmt::format("  exact: all {} equal those of {}\n", plural(num_cells, "cell"),
                                reference.label);
    return verdict;
  }
  verdict.complaint = fmt::format("{} differs from {}: {}\n{}", operand.label, reference.label,
                                  difference_summary(difference),
                                  cell_lines(difference, "the mask", "the reference"));
  return verdict;
}

Outcome<InputReport> report_on(const std::string& input, const Arguments& arguments, bool quiet) {
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(input));
  if (resolved.names.size() > 1 && arguments.has("against")) {
    return usage_failure(fmt::format("{}: holds {} masks; name the one to compare with --against",
                                     resolved.address.file, resolved.names.size()));
  }
  std::vector<std::string> names = resolved.names;
  if (resolved.is_dense) names = {""};
  InputReport report;
  Json& document = report.document;
  document["file"] = resolved.address.file;
  document["right"] = true;
  document["masks"] = Json::array();
  for (const std::string& name : names) {
    ResolvedAddress one = resolved;
    one.names = {name};
    FDMA_TRY(const Verdict verdict, check_one(one, arguments, quiet));
    document["masks"].push_back(verdict.document);
    if (!quiet) report.text += verdict.text;
    if (verdict.complaint.empty()) continue;
    document["right"] = false;
    report.code = ExitCode::mask_wrong;
    if (!report.complaint.empty()) report.complaint += '\n';
    report.complaint += verdict.complaint;
  }
  return report;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  return for_each_input(arguments, session, [&](const std::string& input) {
    return report_on(input, arguments, session.quiet);
  });
}

}  // namespace

const Command& check_command() {
  static const Command command = [] {
    Command made{
        .name = "check",
        .summary = "is a stored mask valid, canonical and exact?",
        .operands = "INPUT..",
        .min_operands = 1,
        .max_operands = kMaxOperands,
        .description =
            "Validates INPUT, a mask in a file of FDMA (or every mask of the file): sizes, "
            "structure, "
            "hashes, and canonical form, that is that the arrays are exactly those that FDMA "
            "builds "
            "from these cells.\n"
            "\n"
            "With --against it also compares every cell with another mask or a dense dataset; with "
            "--exact alone, with the specification stored in the file (give its tables again), by "
            "another engine than the one that makes such masks: box form for what another engine "
            "makes, else the specification evaluated at every cell, with progress. "
            "--sample N compares N cells chosen at random and says so. Exit status 0: right; 1: "
            "wrong, and the first "
            "differing "
            "cells are named; 3: the file is corrupt. Of several INPUTs each is checked, --json "
            "prints "
            "one document {\"files\": [..]}, and the exit status is the largest of theirs.",
        .options = {{.name = "exact", .help = "Compare every cell."},
                    {.name = "sample",
                     .value = "N",
                     .help = "Compare N cells chosen at random, the same in every run, with the "
                             "specification."},
                    {.name = "against",
                     .value = "REFERENCE",
                     .help = "What INPUT should equal: FILE.h5:/DATASET or a mask of FDMA. Implies "
                             "--exact.",
                     .takes_file = true},
                    table_option(),
                    cast_option(),
                    block_option("Blocks in which tiles are counted (default: those of INPUT)."),
                    {.name = "limit",
                     .letter = 'n',
                     .value = "N",
                     .help = "Differing cells to name (default 10)."}},
        .examples = {{"fdma-maskc check out.h5", "Is the file sound?"},
                     {"fdma-maskc check a.h5 b.h5 heads.h5", "Are these?"},
                     {"fdma-maskc check out.h5 --exact --against dense.h5:/mask",
                      "Does it hold exactly the cells that it was made from?"},
                     {"fdma-maskc check packed.h5 --exact --table len=docs.h5:/lengths",
                      "Does it hold what its own specification says?"},
                     {"fdma-maskc check packed.h5 --sample 10000 --table len=docs.h5:/lengths",
                      "Does it in ten thousand cells?"}},
        .run = run};
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    made.options.push_back(threads_option());
    made.options.push_back(max_work_option());
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
