// fdma-maskc inspect reports what the masks of a file hold and what they cost in every format.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <variant>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/formats/draw.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "inputs/mask_operand.hpp"
#include "pictures/terminal_cells.hpp"
#include "pictures/terminal_view.hpp"

namespace fdma::maskc {
namespace {

constexpr std::size_t kMaxGroupsPrinted = 16;
constexpr std::size_t kMaxSizesPrinted = 6;

Json bytes_json(const FormatBytes& bytes) {
  Json document;
  for (std::size_t format = 0; format < bytes.size(); ++format) {
    document[std::string(to_string(static_cast<MaskFormat>(format)))] = or_null(bytes[format]);
  }
  return document;
}

Json tiles_json(const TileCounts& tiles) {
  return {{"full", tiles.full}, {"partial", tiles.partial}, {"empty", tiles.empty}};
}

// The patterns of group `group`, as they are stored.
std::span<const TilePattern> patterns_of(const BlockMask& mask, std::int64_t group) {
  const auto* groups = std::get_if<std::vector<SegmentMask>>(&mask.groups);
  if (groups == nullptr) return {};
  return (*groups)[static_cast<std::size_t>(group)].patterns;
}

std::int64_t num_patterns(const BlockMask& mask) {
  std::int64_t count = 0;
  for (std::int64_t g = 0; g < mask.num_groups(); ++g) count += std::ssize(patterns_of(mask, g));
  return count;
}

Json patterns_json(std::span<const TilePattern> patterns) {
  Json list = Json::array();
  for (const TilePattern& pattern : patterns) {
    list.push_back(
        {{"num_rows", pattern.num_rows}, {"num_cols", pattern.num_cols}, {"skew", pattern.skew}});
  }
  return list;
}

double density(std::int64_t allowed, std::int64_t total) {
  return total == 0 ? 0.0 : static_cast<double>(allowed) / static_cast<double>(total);
}

Json inspection_json(const MaskOperand& operand, const MaskStatistics& statistics) {
  Json document = mask_json(operand.name, operand.mask);
  document["allowed_pairs"] = statistics.tiles.allowed_pairs;
  document["total_pairs"] = statistics.total_pairs;
  document["density"] = density(statistics.tiles.allowed_pairs, statistics.total_pairs);
  document["tiles"] = tiles_json(statistics.tiles);
  document["distinct_bitmaps"] = or_null(statistics.distinct_bitmaps);
  document["num_patterns"] = num_patterns(operand.mask);
  document["bytes"] = bytes_json(statistics.bytes);
  document["mask_hash"] = to_string(mask_hash(operand.mask));
  document["groups"] = Json::array();
  std::int64_t number = 0;
  for (const GroupStatistics& group : statistics.groups) {
    document["groups"].push_back({{"first_batch", group.first_batch},
                                  {"first_head", group.first_head},
                                  {"num_pairs", group.num_pairs},
                                  {"q_len", group.q_len},
                                  {"kv_len", group.kv_len},
                                  {"allowed_pairs", group.tiles.allowed_pairs},
                                  {"tiles", tiles_json(group.tiles)},
                                  {"distinct_bitmaps", or_null(group.distinct_bitmaps)},
                                  {"bytes", bytes_json(group.bytes)},
                                  {"patterns", patterns_json(patterns_of(operand.mask, number))}});
    ++number;
  }
  return document;
}

std::string bytes_lines(const FormatBytes& bytes, MaskFormat stored) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto format = static_cast<MaskFormat>(i);
    std::string value = "cannot hold this mask";
    if (bytes[i]) {
      value = fmt::format("{:>14}  {}", count_text(*bytes[i]), bytes_text(*bytes[i]));
    } else if (format != MaskFormat::parametric) {
      value = "not counted (--all counts)";
    } else {
      value = fmt::format("{:>14}  has no such closed form", "-");
    }
    text += fmt::format("  {:<17}{:<11}{}{}\n", i == 0 ? "bytes as" : "", to_string(format), value,
                        format == stored ? "  (stored)" : "");
  }
  return text;
}

