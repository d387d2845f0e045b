// fdma-maskc combine: set operations on masks, shifts, transposition and crops.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/progress.hpp"
#include "cli/usual_words.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "inputs/destination.hpp"
#include "inputs/mask_operand.hpp"
#include "inputs/mask_shape_arguments.hpp"

namespace fdma::maskc {
namespace {

enum class Action { combine, complement, shift, transpose, crop };

struct Operator {
  std::string_view name;
  Action action;
  SetOperation operation;  // of combine
};
constexpr Operator kOperators[] = {
    {"and", Action::combine, SetOperation::intersection},
    {"or", Action::combine, SetOperation::union_of},
    {"xor", Action::combine, SetOperation::symmetric_difference},
    {"minus", Action::combine, SetOperation::difference},
    {"not", Action::complement, {}},
    {"shift", Action::shift, {}},
    {"transpose", Action::transpose, {}},
    {"crop", Action::crop, {}},
};

Outcome<Operator> find_operator(const std::vector<std::string>& operands) {
  const std::string& name = operands.front();
  std::vector<std::string_view> names;
  for (const Operator& known : kOperators) {
    if (known.name == name) return known;
    names.push_back(known.name);
  }
  const bool is_second_operator =
      operands.size() > 1 && std::find(names.begin(), names.end(), operands[1]) != names.end();
  auto guess = nearest(name, names);
  if (const auto usual = usual_value(name);
      usual && std::find(names.begin(), names.end(), *usual) != names.end()) {
    guess = usual;
  }
  return usage_failure(fmt::format(
      "'{}': expected an operator, one of {}{}", name, fmt::join(names.begin(), names.end(), ", "),
      guess                ? fmt::format("; did you mean {}?", *guess)
      : is_second_operator ? fmt::format("; it comes first: combine {} {} ..", operands[1], name)
                           : std::string()));
}

// The operator has as many masks as it takes, and no option that it does not use.
Status check_usage(const Operator& op, const Arguments& arguments) {
  const std::size_t num_masks = arguments.operands().size() - 1;
  const std::size_t expected = op.action == Action::combine ? 2 : 1;
  if (num_masks != expected) {
    return usage_failure(fmt::format("{}: expected {}, got {}", op.name,
                                     expected == 1 ? "one mask" : "two masks", num_masks));
  }
  for (const auto& [option, action] :
       {std::pair{"by", Action::shift}, std::pair{"crop", Action::crop}}) {
    if (op.action == action && !arguments.has(option)) {
      return usage_failure(fmt::format("--{}: expected {}, got nothing", option,
                                       action == Action::shift ? "DQ,DK" : "Q0:Q1,K0:K1"));
    }
    if (op.action != action && arguments.has(option)) {
      return usage_failure(fmt::format("--{}: goes with {}, not with {}", option,
                                       action == Action::shift ? "shift" : "crop", op.name));
    }
  }
  return Nothing{};
}

Outcome<std::pair<std::int64_t, std::int64_t>> distances(const Arguments& arguments) {
  FDMA_TRY(const std::vector<std::int64_t> by, arguments.integers("by", -kMaxLength, kMaxLength));
  if (by.size() == 2) return std::pair{by[0], by[1]};
  return usage_failure(
      fmt::format("--by: expected two whole numbers DQ,DK, got '{}'", *arguments.find("by")));
}

// "Q0:Q1,K0:K1" or "Q0:Q1,K0:K1,B0:B1,H0:H1". Any bound of a range may be left out. Without the
// last two ranges the crop covers every batch element and head.
Outcome<CropRange> crop_range(const std::string& text, const MaskShape& shape) {
  CropRange range{0, *std::min_element(shape.q_lens.begin(), shape.q_lens.end()),
                  0, *std::min_element(shape.kv_lens.begin(), shape.kv_lens.end()),
                  0, shape.num_batches,
                  0, shape.num_heads};
  const auto parse = [](std::string_view part, std::int64_t& begin, std::int64_t& end) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) return false;
    for (const auto& [word, value] :
         {std::pair{part.substr(0, colon), &begin}, std::pair{part.substr(colon + 1), &end}}) {
      if (word.empty()) continue;
      const auto number = parse_integer(word);
      if (!number) return false;
      *value = *number;
    }
    return true;
  };
  const std::pair<std::int64_t*, std::int64_t*> bounds[] = {{&range.q_begin, &range.q_end},
                                                            {&range.kv_begin, &range.kv_end},
                                                            {&range.batch_begin, &range.batch_end},
                                                            {&range.head_begin, &range.head_end}};
  std::string_view rest = text;
  std::size_t num_ranges = 0;
  bool is_valid = true;
  for (bool is_last = false; is_valid && !is_last; ++num_ranges) {
    const std::size_t comma = rest.find(',');
    is_last = comma == std::string_view::npos;
    is_valid = num_ranges < std::size(bounds) &&
               parse(rest.substr(0, comma), *bounds[num_ranges].first, *bounds[num_ranges].second);
    if (!is_last) rest = rest.substr(comma + 1);
  }
  if (!is_valid || (num_ranges != 2 && num_ranges != 4)) {
    return usage_failure(
        fmt::format("--crop: expected Q0:Q1,K0:K1 or Q0:Q1,K0:K1,B0:B1,H0:H1, got '{}'", text));
  }
  return range;
}

