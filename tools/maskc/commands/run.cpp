// fdma-maskc run: attention over a compiled mask, on tensors from HDF5 or random ones.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <set>

#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "inputs/destination.hpp"
#include "run/attention_check.hpp"
#include "run/attention_run.hpp"
#include "run/dynamic_mask_run.hpp"
#include "run/element_values.hpp"
#include "run/gradient_check.hpp"
#include "run/gradient_run.hpp"
#include "run/parallel_rows.hpp"

namespace fdma::maskc {
namespace {

/// Properties of the result rows that a user should know of.
struct ResultRows {
  std::int64_t num_rows = 0;
  std::int64_t without_keys = 0;  ///< lse is -inf
  std::int64_t nan = 0;           ///< rows with a NaN in out or lse
};

ResultRows look_at_rows(const AttentionShape& shape, const AttentionTensors& tensors) {
  ResultRows rows;
  const MutableTensorView& out = tensors.out;
  const MutableTensorView& lse = tensors.lse;
  std::vector<float> values(static_cast<std::size_t>(shape.head_dim_v));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      for (std::int64_t q = 0; q < shape.q_len(b); ++q) {
        const float l = static_cast<const float*>(
            lse.data)[b * lse.strides[0] + h * lse.strides[1] + q * lse.strides[2]];
        load_elements(out.data, out.dtype,
                      b * out.strides[0] + q * out.strides[1] + h * out.strides[2],
                      shape.head_dim_v, values.data());
        bool is_nan = std::isnan(l);
        for (const float value : values) is_nan = is_nan || std::isnan(value);
        rows.nan += is_nan ? 1 : 0;
        rows.without_keys += l == -std::numeric_limits<float>::infinity() ? 1 : 0;
        ++rows.num_rows;
      }
    }
  }
  return rows;
}

/// The facts about a finished run that the report prints.
struct Finished {
  const MaskOperand& operand;
  const AttentionProblem& problem;
  const AttentionPlan& plan;
  double seconds = 0;
  std::int64_t pairs = 0;  ///< true cells over all batch elements and heads
  float scale = 0;
  ResultRows rows{};
  std::optional<AttentionCheck> check{};
  std::optional<GradientCheck> gradient_check{};  ///< with --backward
  std::optional<std::string> written{};
  const DynamicMaskCall* selection = nullptr;  ///< with --keep-window

  double gflops() const { return seconds > 0 ? flops_of(plan, pairs) / seconds / 1e9 : 0; }
  bool is_right() const {
    return (!check || check->is_right()) && (!gradient_check || gradient_check->is_right());
  }
};

Json to_json(const Finished& done) {
  const AttentionProblem& problem = done.problem;
  const bool is_random = problem.file.empty();
  Json document;
  document["mask"] = mask_json(done.operand.name, done.operand.mask);
  document["tensors"] = is_random ? Json(nullptr) : Json(problem.source());
  document["seed"] = is_random ? Json(problem.seed) : Json(nullptr);
  document["shape"] = shape_json(problem);
  document["softmax_scale"] = done.scale;
  document["softcap"] = problem.score.softcap != 0 ? Json(problem.score.softcap) : Json(nullptr);
  document["score"] = score_json(problem.score);
  document["direction"] = to_string(done.plan.direction);
  document["plan"] = plan_json(done.plan);
  document["cpu_target"] = cpu_target();
  document["device"] = device_json(done.plan.backend);
  document["selection"] = done.selection ? done.selection->json() : Json(nullptr);
  document["allowed_pairs"] = done.pairs;
  document["seconds"] = done.seconds;
  document["gflops"] = done.seconds > 0 ? Json(done.gflops()) : Json(nullptr);
  document["rows"] = {{"total", done.rows.num_rows},
                      {"without_keys", done.rows.without_keys},
                      {"nan", done.rows.nan}};
  document["check"] = done.check ? to_json(*done.check) : Json(nullptr);
  document["gradient_check"] = done.gradient_check ? to_json(*done.gradient_check) : Json(nullptr);
  document["output"] = done.written ? Json(*done.written) : Json(nullptr);
  return document;
}