// "3: 2 x 3 and 1 x 2 tiles", the sizes by first use.
std::string patterns_text(const BlockMask& mask) {
  std::vector<std::string> sizes;
  for (std::int64_t g = 0; g < mask.num_groups() && sizes.size() <= kMaxSizesPrinted; ++g) {
    for (const TilePattern& pattern : patterns_of(mask, g)) {
      const std::string size = fmt::format("{} x {}", pattern.num_rows, pattern.num_cols);
      if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
      if (sizes.size() > kMaxSizesPrinted) break;
    }
  }
  if (sizes.size() > kMaxSizesPrinted) sizes.back() = "others";
  std::string text = sizes[0];
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    text += (i + 1 < sizes.size() ? ", " : " and ") + sizes[i];
  }
  return fmt::format("{}: {} tiles", count_text(num_patterns(mask)), text);
}

std::string group_lines(const std::vector<GroupStatistics>& groups) {
  std::string text = fmt::format("\n  {:>5} {:>9} {:>7} {:>9} {:>9} {:>17} {:>9} {:>9} {:>9}\n",
                                 "group", "first b,h", "pairs", "q_len", "kv_len", "allowed pairs",
                                 "full", "partial", "empty");
  for (std::size_t g = 0; g < groups.size() && g < kMaxGroupsPrinted; ++g) {
    const GroupStatistics& group = groups[g];
    text += fmt::format("  {:>5} {:>9} {:>7} {:>9} {:>9} {:>17} {:>9} {:>9} {:>9}\n", g,
                        fmt::format("{},{}", group.first_batch, group.first_head), group.num_pairs,
                        group.q_len, group.kv_len, count_text(group.tiles.allowed_pairs),
                        count_text(group.tiles.full), count_text(group.tiles.partial),
                        count_text(group.tiles.empty));
  }
  if (groups.size() > kMaxGroupsPrinted) {
    text += fmt::format("  {} more; --json lists all\n",
                        count_text(static_cast<std::int64_t>(groups.size() - kMaxGroupsPrinted)));
  }
  return text;
}

std::string inspection_text(const MaskOperand& operand, const MaskStatistics& statistics) {
  const BlockMask& mask = operand.mask;
  std::string text = operand.label + "\n";
  const auto line = [&](std::string_view what, const std::string& value) {
    text += fmt::format("  {:<17}{}\n", what, value);
  };
  const std::string lengths = lengths_text(mask.shape);
  const std::size_t cross = lengths.find(" x ");
  line("lengths", fmt::format("q {}, kv {}", lengths.substr(0, cross), lengths.substr(cross + 3)));
  line("batch x heads", fmt::format("{} x {} in {}", mask.shape.num_batches, mask.shape.num_heads,
                                    plural(mask.num_groups(), "group")));
  line("format", fmt::format("{}, {}", to_string(mask.format()), bytes_text(mask.size_bytes())));
  line("block", fmt::format("{} x {}", mask.block.block_q, mask.block.block_kv));
  if (!(mask.origin == MaskOrigin{})) {
    line("crop from",
         fmt::format("q {}, kv {}, batch {}, head {}", mask.origin.q_offset, mask.origin.kv_offset,
                     mask.origin.batch_offset, mask.origin.head_offset));
  }
  if (!mask.spec.empty()) {
    const std::size_t end = mask.spec.find('\n');
    line("spec", mask.spec.substr(0, end) +
                     (end == std::string::npos || end + 1 == mask.spec.size() ? "" : " .."));
  }
  const TileCounts& tiles = statistics.tiles;
  line("allowed pairs", fmt::format("{} of {} ({})", count_text(tiles.allowed_pairs),
                                    count_text(statistics.total_pairs),
                                    percent_text(static_cast<double>(tiles.allowed_pairs),
                                                 static_cast<double>(statistics.total_pairs))));
  line("tiles", fmt::format("{} full, {} partial, {} empty", count_text(tiles.full),
                            count_text(tiles.partial), count_text(tiles.empty)));
  line("distinct bitmaps", statistics.distinct_bitmaps ? count_text(*statistics.distinct_bitmaps)
                                                       : "not counted (--all counts)");
  if (num_patterns(mask) > 0) line("patterns", patterns_text(mask));
  text += bytes_lines(statistics.bytes, mask.format());
  line("content hash", to_string(content_hash(mask)));
  line("mask hash", to_string(mask_hash(mask)));
  if (statistics.groups.size() > 1) text += group_lines(statistics.groups);
  return text;
}

