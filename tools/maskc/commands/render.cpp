// fdma-maskc render: a picture of a mask, as a file (PNG, SVG, HTML) or on the terminal.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/json_output.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/draw.hpp"
#include "inputs/destination.hpp"
#include "inputs/mask_operand.hpp"
#include "pictures/picture_output.hpp"
#include "pictures/terminal_cells.hpp"
#include "pictures/terminal_view.hpp"

namespace fdma::maskc {
namespace {

// "q0:q1,k0:k1". An empty bound means the mask's own.
Outcome<CropRange> crop_range(const std::string& text, const MaskShape& shape, std::int64_t batch,
                              std::int64_t head) {
  CropRange range{0, shape.q_len(batch), 0, shape.kv_len(batch), batch, batch + 1, head, head + 1};
  const auto bad = [&] {
    return usage_failure(fmt::format("--crop: expected Q0:Q1,K0:K1 inside {} x {}, got '{}'",
                                     shape.q_len(batch), shape.kv_len(batch), text));
  };
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) return bad();
  const auto parse = [](const std::string& part, std::int64_t& begin, std::int64_t& end) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos) return false;
    const std::int64_t limit = end;
    for (auto [word, number] :
         {std::pair{part.substr(0, colon), &begin}, {part.substr(colon + 1), &end}}) {
      if (word.empty()) continue;
      const auto value = parse_integer(word);
      if (!value) return false;
      *number = *value;
    }
    return 0 <= begin && begin < end && end <= limit;
  };
  if (!parse(text.substr(0, comma), range.q_begin, range.q_end) ||
      !parse(text.substr(comma + 1), range.kv_begin, range.kv_end)) {
    return bad();
  }
  return range;
}

// The picture of one of several inputs: the * of --output stands for the input's name.
Outcome<std::string> output_of(const Arguments& arguments, const std::string& input) {
  std::string output = arguments.find("output").value_or("-");
  const std::size_t star = output.find('*');
  if (star == std::string::npos) {
    if (output == "-" || arguments.operands().size() == 1) return output;
    return usage_failure(
        fmt::format("--output: expected a name with a *, which stands for the name of each input, "
                    "as '*.png', got '{}' for {} inputs",
                    output, arguments.operands().size()));
  }
  const MaskAddress address = parse_address(input);
  std::string name = std::filesystem::path(address.file).stem().string();
  if (!address.inner.empty()) name += '-' + address.inner.substr(address.inner.rfind('/') + 1);
  output.replace(star, 1, name);
  return output;
}

Outcome<InputReport> report_on(const std::string& input, const Arguments& arguments, bool quiet) {
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const std::string output, output_of(arguments, input));
  const bool is_drawn = output == "-" || arguments.has("terminal");
  InputReport result;
  PictureKind kind = PictureKind::png;
  if (output != "-") {
    FDMA_TRY(kind, picture_kind(output));
    FDMA_TRY_VOID(check_plain_destination(output));
  } else if (arguments.has("json")) {
    return usage_failure("--json describes a picture's file: give --output FILE");
  }
  PictureOptions options;
  options.has_legend = arguments.has("legend");
  options.has_axes = arguments.has("axes");
  options.title = arguments.find("title").value_or("");
  options.quiet = quiet;
  FDMA_TRY(const std::int64_t max_side, arguments.integer("size", options.size, 16, 16384));
  options.size = static_cast<std::int32_t>(max_side);
  if (kind == PictureKind::html && arguments.has("size")) {
    return usage_failure("--size: is for .png and .svg; an HTML page fills its window");
  }
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(input));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  if (!resolved.is_dense && arguments.has("block")) {
    return usage_failure(
        "--block: is for dense datasets; fdma-maskc convert puts a mask into other blocks");
  }
  FDMA_TRY(MaskOperand operand, read_resolved(resolved, dense, quiet));
  FDMA_TRY(const auto pair, chosen_pair(arguments, operand.mask));
  auto [batch, head] = pair;
  const std::pair num_pairs{operand.mask.shape.num_batches, operand.mask.shape.num_heads};
  if (const auto crop_text = arguments.find("crop")) {
    FDMA_TRY(const CropRange range, crop_range(*crop_text, operand.mask.shape, batch, head));
    FDMA_TRY(operand.mask, crop(operand.mask, range));
    batch = head = 0;
  }
  const std::int32_t group = operand.mask.group(batch, head);
  if (is_drawn) {
    FDMA_TRY(const DrawOptions drawing, draw_options(arguments));
    if (arguments.operands().size() > 1) result.text += operand.label + "\n";
    result.text += draw_on_terminal(operand.mask, group, drawing);
    if (!result.text.empty() && result.text.back() != '\n') result.text += '\n';
  }
  if (output == "-") return result;
  const SegmentMask segments = segment_of_group(operand.mask, group, operand.mask.block);
  FDMA_TRY(PendingFile file, open_destination(output));
  Outcome<PictureReport> report =
      write_picture(kind, file.temporary_path(),
                    {segments, operand.mask, operand.label, pair, num_pairs}, options);
  if (!report) {
    return CommandFailure{report.error().exit_code, file.with_destination(report.error().message)};
  }
  FDMA_TRY_VOID(file.commit());
  if (arguments.has("json")) {
    Json& document = result.document;
    document["input"] = operand.label;
    document["output"] = output;
    document["kind"] = to_string(kind);
    document.update(report->members);
  } else if (!quiet) {
    result.text += fmt::format("{}: {}\n", output, report->summary);
  }
  return result;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  std::map<std::string, std::string> inputs;  // by the picture that is made of them
  for (const std::string& input : arguments.operands()) {
    FDMA_TRY(const std::string output, output_of(arguments, input));
    const auto [other, is_new] = inputs.emplace(output, input);
    if (is_new || output == "-") continue;
    return usage_failure(
        fmt::format("--output: {} and {} both give {}", other->second, input, output));
  }
  return for_each_input(arguments, session, [&](const std::string& input) {
    return report_on(input, arguments, session.quiet);
  });
}

}  // namespace

