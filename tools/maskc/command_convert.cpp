// fdma-maskc convert: any mask, dense datasets included, to any format.
#include <fmt/format.h>

#include "arguments.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "json_output.hpp"
#include "mask_operand.hpp"
#include "mask_shape_arguments.hpp"
#include "progress.hpp"

namespace fdma::maskc {
namespace {

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  const auto output = arguments.find("output");
  if (!output) return usage_failure("--output: expected the file to write, got nothing");
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(arguments.operands().front()));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  // A destination that cannot be written is an error before the reading, not after it.
  FDMA_TRY_VOID(check_destination(*output));
  FDMA_TRY(MaskOperand input, read_resolved(resolved, dense, session.quiet));
  FDMA_TRY(const MaskFormat format,
           arguments.format(input.is_dense ? MaskFormat::segment : input.mask.format()));
  FDMA_TRY(const BlockShape block, arguments.block(input.mask.block));
  const std::string name = arguments.find("name").value_or(input.name);
  const Waiting waiting("converting", session.quiet || arguments.has("verbose"));
  const MaskStatistics statistics = count(input.mask, block);
  if (format != input.mask.format() || block != input.mask.block) {
    FDMA_TRY(BlockMask converted, convert(input.mask, format, block));
    converted.spec = std::move(input.mask.spec);
    input.mask = std::move(converted);
  }
  Json document;
  document["input"] = input.label;
  document["output"] = *output;
  document["mask"] = mask_json(name, input.mask);
  document["mask"]["allowed_pairs"] = statistics.tiles.allowed_pairs;
  document["mask"]["total_pairs"] = statistics.total_pairs;
  const std::string summary = summary_text(*output, name, input.mask, statistics);
  FDMA_TRY_VOID(write_operand(*output, name, std::move(input.mask)));
  if (arguments.has("json")) {
    session.out = json_text(document);
  } else if (!session.quiet) {
    session.out = fmt::format("{}converted from {}\n", summary, input.label);
  }
  return ExitCode::ok;
}

}  // namespace

const Command& convert_command() {
  static const Command command = [] {
    Command made{
        .name = "convert",
        .summary = "any mask, dense HDF5 datasets included, to any format",
        .operands = "INPUT",
        .min_operands = 1,
        .max_operands = 1,
        .description =
            "Reads INPUT, a mask in a file of FDMA (FILE.h5, FILE.h5:NAME, FILE.h5:/masks/NAME) or "
            "a "
            "dense dataset (FILE.h5:/PATH), and writes it in the format and block shape asked for. "
            "Conversions are exact or an error.\n"
            "\n"
            "Dense datasets have 2 to 4 dimensions and are boolean, whole numbers 0 and 1, or "
            "additive floats (0 keeps; -inf and anything at or below --drop-below masks). They are "
            "read in row panels, so that memory stays bounded whatever their size.",
        .options = {{.name = "output",
                     .letter = 'o',
                     .value = "FILE",
                     .help = "The HDF5 file to write.",
                     .takes_file = true},
                    format_option("Format to store (default: that of INPUT; segment for a dense "
                                  "dataset)."),
                    block_option("Block of query rows by keys, multiples of 16 (default: that of "
                                 "INPUT; 128x128 for a dense dataset)."),
                    {.name = "name",
                     .value = "NAME",
                     .help = "Name of the mask in the file (default: that of INPUT, or mask)."}},
        .examples = {{"fdma-maskc convert dense.h5:/mask --format bcsr --block 128x128 -o out.h5",
                      "A dense boolean dataset to block sparse rows:"},
                     {"fdma-maskc convert keep.h5:/attention_mask --dims bk -o padding.h5",
                      "A padding mask [batch, keys] as Hugging Face tokenizers make it:"},
                     {"fdma-maskc convert bias.h5:/bias --dims bqk --drop-below -10000 -o out.h5",
                      "An additive float mask [batch, q, k] that uses -1e4 for minus infinity:"},
                     {"fdma-maskc convert out.h5 --format segment --block 64x64 -o fine.h5",
                      "A compiled mask in smaller blocks:"}},
        .run = run};
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    made.options.push_back(
        {.name = "threads", .value = "N", .help = "Threads to use (default: all cores)."});
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