Outcome<InputReport> report_on(const std::string& input, const Arguments& arguments, bool quiet) {
  FDMA_TRY(DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const DrawOptions drawing, draw_options(arguments));
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(input));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  if (!resolved.is_dense && arguments.has("block")) {
    return usage_failure(
        "--block: is for dense datasets; fdma-maskc convert puts a mask into other blocks");
  }
  std::vector<ResolvedAddress> each{resolved};
  if (resolved.names.size() > 1) {
    each.clear();
    for (const std::string& name : resolved.names) {
      each.push_back({resolved.address, false, {name}, {}});
    }
  }
  InputReport report;
  Json& document = report.document;
  document["file"] = resolved.address.file;
  document["masks"] = Json::array();
  for (const ResolvedAddress& one : each) {
    FDMA_TRY(const MaskOperand operand, read_resolved(one, dense, quiet));
    FDMA_TRY(const auto pair, chosen_pair(arguments, operand.mask));
    const MaskStatistics statistics = [&] {
      Progress progress("counting bitmaps", "tiles", quiet);
      return measure(
          operand.mask, arguments.has("all"),
          [&progress](std::int64_t done, std::int64_t total) { progress.update(done, total); });
    }();
    const Waiting waiting("hashing and drawing", quiet);
    if (arguments.has("json")) {
      document["masks"].push_back(inspection_json(operand, statistics));
      continue;
    }
    if (!report.text.empty()) report.text += '\n';
    report.text += inspection_text(operand, statistics);
    if (arguments.has("no-draw")) continue;
    const std::int32_t group = operand.mask.group(pair.first, pair.second);
    report.text += fmt::format("\n{}", draw_on_terminal(operand.mask, group, drawing));
    if (report.text.back() != '\n') report.text += '\n';
  }
  return report;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  return for_each_input(arguments, session, [&](const std::string& input) {
    return report_on(input, arguments, session.quiet);
  });
}

}  // namespace

const Command& inspect_command() {
  static const Command command = [] {
    Command made{
        .name = "inspect",
        .summary = "what a mask holds, what it costs in every format, a drawing",
        .operands = "INPUT..",
        .min_operands = 1,
        .max_operands = kMaxOperands,
        .description =
            "Prints lengths, groups, allowed pairs, tiles by class, distinct bitmaps, bytes in "
            "every "
            "format, both hashes and a drawing of INPUT: every mask of a file, one of them "
            "(FILE.h5:NAME), or a dense dataset (FILE.h5:/PATH). Sizes in other formats are "
            "counted, "
            "not built.\n"
            "\n"
            "The content hash covers everything stored; the mask hash only counts, lengths and "
            "cells, so that it is the same in every format and block shape.\n"
            "\n"
            "Several INPUTs are reported on one after the other; --json then prints one document "
            "{\"files\": [..]}. The exit status is the largest of theirs.",
        .options = {json_option(),
                    {.name = "all",
                     .help = "Count distinct bitmaps also where more than 65536 tiles have to be "
                             "drawn for it."},
                    {.name = "no-draw", .help = "Leave the drawing out."}},
        .examples = {{"fdma-maskc inspect out.h5", "Every mask of a file:"},
                     {"fdma-maskc inspect out.h5:packed --json", "One mask, for a script:"},
                     {"fdma-maskc inspect a.h5 b.h5 --no-draw", "Two files:"},
                     {"fdma-maskc inspect heads.h5 --pair 0,7 --width 60",
                      "With a drawing of head 7:"}},
        .run = run};
    for (const OptionSpec& option : view_options()) made.options.push_back(option);
    made.options.push_back(
        block_option("Blocks in which a dense dataset is read (default 128x128)."));
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