std::string to_text(const Finished& done) {
  const AttentionProblem& problem = done.problem;
  std::string text = fmt::format("{} over {}\n", problem.source(), done.operand.label);
  const auto line = [&](std::string_view what, const std::string& value) {
    text += fmt::format("  {:<9}{}\n", what, value);
  };
  line("tensors", shape_text(problem));
  if (done.selection) line("keeps", done.selection->text());
  line("plan", plan_text(done.plan));
  line("ran", fmt::format("{}in {} on {}, {} over {}", done.plan.is_backward() ? "backward " : "",
                          duration_text(done.seconds), backend_text(done.plan.backend),
                          rate_text(done.gflops()), plural(done.pairs, "allowed pair")));
  line("rows", fmt::format("{}, {} without keys, {} NaN", count_text(done.rows.num_rows),
                           count_text(done.rows.without_keys), count_text(done.rows.nan)));
  if (done.check) line("check", to_text(*done.check));
  if (done.gradient_check) line("check", to_text(*done.gradient_check));
  if (done.written) {
    std::string written = fmt::format("{}: out {}, lse {}", *done.written,
                                      to_string(out_spec(problem)), to_string(lse_spec(problem)));
    if (done.plan.is_backward()) {
      written += fmt::format(", dq {}, dk {}, dv {}", to_string(q_spec(problem)),
                             to_string(k_spec(problem)), to_string(v_spec(problem)));
      for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
        if (!problem.score.has_gradient(kScoreTensors[i])) continue;
        written +=
            fmt::format(", {} {}", kScoreTensors[i].gradient, to_string(problem.score.specs[i]));
      }
    }
    line("wrote", written);
  }
  return text;
}

Outcome<AttentionProblem> read_problem(const Arguments& arguments, const MaskShape& mask) {
  const auto file = arguments.find("tensors");
  if (file.has_value() == arguments.has("random")) {
    return usage_failure(file ? "--random: not together with --tensors"
                              : "expected --tensors FILE.h5 or --random, got neither");
  }
  if (!file) return random_problem(arguments, mask);
  FDMA_TRY_VOID(check_no_random_options(arguments));
  return file_problem(arguments, *file, mask);
}

Outcome<float> read_scale(const Arguments& arguments) {
  FDMA_TRY(const std::optional<double> given, arguments.number("softmax-scale"));
  if (!given) return 0.0f;
  const auto scale = static_cast<float>(*given);
  if (!std::isfinite(scale) || scale == 0) {
    return usage_failure(
        fmt::format("--softmax-scale: expected a finite number other than 0, got '{}'",
                    *arguments.find("softmax-scale")));
  }
  return scale;
}

// The output may replace only a file that run wrote earlier, unless --force is given.
Status check_output(const std::string& output, bool force) {
  static const std::set<std::string, std::less<>> kResults = [] {
    std::set<std::string, std::less<>> names{"/out", "/lse", "/dq", "/dk", "/dv"};
    for (const ScoreTensor& tensor : kScoreTensors) {
      if (tensor.gradient != nullptr) names.insert(std::string("/") + tensor.gradient);
    }
    return names;
  }();
  return check_result_destination(
      output, "results of run",
      [](const std::string& dataset) { return kResults.contains(dataset); }, force);
}

