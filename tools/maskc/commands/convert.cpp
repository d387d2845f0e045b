// fdma-maskc convert: any mask, dense datasets and arrays of other systems included, to any format.
#include "fdma/formats/convert.hpp"

#include <fmt/format.h>

#include <optional>

#include "cli/arguments.hpp"
#include "cli/file_reading.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "cli/work_limits.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/io/interop_group.hpp"
#include "fdma/masks/lower.hpp"
#include "inputs/destination.hpp"
#include "inputs/mask_operand.hpp"
#include "inputs/mask_shape_arguments.hpp"
#include "inputs/spec_source.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

// The mask that holds the cells of another system's partial tiles: --cells or --spec.
Outcome<std::optional<BlockMask>> read_cells(const Arguments& arguments, const MaskShape& shape,
                                             bool quiet) {
  if (const auto cells = arguments.find("cells")) {
    FDMA_TRY(const DenseReadOptions dense, dense_read_options(arguments));
    FDMA_TRY(MaskOperand operand, read_operand(*cells, dense, quiet));
    return std::optional<BlockMask>(std::move(operand.mask));
  }
  const auto text = arguments.find("spec");
  if (!text) return std::optional<BlockMask>{};
  FDMA_TRY(const SpecSource source, read_spec(*text));
  FDMA_TRY(const MaskExpr expr, parse_spec(source));
  FDMA_TRY(const OwnedTables tables,
           read_tables(arguments.all("table"), expr, arguments.has("cast")));
  const Tables views = tables.views();
  MaskShape bound = shape;
  // An expression without b and h is compiled once for all batch elements and heads.
  if (!mentions_variable(expr, "b") && tables.owned.empty()) bound.num_batches = 1;
  if (!mentions_variable(expr, "h") && tables.owned.empty()) bound.num_heads = 1;
  FDMA_TRY(const std::int64_t threads, arguments.threads());
  LowerOptions options;
  options.num_threads = static_cast<int>(threads);
  FDMA_TRY(options.max_work, max_work_of(arguments));
  FDMA_TRY(BlockMask mask, fdma::compile(expr, views, bound, options));
  mask.spec = source.text;
  return std::optional<BlockMask>(std::move(mask));
}

Outcome<MaskOperand> read_interop(const InteropFormat& interop, const Arguments& arguments,
                                  bool quiet) {
  const std::string& text = arguments.operands().front();
  const MaskAddress address = parse_address(text);
  if (address.inner.empty()) {
    return usage_failure(
        fmt::format("'{}': expected FILE.h5:/GROUP, the group that holds the "
                    "arrays of '{}'",
                    text, interop.name));
  }
  InteropReadOptions options;
  if (arguments.has("block")) {
    FDMA_TRY(options.block, arguments.block({}));
  }
  options.cells = [&](const MaskShape& shape) { return read_cells(arguments, shape, quiet); };
  const Waiting waiting("importing", quiet || arguments.has("verbose"));
  FDMA_TRY(const InteropGroup arrays, read_interop_file(address.file, address.inner));
  Outcome<BlockMask> mask = interop.read(arrays, options);
  const bool is_slashed = address.inner.front() == '/';
  MaskOperand input;
  input.label = fmt::format("{}:{}{}", address.file, is_slashed ? "" : "/", address.inner);
  if (!mask) {
    CommandFailure failure = std::move(mask).error();
    failure.message = fmt::format("{}: {}", input.label, failure.message);
    return failure;
  }
  input.name = "mask";
  input.mask = *std::move(mask);
  return input;
}

// The group that --to writes: "/block_mask".
std::string group_of(const InteropFormat& interop, const Arguments& arguments) {
  std::string group = arguments.find("name").value_or(std::string(interop.group));
  if (!group.empty() && group.front() != '/') group.insert(0, "/");
  return group;
}

// This check runs first, so that a destination that cannot be written fails before the reading.
Status check_output(const Arguments& arguments, const InteropFormat* to, const std::string& name) {
  const std::string output = *arguments.find("output");
  if (to == nullptr) {
    return check_mask_destination(output, arguments.find("name").value_or(name),
                                  arguments.has("force"));
  }
  const std::string group = group_of(*to, arguments);
  return check_result_destination(
      output, fmt::format("the arrays of {}", group),
      [&](const std::string& dataset) { return dataset.starts_with(group + "/"); },
      arguments.has("force"));
}

