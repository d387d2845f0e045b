// fdma-maskc check: is a stored mask valid, canonical, and equal to what it should be?
#include <fmt/format.h>

#include <optional>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "cli/work_limits.hpp"
#include "commands/difference_report.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/masks/lower.hpp"
#include "inputs/mask_operand.hpp"
#include "inputs/spec_source.hpp"

namespace fdma::maskc {
namespace {

// The mask that the checked one is compared with: the one of --against, or its own specification,
// lowered again by the engine that evaluates cells and ignores structure.
Outcome<MaskOperand> read_reference(const Arguments& arguments, const MaskOperand& checked,
                                    DenseReadOptions dense, bool quiet) {
  if (!arguments.has("block")) dense.block = checked.mask.block;
  if (const auto against = arguments.find("against")) return read_operand(*against, dense, quiet);
  const BlockMask& mask = checked.mask;
  if (mask.spec.empty()) {
    return usage_failure(
        fmt::format("--exact: {} stores no specification; give what it should equal, --against "
                    "FILE.h5:/DATASET",
                    checked.label));
  }
  if (!(mask.origin == MaskOrigin{})) {
    return usage_failure(fmt::format(
        "--exact: {} is a crop, which its specification does not describe; give --against",
        checked.label));
  }
  FDMA_TRY(const MaskExpr expr, parse_spec({mask.spec, "spec of " + checked.label}));
  FDMA_TRY(const OwnedTables tables,
           read_tables(arguments.all("table"), expr, arguments.has("cast")));
  const Tables views = tables.views();
  LowerOptions options;
  options.block = mask.block;
  options.engine = LoweringEngine::box;
  options.num_threads = dense.num_threads;
  FDMA_TRY(options.max_work, max_work_of(arguments));
  const Waiting waiting("compiling its specification", quiet);
  MaskOperand reference;
  reference.label = "its specification";
  FDMA_TRY(reference.mask, fdma::compile(expr, views, mask.shape, options));
  return reference;
}

struct Verdict {
  Json document;
  std::string text;
  std::string complaint;  // empty if the mask is right
};

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
  if (!valid) {
    verdict.complaint =
        fmt::format("{}: not in canonical form: {}", operand.label, valid.error().message);
    return verdict;
  }
  verdict.text = fmt::format("{}: valid, canonical {}, {}\n", operand.label,
                             to_string(operand.mask.format()), lengths_text(operand.mask.shape));
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
  const MaskShape& shape = operand.mask.shape;
  std::int64_t num_cells = 0;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    num_cells += shape.num_heads * shape.q_len(b) * shape.kv_len(b);
  }
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
            "--exact alone, with the specification stored in the file, lowered again by the box "
            "engine (give its tables again). Exit status 0: right; 1: wrong, and the first "
            "differing "
            "cells are named; 3: the file is corrupt. Of several INPUTs each is checked, --json "
            "prints "
            "one document {\"files\": [..]}, and the exit status is the largest of theirs.",
        .options = {{.name = "exact", .help = "Compare every cell."},
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
                      "Does it hold what its own specification says?"}},
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