// `gradients` is null without --backward.
Status write_result(const std::string& path, const AttentionProblem& problem,
                    const AttentionMemory& memory, const GradientMemory* gradients,
                    const BlockMask& mask, float scale, Backend backend) {
  auto fields = std::vector<FileAttribute>{{"mask_hash", to_string(mask_hash(mask))},
                                           {"softmax_scale", static_cast<double>(scale)},
                                           {"backend", std::string(to_string(backend))},
                                           {"layout", std::string(to_string(problem.layout))}};
  const ProblemScore& score = problem.score;
  if (score.softcap != 0) fields.push_back({"softcap", static_cast<double>(score.softcap)});
  if (score.parts.relative_table) fields.push_back({"relative_left", score.relative_left});
  if (score.dropout.rate > 0) {
    fields.push_back({"dropout", score.dropout.rate});
    fields.push_back({"dropout_seed", static_cast<std::int64_t>(score.dropout.seed)});
    fields.push_back({"dropout_offset", static_cast<std::int64_t>(score.dropout.offset)});
  }
  std::vector<NamedTensor> tensors = {{"out", memory.out.view()}, {"lse", memory.lse.view()}};
  if (gradients != nullptr) {
    tensors.insert(
        tensors.end(),
        {{"dq", gradients->dq.view()}, {"dk", gradients->dk.view()}, {"dv", gradients->dv.view()}});
    for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
      if (!score.has_gradient(kScoreTensors[i])) continue;
      tensors.push_back({kScoreTensors[i].gradient, gradients->score[i].view()});
    }
  }
  FDMA_TRY_VOID(write_tensors(path, tensors, fields));
  spdlog::info("wrote {}", path);
  return Nothing{};
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  const auto output = arguments.find("output");
  const auto dumped = arguments.find("dump");
  const bool is_json = arguments.has("json");
  if (dumped && (is_json || output || arguments.has("check"))) {
    return usage_failure(
        "--dump prints the plan and runs nothing: give it without --json, "
        "--output and --check");
  }
  FDMA_TRY(const float given_scale, read_scale(arguments));
  FDMA_TRY(const PlanChoice choice, plan_choice(arguments));
  FDMA_TRY(const BackwardChoice backward,
           backward_choice(arguments, "--backward", arguments.has("backward")));
  FDMA_TRY(const SelectionChoice selection, selection_choice(arguments));
  if (!dumped) FDMA_TRY_VOID(check_backend(choice.options.backend));
  FDMA_TRY(const std::int64_t threads, arguments.threads());
  FDMA_TRY(const DenseReadOptions dense, dense_read_options(arguments));
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(arguments.operands().front()));
  FDMA_TRY_VOID(check_dense_options(arguments, resolved.is_dense));
  FDMA_TRY(const MaskOperand operand, read_resolved(resolved, dense, session.quiet));
  const BlockMask& mask = operand.mask;

  FDMA_TRY(AttentionProblem problem, read_problem(arguments, mask.shape));
  if (const auto dtype = arguments.find("out-dtype")) {
    FDMA_TRY(problem.shape.out_dtype, parse_attention_dtype(*dtype));
  }
  if (output) FDMA_TRY_VOID(check_output(*output, arguments.has("force")));
  std::optional<DynamicMaskCall> call;
  CallPlans plans;
  if (selection.w > 0) {
    FDMA_TRY(DynamicMaskCall made, DynamicMaskCall::make(selection, mask, problem, choice,
                                                         thread_count(static_cast<int>(threads))));
    call.emplace(std::move(made));
  } else {
    FDMA_TRY(plans, CallPlans::make(mask, problem, choice, backward));
  }
  if (dumped) {
    session.out = to_text(plans.timed());
    if (!session.out.empty() && session.out.back() != '\n') session.out += '\n';
    return ExitCode::ok;
  }

  AttentionMemory memory;
  GradientMemory gradient_memory;
  {
    const Waiting waiting(problem.file.empty() ? "drawing tensors" : "reading " + problem.source(),
                          session.quiet || arguments.has("verbose"));
    const int num_threads = thread_count(static_cast<int>(threads));
    FDMA_TRY(memory, fill_memory(problem, num_threads));
    if (backward.is_backward) {
      FDMA_TRY(gradient_memory, GradientMemory::fill(problem, num_threads));
    }
  }
  FDMA_TRY(const PlacedTensors tensors,
           PlacedTensors::make(call ? call->backend() : plans.forward->backend, problem, memory));
  std::optional<PlacedGradients> gradients;
  if (backward.is_backward) {
    FDMA_TRY(PlacedGradients placed, PlacedGradients::make(tensors, problem, gradient_memory));
    gradients.emplace(std::move(placed));
  }
  AttentionOptions how;
  how.softmax_scale = given_scale;
  problem.score.set_numbers(how);
  how.num_threads = static_cast<int>(threads);
  double seconds = 0;
  std::optional<BlockMask> selected;
  AttentionTensors computed = tensors.on_host();
  if (call) {
    FDMA_TRY(seconds, call->run(tensors, how));
    FDMA_TRY(selected, call->selected());
    computed.key_bias = call->bias();
    FDMA_TRY(plans.forward, call->plan_of(*selected, problem));
  } else {
    FDMA_TRY(PlacedCalls placed, PlacedCalls::make(plans, backward));
    FDMA_TRY(seconds, placed.run(tensors, gradients ? &*gradients : nullptr, how, session.quiet));
  }
  FDMA_TRY_VOID(tensors.fetch_results());
  if (gradients) FDMA_TRY_VOID(gradients->fetch_results());
  const BlockMask& applied = selected ? *selected : mask;
  const AttentionPlan& plan = plans.timed();
  Finished done{operand, problem, plan, seconds};
  if (call) done.selection = &*call;
  spdlog::info("attention in {}", duration_text(done.seconds));
  done.rows = look_at_rows(problem.shape, tensors.on_host());
  done.pairs = allowed_pairs(applied, problem.shape);
  done.scale =
      given_scale != 0 ? given_scale : 1.0f / std::sqrt(static_cast<float>(problem.shape.head_dim));
  if (arguments.has("check")) {
    Progress progress("checking", "rows", session.quiet);
    FDMA_TRY(done.check, check_attention(applied, *plans.forward, computed, how, 0, progress));
    if (gradients) {
      FDMA_TRY(done.gradient_check,
               check_gradients(mask, plan, gradients->on_host(), how, 0, progress));
    }
  }
  const bool is_right = done.is_right();
  if (output && is_right) {
    FDMA_TRY_VOID(write_result(*output, problem, memory, gradients ? &gradient_memory : nullptr,
                               applied, done.scale, plan.backend));
    done.written = output;
  }
  if (!is_right) {
    std::string wrong = complaint(*done.check);
    if (done.gradient_check && !done.gradient_check->is_right()) {
      if (!wrong.empty()) wrong += '\n';
      wrong += complaint(*done.gradient_check);
    }
    session.complaint = fmt::format("{}: the result is wrong{}: {}", operand.label,
                                    output ? " and was not written" : "", wrong);
  }
  if (is_json) {
    session.out = json_text(to_json(done));
  } else if (!session.quiet) {
    session.out = to_text(done);
  }
  return is_right ? ExitCode::ok : ExitCode::mask_wrong;
}

}  // namespace