Outcome<MaskOperand> read_input(const Arguments& arguments, const InteropFormat* interop,
                                const InteropFormat* to, bool quiet) {
  if (interop != nullptr) {
    FDMA_TRY_VOID(check_output(arguments, to, "mask"));
    return read_interop(*interop, arguments, quiet);
  }
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(arguments.operands().front()));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  FDMA_TRY_VOID(check_output(arguments, to, name_of(resolved)));
  return read_resolved(resolved, dense, quiet);
}

// Refuses options that the chosen conversion does not use.
Status check_options(const Arguments& arguments, const InteropFormat* from,
                     const InteropFormat* to) {
  for (const char* option : {"cells", "spec"}) {
    if (!arguments.has(option) || (from != nullptr && from->takes_cells)) continue;
    return usage_failure(
        fmt::format("--{}: says what the partial tiles of a peer's arrays hold, "
                    "which only --from flex needs",
                    option));
  }
  if (arguments.has("cells") && arguments.has("spec")) {
    return usage_failure("--cells, --spec: give one of the two");
  }
  if (arguments.has("table") && !arguments.has("spec")) {
    return usage_failure("--table: is for the specification of --spec, but there is none");
  }
  if (from != nullptr && !arguments.has("cells")) {
    FDMA_TRY_VOID(check_dense_options(arguments, false));
  }
  if (to != nullptr && arguments.has("format")) {
    return usage_failure("--format, --to: give one of the two");
  }
  return Nothing{};
}

Outcome<ExitCode> export_interop(const InteropFormat& interop, const MaskOperand& input,
                                 const Arguments& arguments, Session& session) {
  const std::string output = *arguments.find("output");
  const BlockMask& mask = input.mask;
  FDMA_TRY(const BlockShape block, arguments.block(mask.block));
  const std::string group = group_of(interop, arguments);
  const Waiting waiting("exporting", session.quiet || arguments.has("verbose"));
  FDMA_TRY(const InteropGroup arrays, interop.write(mask, {block}));
  Json document;
  document["input"] = input.label;
  document["output"] = output;
  Json& written = document["peer"];
  written["format"] = interop.name;
  written["group"] = group;
  written["arrays"] = Json::array();
  std::string lines;
  std::int64_t bytes = 0;
  for (const auto& [name, array] : arrays.arrays) {
    const std::vector<std::int64_t> extents(array.extents, array.extents + array.rank);
    const std::string type(to_string(array.dtype));
    written["arrays"].push_back({{"name", name}, {"dtype", type}, {"extents", extents}});
    lines += fmt::format("  {:<20} {} [{}]\n", name, type, fmt::join(extents, ", "));
    bytes += static_cast<std::int64_t>(array.bytes.size());
  }
  written["bytes"] = bytes;
  FDMA_TRY_VOID(write_interop_group(output, group, arrays));
  if (arguments.has("json")) {
    session.out = json_text(document);
  } else if (!session.quiet) {
    session.out = fmt::format("{}:{}\n  {}, {}\n{}  converted from {}\n", output, group,
                              interop.name, bytes_text(bytes), lines, input.label);
  }
  return ExitCode::ok;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  const auto output = arguments.find("output");
  if (!output) return usage_failure("--output: expected the file to write, got nothing");
  const InteropFormat* from = find_interop_format(arguments.find("from").value_or(""));
  const InteropFormat* to = find_interop_format(arguments.find("to").value_or(""));
  FDMA_TRY_VOID(check_options(arguments, from, to));
  FDMA_TRY([[maybe_unused]] const DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(MaskOperand input, read_input(arguments, from, to, session.quiet));
  if (to != nullptr) return export_interop(*to, input, arguments, session);
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
  FDMA_TRY(const AddedMasks added,
           write_to_mask_file(*output, name, std::move(input.mask), arguments.has("force")));
  document["output_masks"] = added.names;
  if (arguments.has("json")) {
    session.out = json_text(document);
  } else if (!session.quiet) {
    session.out =
        fmt::format("{}{}converted from {}\n", summary, added_text(*output, added), input.label);
  }
  return ExitCode::ok;
}

constexpr std::string_view kDescription =
    "Reads INPUT, a mask in a file of FDMA (FILE.h5, FILE.h5:NAME, FILE.h5:/masks/NAME) or "
    "a "
    "dense dataset (FILE.h5:/PATH), and writes it in the format and block shape asked for. "
    "Conversions are exact or an error. With --from, INPUT is a group (FILE.h5:/GROUP) "
    "that holds the arrays of another system; --to writes such a group.\n"
    "\n"
    "Dense datasets have 2 to 4 dimensions and are boolean, whole numbers 0 and 1, or "
    "additive floats (0 keeps; -inf and anything at or below --drop-below masks). They are "
    "read in row panels, so that memory stays bounded whatever their size.";

OptionSpec interop_option(std::string_view name, std::string_view help) {
  return {.name = name, .value = "LAYOUT", .help = help, .choices = interop_format_names()};
}

// "flex: PyTorch FlexAttention ..": a paragraph of the help.
std::string interop_text() {
  std::string text =
      "Layouts of other systems, as groups of an HDF5 file (fdma-maskc help peers): ";
  std::string_view separator;
  for (const InteropFormat* interop : all_interop_formats()) {
    text += fmt::format("{}{}, {}", separator, interop->name, interop->summary);
    separator = "; ";
  }
  return text + ".";
}

}  // namespace