struct Request {
  Operator op;
  SetAlgebraOptions options;
  std::pair<std::int64_t, std::int64_t> by;  // the distances of shift
};

Outcome<Request> read_request(const Arguments& arguments) {
  Request request{};
  FDMA_TRY(request.op, find_operator(arguments.operands()));
  FDMA_TRY_VOID(check_usage(request.op, arguments));
  if (request.op.action == Action::shift) {
    FDMA_TRY(request.by, distances(arguments));
  }
  if (arguments.has("block")) {
    FDMA_TRY(request.options.block, arguments.block({}));
  }
  if (arguments.has("format")) {
    FDMA_TRY(request.options.format, arguments.format(MaskFormat::segment));
  }
  return request;
}

// `range` is used by crop only.
Result<BlockMask> apply(const Request& request, const CropRange& range,
                        const std::vector<MaskOperand>& masks) {
  const BlockMask& a = masks.front().mask;
  const SetAlgebraOptions& options = request.options;
  switch (request.op.action) {
    case Action::combine:
      return combine(a, masks.back().mask, request.op.operation, options);
    case Action::complement:
      return complement(a, options);
    case Action::shift:
      return shift(a, request.by.first, request.by.second, options);
    case Action::transpose:
      return transpose(a, options);
    case Action::crop:
      break;
  }
  FDMA_TRY(const BlockMask cut, crop(a, range));
  return convert(cut, options.format.value_or(MaskFormat::segment),
                 options.block.value_or(a.block));
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  const auto output = arguments.find("output");
  if (!output) return usage_failure("--output: expected the file to write, got nothing");
  FDMA_TRY(Request request, read_request(arguments));
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  // The destination is checked first, so that a place that cannot be written fails before the
  // reading.
  FDMA_TRY(const ResolvedAddress first, resolve_address(arguments.operands()[1]));
  const std::string name = arguments.find("name").value_or(name_of(first));
  FDMA_TRY_VOID(check_mask_destination(*output, name, arguments.has("force")));
  std::vector<MaskOperand> masks;
  for (std::size_t i = 1; i < arguments.operands().size(); ++i) {
    FDMA_TRY(MaskOperand mask, read_operand(arguments.operands()[i], dense, session.quiet));
    masks.push_back(std::move(mask));
    if (!arguments.has("block")) dense.block = masks.front().mask.block;
  }
  FDMA_TRY_VOID(check_dense_options(
      arguments, std::any_of(masks.begin(), masks.end(),
                             [](const MaskOperand& mask) { return mask.is_dense; })));
  const bool is_quiet = session.quiet || arguments.has("verbose");
  // The groups of a mask with several groups give a measure of progress. A mask with one group has
  // none.
  const bool has_groups = std::any_of(masks.begin(), masks.end(), [](const MaskOperand& mask) {
    return mask.mask.num_groups() > 1;
  });
  const Waiting waiting("combining", is_quiet || has_groups);
  Progress progress("combining", "masks", is_quiet || !has_groups);
  CropRange range{};
  if (request.op.action == Action::crop) {
    FDMA_TRY(range, crop_range(*arguments.find("crop"), masks.front().mask.shape));
  }
  request.options.progress = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
  };
  FDMA_TRY(BlockMask result, apply(request, range, masks));
  const MaskStatistics statistics = count(result, result.block);
  Json document;
  document["operator"] = request.op.name;
  document["inputs"] = Json::array();
  for (const MaskOperand& mask : masks) document["inputs"].push_back(mask.label);
  document["output"] = *output;
  document["mask"] = mask_json(name, result);
  document["mask"]["allowed_pairs"] = statistics.tiles.allowed_pairs;
  document["mask"]["total_pairs"] = statistics.total_pairs;
  const std::string summary = summary_text(*output, name, result, statistics);
  FDMA_TRY(const AddedMasks added,
           write_to_mask_file(*output, name, std::move(result), arguments.has("force")));
  document["output_masks"] = added.names;
  if (arguments.has("json")) {
    session.out = json_text(document);
  } else if (!session.quiet) {
    session.out = summary + added_text(*output, added);
    session.out +=
        masks.size() == 1
            ? fmt::format("{} of {}\n", request.op.name, masks.front().label)
            : fmt::format("{} {} {}\n", masks.front().label, request.op.name, masks.back().label);
  }
  return ExitCode::ok;
}

}  // namespace