const Command& run_command() {
  static const Command command = [] {
    Command made{
        .name = "run",
        .summary = "attention over a mask, on tensors from HDF5 or random ones",
        .operands = "MASK",
        .min_operands = 1,
        .max_operands = 1,
        .description =
            "Computes out = softmax(scale q k^T, masked) v and lse, the logarithm of "
            "the sum of exponentials, with float32 sums, visiting only tiles that the mask "
            "allows.\n"
            "\n"
            "--tensors names an HDF5 file (or FILE.h5:/GROUP) with datasets q [batch, q_len, "
            "heads, head_dim], k [batch, kv_len, heads_kv, head_dim], v [batch, kv_len, heads_kv, "
            "head_dim_v], each of "
            "little-endian float32, float16 or bfloat16 (uint16 with attribute dtype = "
            "\"bfloat16\"). Lengths are those of the mask; where they differ by batch element, the "
            "tensors are as long as the longest, and what lies behind an element's own length is "
            "not read.\n"
            "\n"
            "Logits get what the file has beside q: key_bias [batch, heads_kv, kv_len] (float32); "
            "bias [batch or 1, heads or heads_kv or 1, q_len or 1, kv_len] (float32 or of q's "
            "type); alibi_slopes [heads] or [batch, heads] (float32), which subtract slope * "
            "abs(pos - k) with pos = q + kv_len - q_len; relative [heads or 1, n] (float32), whose "
            "element N (--relative-left) is added for k = pos, the others for k - pos, its first "
            "and last ones beyond it; sinks [heads] or [batch, heads, q_len] (float32 or of q's "
            "type), logits without a key that lse leaves out. --softcap comes before all of them, "
            "--dropout after the softmax.\n"
            "\n"
            "--output receives out and lse [batch, heads, q_len] (float32). Rows without keys, and "
            "rows behind an element's length, have out 0 and lse -inf. NaN spreads as in dense "
            "attention; the summary counts the rows that have any.\n"
            "\n"
            "--keep-window W makes it Dynamic Mask Attention: scores of keys, for each query the W "
            "keys with the best scores of those that MASK shows, attention over them with their "
            "scores added to the logits. Scores are those of v, by dt_proj [heads_kv, heads_kv * "
            "head_dim_v] (or [heads_kv, head_dim_v]) and a_coef [heads_kv] beside it, or "
            "--scores.\n"
            "\n"
            "--backward computes the gradients of q, k, v, key_bias, bias, relative and sinks as "
            "well, given that of out: "
            "dataset dout, of out's extents and type, beside q, or random with random tensors; "
            "that of lse counts as 0. The time is then that of the backward call, and --output "
            "receives dq, dk, dv, dkey_bias, dbias, drelative and dsinks too.\n"
            "\n"
            "--check computes rows again by definition in float64, all of them if that is quick, "
            "else a sample with the edges of tiles in it. The largest error may be twice that of "
            "an explicit matmul, softmax, matmul in the same types, plus 1e-5 of the largest "
            "value. Gradients are compared in the same way with theirs; dbias, drelative and "
            "dsinks "
            "only where everything is. Otherwise the exit status is "
            "1 and nothing is written.\n"
            "\n"
            "On a GPU (--backend) the time is that of the kernel, without copies; --dump plan "
            "shows plans for sm90 on any machine.",
        .options = {{.name = "tensors",
                     .value = "FILE",
                     .help = "Where q, k, v and what the score has are: FILE.h5 or FILE.h5:/GROUP.",
                     .takes_file = true},
                    {.name = "layout",
                     .value = "LAYOUT",
                     .help = "Dimensions of q, k, v and out: bshd is [batch, len, heads, head_dim] "
                             "(the default), bhsd has heads before len.",
                     .choices = {"bshd", "bhsd"}},
                    {.name = "random", .help = "Run on random tensors instead, normal in scale."}},
        .examples = {{"fdma-maskc run out.h5 --tensors qkv.h5 -o result.h5",
                      "Attention on tensors of yours:"},
                     {"fdma-maskc run out.h5 --random --heads 4 --heads-kv 2 --head-dim 64 --check",
                      "Is it right on this machine?"},
                     {"fdma-maskc run out.h5 --random --heads 4 --head-dim 64 --backward --check",
                      "Are its gradients?"},
                     {"fdma-maskc run out.h5 --random --heads 4 --head-dim 64 --score alibi,sink "
                      "--dropout 0.1 --check",
                      "And with slopes, sinks and dropout?"},
                     {"fdma-maskc run out.h5 --random --heads 4 --keep-window 64 --check",
                      "And with the 64 best keys of each query?"},
                     {"fdma-maskc run out.h5 --random --heads 4 --dump plan",
                      "What would run, and in which order?"},
                     {"fdma-maskc run out.h5 --random --heads 4 --dtype bfloat16 --backend sm90 "
                      "--dump plan",
                      "And on a GPU?"}},
        .run = run};
    for (const OptionSpec& option : random_options()) made.options.push_back(option);
    made.options.push_back({.name = "output",
                            .letter = 'o',
                            .value = "FILE",
                            .help = "The HDF5 file to write out and lse (and gradients) to; "
                                    "results of another run are replaced.",
                            .takes_file = true});
    made.options.push_back(
        {.name = "force",
         .help = "Replace a FILE that holds other things than results; without it that is an "
                 "error."});
    made.options.push_back({.name = "out-dtype",
                            .value = "DTYPE",
                            .help = "Element type of out (default: that of q).",
                            .choices = dtype_choices()});
    made.options.push_back(
        {.name = "check", .help = "Compare with dense attention in float64; status 1 if wrong."});
    made.options.push_back(
        {.name = "backward", .help = "Compute gradients after the result, and time that."});
    made.options.push_back(deterministic_option());
    made.options.push_back({.name = "softmax-scale",
                            .value = "X",
                            .help = "Multiplies q k^T (default 1 / sqrt(head_dim))."});
    for (const OptionSpec& option : score_options()) made.options.push_back(option);
    for (const OptionSpec& option : dynamic_mask_options()) made.options.push_back(option);
    made.options.push_back(backend_option());
    made.options.push_back(plan_device_option());
    made.options.push_back(tile_option());
    made.options.push_back(plan_form_option());
    made.options.push_back(columns_option());
    made.options.push_back({.name = "dump",
                            .value = "STAGE",
                            .help = "Print the plan and run nothing.",
                            .choices = {"plan"}});
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