const Command& convert_command() {
  static const Command command = [] {
    static const std::string description = std::string(kDescription) + "\n\n" + interop_text();
    Command made{
        .name = "convert",
        .summary = "any mask, dense HDF5 datasets included, to any format",
        .operands = "INPUT",
        .min_operands = 1,
        .max_operands = 1,
        .description = description,
        .options = {{.name = "output",
                     .letter = 'o',
                     .value = "FILE",
                     .help = "The HDF5 file to write; a mask file that is there keeps its other "
                             "masks, and arrays of --to are replaced by those of the same group.",
                     .takes_file = true},
                    {.name = "force",
                     .help = "Replace a mask of that name that FILE holds already, or a FILE that "
                             "holds no masks (with --to: other things); without it they are "
                             "errors."},
                    format_option("Format to store (default: that of INPUT; segment for a dense "
                                  "dataset)."),
                    block_option("Block of query rows by keys, multiples of 16 (default: that of "
                                 "INPUT; 128x128 for a dense dataset)."),
                    {.name = "name",
                     .value = "NAME",
                     .help = "Name of the mask in the file (default: that of INPUT, or mask); with "
                             "--to, the group's path (default: after the layout)."},
                    interop_option("from", "INPUT is a group with the arrays of this layout."),
                    {.name = "cells",
                     .value = "INPUT",
                     .help = "With --from flex: the mask that holds the cells of partial tiles, "
                             "compiled or dense. Every listed tile is checked against it.",
                     .takes_file = true},
                    {.name = "spec",
                     .letter = 's',
                     .value = "SPEC",
                     .help = "With --from flex: the same as a specification, compiled for the "
                             "lengths, batch elements and heads of INPUT.",
                     .takes_file = true},
                    table_option(),
                    cast_option(),
                    interop_option("to",
                                   "Write the arrays of this layout instead of a mask file.")},
        .examples = {{"fdma-maskc convert dense.h5:/mask --format bcsr --block 128x128 -o out.h5",
                      "A dense boolean dataset to block sparse rows:"},
                     {"fdma-maskc convert keep.h5:/attention_mask --dims bk -o padding.h5",
                      "A padding mask [batch, keys] as Hugging Face tokenizers make it:"},
                     {"fdma-maskc convert bias.h5:/bias --dims bqk --drop-below -10000 -o out.h5",
                      "An additive float mask [batch, q, k] that uses -1e4 for minus infinity:"},
                     {"fdma-maskc convert dense.h5:/mask --to flex -o flex.h5",
                      "The arrays of FlexAttention's BlockMask, for h5py:"},
                     {"fdma-maskc convert flex.h5:/block_mask --from flex --cells dense.h5:/mask "
                      "\\\n  --format bcsr -o out.h5",
                      "Such arrays to a mask, the cells of partial tiles from a dense mask:"},
                     {"fdma-maskc convert varlen.h5:/cu_seqlens --from cu_seqlens -o out.h5",
                      "FlashAttention's packed sequences and window:"},
                     {"fdma-maskc convert out.h5 --format segment --block 64x64 -o fine.h5",
                      "A compiled mask in smaller blocks:"}},
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