const Command& render_command() {
  static const Command command = [] {
    Command made{
        .name = "render",
        .summary = "a picture of a mask: PNG, SVG, HTML or terminal",
        .operands = "INPUT..",
        .min_operands = 1,
        .max_operands = kMaxOperands,
        .description =
            "Draws INPUT, query rows downwards and keys to the right. Full tiles are blue, empty "
            "ones light grey, partial ones orange. The file's suffix says what is written:\n"
            "\n"
            ".png: pixels. Small masks are drawn cell by cell; larger ones so that a pixel is a "
            "whole number of cells, from light to dark orange by the share of live cells.\n"
            "\n"
            ".svg: outlines. Small masks are drawn cell by cell, larger ones by classes of tiles, "
            "the largest in areas of whole tiles, so that the file stays below 2 MiB or so.\n"
            "\n"
            ".html: a page that zooms and pans from the whole mask down to single cells, in one "
            "file that needs no network. It holds the mask's compact arrays, 64 MiB of them at "
            "most.\n"
            "\n"
            "Without --output the drawing goes to the terminal. Of several INPUTs each is drawn; "
            "the * in --output '*.png' stands for the name of each.",
        .options = {{.name = "output",
                     .letter = 'o',
                     .value = "FILE",
                     .help = "The file to write, FILE.png, FILE.svg or FILE.html; - is the "
                             "terminal drawing.",
                     .takes_file = true},
                    {.name = "terminal",
                     .help = "Draw on the terminal also where --output is given."},
                    {.name = "size",
                     .value = "PIXELS",
                     .help = "Longest side of a PNG or SVG picture, 16 to 16384 (default "
                             "1024)."},
                    {.name = "axes",
                     .help = "Number the query rows and keys along a PNG or SVG picture; a page "
                             "reads out every cell."},
                    {.name = "title",
                     .value = "TEXT",
                     .help = "A line above the picture, or the heading of a page."},
                    {.name = "legend",
                     .help = "Name the colours in a strip below the picture; a page always "
                             "does."},
                    {.name = "crop",
                     .value = "Q0:Q1,K0:K1",
                     .help =
                         "Draw these query rows and keys only; an end left out is the mask's."}},
        .examples = {{"fdma-maskc render out.h5 -o mask.png", "A picture of the whole mask:"},
                     {"fdma-maskc render out.h5 -o mask.html",
                      "A page to zoom and pan in, for any browser:"},
                     {"fdma-maskc render a.h5 b.h5 -o '*.png'", "Pictures a.png and b.png:"},
                     {"fdma-maskc render out.h5", "On the terminal:"},
                     {"fdma-maskc render out.h5 --crop 0:256,0:256 --axes --legend -o corner.png",
                      "Its first 256 rows and keys, cell by cell:"}},
        .run = run};
    for (const OptionSpec& option : view_options()) made.options.push_back(option);
    made.options.push_back(
        block_option("Blocks in which a dense dataset is read (default 128x128)."));
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
