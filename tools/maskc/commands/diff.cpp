// fdma-maskc diff: are two masks equal, and if not, which tiles differ?
#include <fmt/format.h>

#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "commands/difference_report.hpp"
#include "fdma/formats/hash.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const std::int64_t limit, arguments.integer("limit", 10, 0, 1'000'000));
  FDMA_TRY(const MaskOperand a, read_operand(arguments.operands()[0], dense, session.quiet));
  if (!arguments.has("block")) dense.block = a.mask.block;
  FDMA_TRY(const MaskOperand b, read_operand(arguments.operands()[1], dense, session.quiet));
  FDMA_TRY_VOID(check_dense_options(arguments, a.is_dense || b.is_dense));
  FDMA_TRY(const BlockShape block, arguments.block(a.mask.block));
  MaskDifference difference;
  {
    Progress progress("comparing", "rows", session.quiet);
    difference = compare(a.mask, b.mask, block, static_cast<std::size_t>(limit), progress);
  }
  const ExitCode code = difference.is_equal() ? ExitCode::ok : ExitCode::mask_wrong;
  if (arguments.has("json")) {
    Json document;
    document["a"] = a.label;
    document["b"] = b.label;
    document["equal"] = difference.is_equal();
    document["reason"] =
        difference.is_equal() ? Json(nullptr) : Json(difference_summary(difference));
    document["block"] = {{"q", block.block_q}, {"kv", block.block_kv}};
    document["only_in_a"] = difference.only_in_a;
    document["only_in_b"] = difference.only_in_b;
    document["num_tiles"] = difference.num_tiles;
    document["tiles"] = tiles_json(difference);
    document["cells"] = cells_json(difference);
    session.out = json_text(document);
    return code;
  }
  if (session.quiet) return code;
  session.out = fmt::format("a  {}\nb  {}\n", a.label, b.label);
  if (difference.is_equal()) {
    session.out += fmt::format("equal: mask hash {}\n", to_string(mask_hash(a.mask)));
    return code;
  }
  session.out += fmt::format("differ: {}\n", difference_summary(difference));
  if (!difference.shape_reason.empty()) return code;
  session.out += fmt::format("only in a: {}; only in b: {}\n", plural(difference.only_in_a, "cell"),
                             plural(difference.only_in_b, "cell"));
  if (limit > 0) {
    session.out += fmt::format("first tiles\n{}", tile_table(difference));
    session.out += fmt::format("first cells\n{}", cell_lines(difference, "a", "b"));
  }
  return code;
}

}  // namespace

const Command& diff_command() {
  static const Command command = [] {
    Command made{
        .name = "diff",
        .summary = "are two masks equal, and which tiles differ?",
        .operands = "A B",
        .min_operands = 2,
        .max_operands = 2,
        .description =
            "Compares counts, lengths and every cell of A and B, whatever their formats and block "
            "shapes; either may be a dense dataset. Prints how many cells and tiles differ and the "
            "first of them. Exit status 0: equal; 1: they differ.",
        .options = {block_option("Blocks in which tiles are told (default: those of A)."),
                    {.name = "limit",
                     .letter = 'n',
                     .value = "N",
                     .help = "Tiles and cells to list (default 10)."},
                    json_option()},
        .examples = {{"fdma-maskc diff a.h5 b.h5", "The only masks of two files:"},
                     {"fdma-maskc diff all.h5:local all.h5:global --limit 3",
                      "Two masks of one file, the first three differences:"},
                     {"fdma-maskc diff out.h5 dense.h5:/mask --quiet && echo same",
                      "A compiled mask and a dense dataset, in a script:"}},
        .run = run};
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