const Command& combine_command() {
  static const Command command = [] {
    Command made{
        .name = "combine",
        .summary = "and, or, xor, minus, not of masks; shifts, transposition, crops",
        .operands = "OPERATOR A [B]",
        .min_operands = 2,
        .max_operands = 3,
        .description =
            "Makes a mask of one or two others. A and B may have any formats and block shapes, and "
            "either may be a dense dataset. Structure is combined, not cells: closed forms stay "
            "closed, whatever the lengths.\n"
            "\n"
            "and, or, xor, minus: of A and B, whose lengths must be equal; one batch element or "
            "one head serves all of the other mask. not: the pairs that exist and are not in A. "
            "shift: A moved by --by DQ,DK query rows and keys; what comes in from outside is "
            "masked, lengths stay. transpose: query rows and keys swapped. crop: the part --crop "
            "Q0:Q1,K0:K1 as a mask of its own, with B0:B1,H0:H1 of some batch elements and heads.\n"
            "\n"
            "Whether two masks are equal, and where they differ, is what diff says.",
        .options = {{.name = "output",
                     .letter = 'o',
                     .value = "FILE",
                     .help = "The HDF5 file to write; a mask file that is there keeps its other "
                             "masks.",
                     .takes_file = true},
                    force_masks_option(),
                    {.name = "by",
                     .value = "DQ,DK",
                     .help = "shift: query rows and keys to move by, either of any sign: --by=-1,0 "
                             "moves every row up by one."},
                    {.name = "crop",
                     .value = "Q0:Q1,K0:K1[,B0:B1,H0:H1]",
                     .help = "crop: query rows [Q0, Q1) and keys [K0, K1), and batch elements "
                             "[B0, B1) and heads [H0, H1); a bound left out is that of the "
                             "(shortest) mask."},
                    format_option("Format to store (default: segment)."),
                    block_option("Block of query rows by keys, multiples of 16 (default: that of "
                                 "A, for transpose with its sides swapped)."),
                    {.name = "name",
                     .value = "NAME",
                     .help = "Name of the mask in the file (default: that of A, or mask)."}},
        .examples = {{"fdma-maskc combine and packed.h5 dense.h5:/mask -o both.h5",
                      "What a compiled mask and a dense dataset both allow:"},
                     {"fdma-maskc combine minus all.h5:global all.h5:local --name far -o far.h5",
                      "What one mask of a file allows and another does not:"},
                     {"fdma-maskc combine not packed.h5 --format bcsr -o dropped.h5",
                      "The pairs that a mask drops, as block sparse rows:"},
                     {"fdma-maskc combine shift packed.h5 --by=0,1 -o later.h5",
                      "Every key one place later:"},
                     {"fdma-maskc combine transpose packed.h5 -o turned.h5",
                      "The mask of the keys, who look at the queries:"},
                     {"fdma-maskc combine crop packed.h5 --crop 4096:,: -o chunk.h5",
                      "The second half of the query rows:"},
                     {"fdma-maskc combine crop heads.h5 --crop :,:,:,3:4 -o head.h5",
                      "Head 3 by itself, of every batch element:"},
                     {"fdma-maskc combine xor a.h5 b.h5 -o changed.h5",
                      "The pairs in which two masks differ:"}},
        .run = run};
    for (const Operator& known : kOperators) made.first_operands.push_back(known.name);
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
