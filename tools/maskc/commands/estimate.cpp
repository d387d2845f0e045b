// fdma-maskc estimate predicts what a mask costs on a device and what it saves, without running it.
#include "fdma/kernels/estimate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "inputs/mask_operand.hpp"
#include "run/attention_input.hpp"
#include "run/device_argument.hpp"

namespace fdma::maskc {
namespace {

constexpr std::int64_t kMaxHeads = 65536;
constexpr std::int64_t kDefaultHeads = 32;
constexpr std::int64_t kDefaultHeadDim = 128;

Json reason_json(const std::string& reason) {
  return reason.empty() ? Json(nullptr) : Json(reason);
}

Json tile_json(BlockShape tile) { return {{"q", tile.block_q}, {"kv", tile.block_kv}}; }

std::string tile_text(BlockShape tile) {
  return fmt::format("{} x {}", tile.block_q, tile.block_kv);
}

/// The number of batch elements or heads. The mask fixes it unless the mask has only 1.
Outcome<std::int64_t> extent(const Arguments& arguments, std::string_view name,
                             std::int64_t of_mask, std::int64_t fallback) {
  FDMA_TRY(const std::int64_t value,
           arguments.integer(name, of_mask == 1 ? fallback : of_mask, 1, kMaxHeads));
  if (of_mask != 1 && value != of_mask) {
    return usage_failure(
        fmt::format("--{}: the mask has {} of its own, got {}", name, of_mask, value));
  }
  return value;
}

Outcome<AttentionShape> read_shape(const Arguments& arguments, const MaskShape& mask) {
  AttentionShape shape;
  FDMA_TRY(const std::int64_t heads, extent(arguments, "heads", mask.num_heads, kDefaultHeads));
  FDMA_TRY(shape.batch, extent(arguments, "batch", mask.num_batches, 1));
  FDMA_TRY(const std::int64_t heads_kv, arguments.integer("heads-kv", heads, 1, heads));
  if (heads % heads_kv != 0) {
    return usage_failure(
        fmt::format("--heads-kv: expected a divisor of --heads {}, got {}", heads, heads_kv));
  }
  FDMA_TRY(const std::int64_t head_dim,
           arguments.integer("head-dim", kDefaultHeadDim, 1, kMaxHeadDim));
  FDMA_TRY(const std::int64_t head_dim_v,
           arguments.integer("head-dim-v", head_dim, 1, kMaxHeadDim));
  FDMA_TRY(const DType dtype, parse_attention_dtype(arguments.find("dtype").value_or("bf16")));
  shape.heads_q = static_cast<std::int32_t>(heads);
  shape.heads_kv = static_cast<std::int32_t>(heads_kv);
  shape.q_lens = mask.q_lens;
  shape.kv_lens = mask.kv_lens;
  shape.head_dim = static_cast<std::int32_t>(head_dim);
  shape.head_dim_v = static_cast<std::int32_t>(head_dim_v);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  return shape;
}

Outcome<EstimateOptions> read_options(const Arguments& arguments) {
  EstimateOptions options;
  FDMA_TRY(options.direction, parse_direction(arguments.find("direction").value_or("forward")));
  FDMA_TRY(options.columns, parse_column_mode(arguments.find("columns").value_or("automatic")));
  if (const auto tile = arguments.find("tile")) {
    const std::size_t cross = tile->find('x');
    const auto q = parse_integer(tile->substr(0, cross));
    const auto kv = cross == std::string::npos ? q : parse_integer(tile->substr(cross + 1));
    const bool is_tile =
        q && kv && std::max(*q, *kv) <= kMaxBlockSide &&
        validate(BlockShape{static_cast<std::int32_t>(*q), static_cast<std::int32_t>(*kv)});
    if (!is_tile) {
      return usage_failure(fmt::format(
          "--tile: expected QxK, both multiples of 16 from 16 to {}, as 128x128; got '{}'",
          kMaxBlockSide, *tile));
    }
    options.tile = {static_cast<std::int32_t>(*q), static_cast<std::int32_t>(*kv)};
  }
  FDMA_TRY(const std::int64_t workers, arguments.integer("workers", 0, 1, 1 << 20));
  options.num_workers = static_cast<std::int32_t>(workers);
  options.count_all = arguments.has("all");
  if (const auto score = arguments.find("score")) {
    FDMA_TRY(options.score, parse_score(*score));
  }
  options.score.softcap = options.score.softcap || arguments.has("softcap");
  return options;
}

Json time_json(const PlanEstimate& estimate) {
  return {{"time_us", estimate.time_us},
          {"sustained_time_us", estimate.sustained_time_us},
          {"makespan_us", estimate.schedule.makespan_us},
          {"memory_us", estimate.memory_us},
          {"launch_us", estimate.launch_us},
          {"query_us", estimate.query_us},
          {"busy_us", estimate.schedule.busy_us},
          {"longest_item_us", estimate.schedule.longest_item_us},
          {"load_balance", estimate.schedule.balance()},
          {"num_items", estimate.schedule.num_work_tiles},
          {"memory_bytes", estimate.memory_bytes},
          {"memory_bound", estimate.is_memory_bound()},
          {"computed_cells", estimate.work.cells()}};
}

Json decision_json(const PlanDecision& decision) {
  Json document{{"subject", decision.subject},
                {"taken", decision.alternatives[decision.taken].name},
                {"alternatives", Json::array()},
                {"rule", reason_json(decision.rule)}};
  for (const PlanAlternative& each : decision.alternatives) {
    document["alternatives"].push_back({{"name", each.name},
                                        {"cost_us", or_null(each.cost_us)},
                                        {"reason", reason_json(each.reason)}});
  }
  return document;
}

Json report_json(const MaskOperand& operand, const SavingsReport& report) {
  const AttentionShape& shape = report.shape;
  Json document;
  document["mask"] = mask_json(operand.name, operand.mask);
  document["device"] = {{"name", report.device},
                        {"provisional", report.is_provisional},
                        {"assumed", report.is_assumed},
                        {"num_workers", report.num_workers}};
  document["direction"] = to_string(report.direction);
  document["shape"] = {{"batch", shape.batch},           {"heads_q", shape.heads_q},
                       {"heads_kv", shape.heads_kv},     {"head_dim", shape.head_dim},
                       {"head_dim_v", shape.head_dim_v}, {"dtype", to_string(shape.k_dtype)}};
  document["tile"] = tile_json(report.tile);
  document["columns"] = to_string(report.columns);
  document["score"] = part_names(report.score);
  document["speedup"] = report.speedup;
  document["masked"] = time_json(report.masked);
  document["full"] = time_json(report.dense);
  document["flops"] = report.flops;
  document["full_flops"] = report.dense_flops;
  document["allowed_pairs"] = report.allowed_pairs;
  document["total_pairs"] = report.total_pairs;
  document["tiles"] = {{"full", report.full_tiles},
                       {"partial", report.partial_tiles},
                       {"empty", report.empty_tiles}};
  document["partial_dead_cells"] = report.partial_dead_cells;
  document["wasted_share"] = report.wasted_share;
  const PlanCounts& counts = report.counts;
  document["plan"] = {
      {"full_tiles", counts.full_tiles},         {"bitmap_tiles", counts.bitmap_tiles},
      {"row_tiles", counts.row_tiles},           {"column_tiles", counts.column_tiles},
      {"column_entries", counts.column_entries}, {"gather_chunks", counts.gather_chunks},
      {"gather_entries", counts.gather_entries}, {"moved_keys", counts.moved_keys},
      {"empty_items", counts.empty_items},       {"bytes", report.plan_bytes}};
  document["choices"] = Json::array();
  for (const PlanDecision& decision : report.choices.decisions) {
    document["choices"].push_back(decision_json(decision));
  }
  document["formats"] = Json::array();
  for (const FormatSize& size : report.formats) {
    document["formats"].push_back({{"format", to_string(size.format)},
                                   {"bytes", or_null(size.bytes)},
                                   {"reason", reason_json(size.reason)}});
  }
  document["dense_bytes"] = {{"bit", report.dense_bit_bytes},
                             {"bool", report.dense_bool_bytes},
                             {"float", report.dense_float_bytes}};
  document["best_format"] = to_string(report.best_format);
  document["candidates"] = Json::array();
  for (const Candidate& candidate : report.candidates) {
    document["candidates"].push_back({{"tile", tile_json(candidate.tile)},
                                      {"columns", to_string(candidate.columns)},
                                      {"time_us", or_null(candidate.time_us)},
                                      {"reason", reason_json(candidate.reason)}});
  }
  return document;
}

std::string time_text(double us) { return duration_text(us * 1e-6); }

std::string flops_text(double flops) {
  const char* unit = "FLOP";
  for (const char* next : {"KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"}) {
    if (flops < 1000) break;
    flops /= 1000;
    unit = next;
  }
  return fmt::format("{:.3g} {}", flops, unit);
}

std::string rate_text(double flops, double us) {
  return us > 0 ? flops_text(flops / us * 1e6) + "/s" : "-";
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// 100 * (1 - bytes / whole) in percent with four decimals; empty if `whole` is 0.
std::string savings_text(std::int64_t bytes, std::int64_t whole) {
  if (whole == 0) return "";
  return fmt::format("{:.4f} %",
                     100 * (1 - static_cast<double>(bytes) / static_cast<double>(whole)));
}

/// The lines of a report: a name on the left, its value on the right.
class Lines {
 public:
  void add(std::string_view what, const std::string& value) {
    text_ += fmt::format("  {:<17}{}\n", what, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_times(const SavingsReport& report, Lines& lines) {
  const Schedule& schedule = report.masked.schedule;
  lines.add("time", fmt::format("{}, {}{}", time_text(report.masked.time_us),
                                rate_text(report.flops, report.masked.time_us),
                                report.masked.is_memory_bound() ? ", bound by memory" : ""));
  lines.add("full attention", fmt::format("{}, {}", time_text(report.dense.time_us),
                                          rate_text(report.dense_flops, report.dense.time_us)));
  lines.add("speed-up", fmt::format("{:.2f}x", report.speedup));
  lines.add("operations",
            fmt::format("{} of {}", flops_text(report.flops), flops_text(report.dense_flops)));
  lines.add("load balance", fmt::format("{}; {} on {}, the longest {}", percent(schedule.balance()),
                                        plural(schedule.num_work_tiles, "work tile"),
                                        plural(schedule.num_workers, "worker"),
                                        time_text(schedule.longest_item_us)));
  lines.add("memory traffic", bytes_text(report.masked.memory_bytes));
}

void add_counts(const SavingsReport& report, Lines& lines) {
  lines.add("allowed pairs", fmt::format("{} of {} ({})", count_text(report.allowed_pairs),
                                         count_text(report.total_pairs),
                                         percent_text(static_cast<double>(report.allowed_pairs),
                                                      static_cast<double>(report.total_pairs))));
  lines.add("tiles", fmt::format("{} full, {} partial, {} empty of {}",
                                 count_text(report.full_tiles), count_text(report.partial_tiles),
                                 count_text(report.empty_tiles), tile_text(report.tile)));
  lines.add("masked in tiles",
            fmt::format("{} cells of partial tiles", count_text(report.partial_dead_cells)));
  lines.add("wasted work", fmt::format("{} of the cells computed", percent(report.wasted_share)));
  lines.add("plan", bytes_text(report.plan_bytes));
}

std::string alternative_text(const PlanAlternative& alternative) {
  std::string text = alternative.name;
  if (alternative.cost_us) text += " " + time_text(*alternative.cost_us);
  if (!alternative.reason.empty()) text += fmt::format(" ({})", alternative.reason);
  return text;
}

/// One line for each choice of the plan: what was taken, then what was not.
void add_choices(const SavingsReport& report, Lines& lines) {
  for (const PlanDecision& decision : report.choices.decisions) {
    std::string value = fmt::format("{}: {}", decision.subject,
                                    alternative_text(decision.alternatives[decision.taken]));
    const char* separator = "; not ";
    for (std::size_t i = 0; i < decision.alternatives.size(); ++i) {
      if (i == decision.taken) continue;
      value += separator + alternative_text(decision.alternatives[i]);
      separator = ", ";
    }
    lines.add(&decision == &report.choices.decisions.front() ? "choices" : "", value);
  }
}

void add_formats(const SavingsReport& report, MaskFormat stored, Lines& lines) {
  for (const FormatSize& size : report.formats) {
    std::string value = fmt::format("{:<11}", to_string(size.format));
    if (size.bytes) {
      value += fmt::format("{:>10}  saves {} of the float mask", bytes_text(*size.bytes),
                           report.dense_float_bytes == 0
                               ? "-"
                               : savings_text(*size.bytes, report.dense_float_bytes));
    } else {
      value += fmt::format("{:>10}  {}", "-", size.reason);
    }
    if (size.format == stored) value += " (stored)";
    lines.add(&size == &report.formats.front() ? "bytes as" : "", value);
  }
  lines.add("dense mask",
            fmt::format("{} bits, {} bool, {} float", bytes_text(report.dense_bit_bytes),
                        bytes_text(report.dense_bool_bytes), bytes_text(report.dense_float_bytes)));
  lines.add("best format", std::string(to_string(report.best_format)));
}

void add_candidates(const SavingsReport& report, Lines& lines) {
  const bool shows_columns =
      std::any_of(report.candidates.begin(), report.candidates.end(),
                  [](const Candidate& each) { return each.columns != ColumnMode::automatic; });
  for (const Candidate& candidate : report.candidates) {
    std::string value = fmt::format("{:<10}", tile_text(candidate.tile));
    if (shows_columns) value += fmt::format("{:<10}", to_string(candidate.columns));
    value += candidate.time_us ? time_text(*candidate.time_us) : "- " + candidate.reason;
    lines.add(&candidate == &report.candidates.front() ? "best tiles" : "", value);
  }
}

std::string report_text(const MaskOperand& operand, const SavingsReport& report) {
  const AttentionShape& shape = report.shape;
  Lines lines;
  lines.add("attention",
            fmt::format("{}, batch {}, {} query and {} key heads, head size {}, {}",
                        to_string(report.direction), shape.batch, shape.heads_q, shape.heads_kv,
                        shape.head_dim == shape.head_dim_v
                            ? std::to_string(shape.head_dim)
                            : fmt::format("{}/{}", shape.head_dim, shape.head_dim_v),
                        to_string(shape.k_dtype)));
  if (report.score != ScoreSpec{}) lines.add("score", to_string(report.score));
  lines.add("device",
            fmt::format("{}, {}{}{}", report.device, plural(report.num_workers, "worker"),
                        report.is_provisional ? "; a provisional profile: times are rough" : "",
                        report.is_assumed ? "; what plans add to work tiles is assumed" : ""));
  add_times(report, lines);
  add_counts(report, lines);
  add_choices(report, lines);
  add_formats(report, operand.mask.format(), lines);
  add_candidates(report, lines);
  return fmt::format("{}, {}\n{}", operand.label, lengths_text(operand.mask.shape), lines.take());
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const DeviceProfile profile, read_device(arguments, "h200"));
  FDMA_TRY(const EstimateOptions options, read_options(arguments));
  FDMA_TRY(const DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(arguments.operands().front()));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  FDMA_TRY(const MaskOperand operand, read_resolved(resolved, dense, session.quiet));
  FDMA_TRY(const AttentionShape shape, read_shape(arguments, operand.mask.shape));
  SavingsReport report;
  {
    const Waiting waiting("estimating", session.quiet);
    FDMA_TRY(report, estimate(operand.mask, shape, profile, options));
  }
  session.out = arguments.has("json") ? json_text(report_json(operand, report))
                                      : report_text(operand, report);
  return ExitCode::ok;
}

}  // namespace

const Command& estimate_command() {
  static const Command command = [] {
    Command made{
        .name = "estimate",
        .summary = "what a mask will cost on a device, and what it saves",
        .operands = "INPUT",
        .min_operands = 1,
        .max_operands = 1,
        .description =
            "Predicts attention over INPUT without running it: time, speed-up over attention to "
            "every pair on the same device, operations, load balance of a simulated schedule, work "
            "wasted on masked cells, bytes of the mask in every format, and which tile shape would "
            "be fastest. Counts are exact; they follow the structure of the mask, so that a "
            "million "
            "tokens take about a second.\n"
            "\n"
            "Times come from the constants of a device profile. h200 and h100 (measured) and cpu "
            "(provisional) come with the tool; fdma-maskc calibrate measures this machine.",
        .options =
            {device_option(
                 "h200 (the default), h100, cpu, or the file of a profile, as calibrate writes "
                 "it."),
             {.name = "heads",
              .value = "N",
              .help = "Query heads (default: those of the mask if it tells them apart, else 32)."},
             {.name = "heads-kv",
              .value = "N",
              .help = "Key and value heads, a divisor of the query heads (default: as many)."},
             {.name = "head-dim", .value = "N", .help = "Head size (default 128)."},
             {.name = "head-dim-v",
              .value = "N",
              .help = "Head size of values and results (default: --head-dim)."},
             {.name = "batch",
              .value = "N",
              .help =
                  "Batch elements (default: those of the mask if it tells them apart, else 1)."},
             {.name = "dtype",
              .value = "TYPE",
              .help = "Element type of all tensors (default bf16).",
              .choices = {"bf16", "fp16", "fp32", "bfloat16", "float16", "float32"}},
             {.name = "direction",
              .value = "PASS",
              .help = "Which pass (default forward).",
              .choices = {"forward", "backward"}},
             {.name = "tile",
              .value = "QxK",
              .help = "Tiles of the kernel, one of the profile's (default: its first)."},
             columns_option(),
             {.name = "score",
              .value = "PARTS",
              .help = "What else happens to logits and weights, separated by commas: softcap, "
                      "key_bias, bias, alibi, relative_table, sink, dropout. A bias has elements "
                      "of its own for each batch element and query head."},
             {.name = "softcap", .help = "The same as --score softcap."},
             {.name = "workers", .value = "N", .help = "Threads or SMs instead of the profile's."},
             {.name = "all",
              .help =
                  "Count distinct bitmaps also where more than 65536 tiles have to be drawn for "
                  "it."}},
        .examples = {{"fdma-maskc estimate out.h5", "On an H200, 32 heads of size 128 in bf16:"},
                     {"fdma-maskc estimate out.h5 --direction backward --heads 8 --json",
                      "The backward pass, for a script:"},
                     {"fdma-maskc estimate out.h5 --device cpu --head-dim 64 --dtype fp32",
                      "On some CPU, roughly:"}},
        .run = run};
    made.options.push_back(
        block_option("Blocks in which a dense dataset is read (default 128x128)."));
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
