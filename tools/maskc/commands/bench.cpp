// fdma-maskc bench measures what a mask saves on this machine.
//
// Attention over the mask and attention over all pairs of the same shape run alternately on the same
// random tensors, so that a slowdown of the machine affects both. The first run of each is not
// counted. With --backward, each run consists of the forward call, whose results the gradients need,
// and of the backward call, which is timed.
#include <fmt/format.h>

#include <algorithm>

#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "run/attention_check.hpp"
#include "run/attention_run.hpp"
#include "run/dynamic_mask_run.hpp"
#include "run/gradient_check.hpp"
#include "run/gradient_run.hpp"
#include "run/parallel_rows.hpp"

namespace fdma::maskc {
namespace {

constexpr std::int64_t kRowsChecked = 64;

/// One of the two things that are timed.
struct Subject {
  const char* name;
  const BlockMask* mask;
  CallPlans plans;
  std::int64_t pairs = 0;
  std::vector<double> seconds{};
  AttentionCheck check{};
  std::optional<GradientCheck> gradient_check{};

  const AttentionPlan& plan() const { return plans.timed(); }
  bool is_right() const {
    return check.is_right() && (!gradient_check || gradient_check->is_right());
  }

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }
  double min() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double gflops() const { return flops_of(plan(), pairs) / median() / 1e9; }
  double gbytes_per_second() const { return bytes_of(plan()) / median() / 1e9; }
};

// The mask of all pairs that exist for the lengths of `mask`.
Outcome<BlockMask> full_mask(const BlockMask& mask) {
  FDMA_TRY(const MaskExpr expr, parse_mask("true"));
  MaskShape shape;
  shape.num_batches = mask.shape.num_batches;
  shape.num_heads = 1;
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  LowerOptions options;
  options.block = mask.block;
  FDMA_TRY(BlockMask full, compile(expr, Tables{}, shape, options));
  return full;
}

Outcome<Subject> make_subject(const char* name, const BlockMask& mask,
                              const AttentionProblem& problem, const PlanChoice& choice,
                              const BackwardChoice& backward) {
  FDMA_TRY(CallPlans plans, CallPlans::make(mask, problem, choice, backward));
  const std::int64_t pairs = allowed_pairs(mask, problem.shape);
  return Subject{name, &mask, std::move(plans), pairs};
}

Json subject_json(const Subject& subject) {
  return {{"plan", plan_json(subject.plan())},
          {"allowed_pairs", subject.pairs},
          {"live_tiles", live_tiles(subject.plan().counts)},
          {"seconds", subject.seconds},
          {"median_seconds", subject.median()},
          {"min_seconds", subject.min()},
          {"gflops", subject.gflops()},
          {"gbytes_per_second", subject.gbytes_per_second()},
          {"check", to_json(subject.check)},
          {"gradient_check",
           subject.gradient_check ? to_json(*subject.gradient_check) : Json(nullptr)}};
}

// The ratio, or nothing if `whole` is zero.
std::optional<double> ratio(double part, double whole) {
  if (whole == 0) return {};
  return part / whole;
}

std::string summary(const Subject& masked, const Subject& full) {
  std::string text;
  for (const Subject* subject : {&masked, &full}) {
    text += fmt::format("  {:<9}median {}, min {}, {} over {}, {:.1f} GB/s\n", subject->name,
                        duration_text(subject->median()), duration_text(subject->min()),
                        rate_text(subject->gflops()), plural(subject->pairs, "pair"),
                        subject->gbytes_per_second());
    text += fmt::format("  {:<9}{}\n", "", plan_text(subject->plan()));
  }
  const auto time = ratio(masked.median(), full.median());
  const auto tiles = ratio(static_cast<double>(live_tiles(masked.plan().counts)),
                           static_cast<double>(live_tiles(full.plan().counts)));
  if (time && tiles) {
    text +=
        fmt::format("  {:<9}{:.4f} of the time for {:.4f} of the tiles{}\n", "ratio", *time, *tiles,
                    *tiles > 0 ? fmt::format(": {:.3f}", *time / *tiles) : std::string());
  }
  for (const Subject* subject : {&masked, &full}) {
    text += fmt::format("  {:<9}{}: {}\n", "check", subject->name, to_text(subject->check));
    if (!subject->gradient_check) continue;
    text += fmt::format("  {:<9}{}: {}\n", "", subject->name, to_text(*subject->gradient_check));
  }
  return text;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const std::int64_t repeat, arguments.integer("repeat", 5, 1, 10'000));
  FDMA_TRY(const PlanChoice choice, plan_choice(arguments));
  FDMA_TRY_VOID(check_backend(choice.options.backend));
  FDMA_TRY(const BackwardChoice backward,
           backward_choice(arguments, "--direction backward",
                           arguments.find("direction").value_or("forward") == "backward"));
  FDMA_TRY(const SelectionChoice selection, selection_choice(arguments));
  FDMA_TRY(const std::int64_t threads, arguments.threads());
  FDMA_TRY(const DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(arguments.operands().front()));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  FDMA_TRY(const MaskOperand operand, read_resolved(resolved, dense, session.quiet));
  FDMA_TRY(const BlockMask full_pairs, full_mask(operand.mask));
  FDMA_TRY(const AttentionProblem problem, random_problem(arguments, operand.mask.shape));
  const int num_threads = thread_count(static_cast<int>(threads));
  std::optional<DynamicMaskCall> call;
  PlanChoice where = choice;
  if (selection.w > 0) {
    FDMA_TRY(DynamicMaskCall made,
             DynamicMaskCall::make(selection, operand.mask, problem, choice, num_threads));
    call.emplace(std::move(made));
    where.options.backend = call->backend();
  }
  FDMA_TRY(Subject full, make_subject("full", full_pairs, problem, where, backward));
  FDMA_TRY(AttentionMemory memory, fill_memory(problem, num_threads));
  FDMA_TRY(const PlacedTensors tensors, PlacedTensors::make(full.plan().backend, problem, memory));
  GradientMemory gradient_memory;
  std::optional<PlacedGradients> gradients;
  if (backward.is_backward) {
    FDMA_TRY(gradient_memory, GradientMemory::fill(problem, num_threads));
    FDMA_TRY(PlacedGradients placed, PlacedGradients::make(tensors, problem, gradient_memory));
    gradients.emplace(std::move(placed));
  }
  const PlacedGradients* const placed_gradients = gradients ? &*gradients : nullptr;
  AttentionOptions how;
  how.num_threads = num_threads;
  problem.score.set_numbers(how);
  // The selection is known after a run. From then on it is treated like any other mask.
  std::optional<BlockMask> selected;
  AttentionTensors computed = tensors.on_host();
  Subject masked{"masked", &operand.mask, {}};
  std::optional<PlacedCalls> masked_calls;
  if (call) {
    FDMA_TRY_VOID(call->run(tensors, how));
    FDMA_TRY(selected, call->selected());
    computed.key_bias = call->bias();
    FDMA_TRY(std::shared_ptr<const AttentionPlan> plan, call->plan_of(*selected, problem));
    masked = {"masked", &*selected, {std::move(plan), {}}, allowed_pairs(*selected, problem.shape)};
  } else {
    FDMA_TRY(masked, make_subject("masked", operand.mask, problem, where, backward));
    FDMA_TRY(PlacedCalls placed, PlacedCalls::make(masked.plans, backward));
    masked_calls.emplace(std::move(placed));
  }
  FDMA_TRY(PlacedCalls full_calls, PlacedCalls::make(full.plans, backward));
  {
    Progress progress("timing", "runs", session.quiet);
    const std::int64_t num_runs = 2 * (repeat + 1);
    std::int64_t num_done = 0;
    for (std::int64_t round = 0; round <= repeat; ++round) {
      for (Subject* subject : {&full, &masked}) {
        const bool is_full = subject == &full;
        PlacedCalls* const calls = is_full ? &full_calls : masked_calls ? &*masked_calls : nullptr;
        FDMA_TRY(const double seconds, calls != nullptr
                                           ? calls->run(tensors, placed_gradients, how, true)
                                           : call->run(tensors, how));
        if (round > 0) subject->seconds.push_back(seconds);
        progress.update(++num_done, num_runs);
        if (round > 0) continue;
        FDMA_TRY_VOID(tensors.fetch_results());
        Progress silent("checking", "rows", true);
        FDMA_TRY(subject->check, check_attention(*subject->mask, *subject->plans.forward,
                                                 is_full ? tensors.on_host() : computed, how,
                                                 kRowsChecked, silent));
        if (!gradients) continue;
        FDMA_TRY_VOID(gradients->fetch_results());
        FDMA_TRY(subject->gradient_check,
                 check_gradients(*subject->mask, subject->plan(), gradients->on_host(), how,
                                 kRowsChecked, silent));
      }
    }
  }
  for (const Subject* subject : {&masked, &full}) {
    if (subject->is_right()) continue;
    if (!session.complaint.empty()) session.complaint += '\n';
    session.complaint +=
        fmt::format("{}, {}: the result is wrong: {}", operand.label, subject->name,
                    subject->check.is_right() ? complaint(*subject->gradient_check)
                                              : complaint(subject->check));
  }
  const ExitCode code = session.complaint.empty() ? ExitCode::ok : ExitCode::mask_wrong;
  if (arguments.has("json")) {
    Json document;
    document["mask"] = mask_json(operand.name, operand.mask);
    document["seed"] = problem.seed;
    document["shape"] = shape_json(problem);
    document["score"] = score_json(problem.score);
    document["cpu_target"] = cpu_target();
    document["device"] = device_json(masked.plan().backend);
    document["direction"] = to_string(masked.plan().direction);
    document["deterministic"] = backward.is_deterministic;
    document["threads"] = num_threads;
    document["repeat"] = repeat;
    document["selection"] = call ? call->json() : Json(nullptr);
    document["masked"] = subject_json(masked);
    document["full"] = subject_json(full);
    const auto time = ratio(masked.median(), full.median());
    const auto tiles = ratio(static_cast<double>(live_tiles(masked.plan().counts)),
                             static_cast<double>(live_tiles(full.plan().counts)));
    document["time_ratio"] = time ? Json(*time) : Json(nullptr);
    document["tile_ratio"] = tiles ? Json(*tiles) : Json(nullptr);
    session.out = json_text(document);
    return code;
  }
  if (session.quiet) return code;
  session.out =
      fmt::format("{} over {}\n  tensors  {}\n  on       {}, {}{} of each{}\n", problem.source(),
                  operand.label, shape_text(problem), backend_text(masked.plan().backend),
                  tensors.is_on_host() ? plural(num_threads, "thread") + ", " : std::string(),
                  plural(repeat, "run"), backward.is_backward ? ", backward" : "");
  if (call) session.out += fmt::format("  keeps    {}\n", call->text());
  session.out += summary(masked, full);
  return code;
}

}  // namespace

const Command& bench_command() {
  static const Command command = [] {
    Command made{
        .name = "bench",
        .summary = "time attention over a mask and over every pair, on this machine",
        .operands = "MASK",
        .min_operands = 1,
        .max_operands = 1,
        .description =
            "Times attention over MASK and over all pairs of the same lengths by turns, on random "
            "tensors: median and minimum after a run that is not counted, useful operations a "
            "second (2 (head_dim + head_dim_v) for an allowed pair), bytes of q, k, v, out and lse "
            "a second, and how the ratio of times "
            "compares with the ratio of tiles visited; 1 means that time follows the mask.\n"
            "\n"
            "--direction backward times the gradients alone, after a forward call in every run: "
            "6 head_dim + 4 head_dim_v operations for an allowed pair, every tensor and its "
            "gradient once.\n"
            "\n"
            "With --keep-window the whole call is timed: scores, selection and attention over the "
            "keys that are kept of those that MASK shows.\n"
            "\n"
            "On a GPU (--backend) times are those of the kernel, by events of the device, without "
            "copies.\n"
            "\n"
            "64 rows of both results are compared with dense attention in float64; status 1 if "
            "they are wrong.",
        .options = {},
        .examples = {{"fdma-maskc bench out.h5 --heads 2 --head-dim 64 --repeat 3",
                      "What does the mask save here?"},
                     {"fdma-maskc bench out.h5 --heads 2 --head-dim 64 --repeat 1 --tile 64x64",
                      "Would smaller tiles do better?"},
                     {"fdma-maskc bench out.h5 --heads 2 --head-dim 64 --repeat 1 --keep-window 64",
                      "What does keeping the 64 best keys save?"},
                     {"fdma-maskc bench out.h5 --heads 2 --head-dim 64 --repeat 1 --direction "
                      "backward",
                      "What does it save in training?"},
                     {"fdma-maskc bench out.h5 --heads 2 --dtype bfloat16 --repeat 1 --json",
                      "For a script:"}},
        .run = run};
    for (const OptionSpec& option : random_options()) made.options.push_back(option);
    made.options.push_back(
        {.name = "repeat", .value = "N", .help = "Runs of each that count (default 5)."});
    made.options.push_back({.name = "direction",
                            .value = "NAME",
                            .help = "forward (the default), or backward: gradients.",
                            .choices = {"forward", "backward"}});
    made.options.push_back(deterministic_option());
    for (const OptionSpec& option : score_options()) made.options.push_back(option);
    for (const OptionSpec& option : dynamic_mask_options()) made.options.push_back(option);
    made.options.push_back(backend_option());
    made.options.push_back(plan_device_option());
    made.options.push_back(tile_option());
    made.options.push_back(plan_form_option());
    made.options.push_back(columns_option());
    made.options.push_back(
        block_option("Blocks in which a dense dataset is read (default 128x128)."));
    for (const OptionSpec& option : dense_options()) made.options.push_back(option);
    made.options.push_back(threads_option());
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
