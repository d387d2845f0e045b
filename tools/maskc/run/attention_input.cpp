// Random elements depend on their position: element i of a tensor is a function of the seed, the
// tensor and i. The same options thus give the same tensors on every machine and with any number of
// threads. A value is the sum of four 16-bit numbers, scaled to mean 0 and variance 1.
#include "run/attention_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "cli/file_reading.hpp"
#include "cli/number_text.hpp"
#include "fdma/base/memory.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "run/device_argument.hpp"
#include "run/element_values.hpp"
#include "run/parallel_rows.hpp"

namespace fdma::maskc {
namespace {

constexpr std::int64_t kMaxHeads = std::int64_t{1} << 20;

TensorSpec four(DType dtype, TensorLayout layout, std::int64_t batch, std::int64_t len,
                std::int64_t heads, std::int64_t dim) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.rank = 4;
  spec.extents = {batch, len, heads, dim};
  if (layout == TensorLayout::bhsd) std::swap(spec.extents[1], spec.extents[2]);
  return spec;
}

TensorSpec three(std::int64_t batch, std::int64_t heads, std::int64_t len) {
  TensorSpec spec;
  spec.rank = 3;
  spec.extents = {batch, heads, len, 1};
  return spec;
}

// A view in the order [batch, len, heads, dim].
template <class View>
View in_call_order(View view, TensorLayout layout) {
  if (layout == TensorLayout::bhsd) {
    std::swap(view.extents[1], view.extents[2]);
    std::swap(view.strides[1], view.strides[2]);
  }
  return view;
}

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float normal_like(std::uint64_t key, std::int64_t index) {
  const std::uint64_t word = mixed(key + static_cast<std::uint64_t>(index));
  std::int64_t sum = 0;
  for (int shift = 0; shift < 64; shift += 16) {
    sum += static_cast<std::int64_t>((word >> shift) & 0xffffu);
  }
  constexpr double kMean = 4 * 65535.0 / 2;
  constexpr double kDeviation = 37837.227;  // sqrt(4 * (65536^2 - 1) / 12)
  return static_cast<float>((static_cast<double>(sum) - kMean) / kDeviation);
}

// The names of the dimensions of one tensor in a file, as messages state them.
struct FileTensor {
  std::string label;
  TensorSpec spec;
  std::int64_t batch = 0, len = 0, heads = 0, dim = 0;
};

Outcome<FileTensor> describe_four(const AttentionProblem& problem, const std::string& name) {
  FileTensor tensor;
  tensor.label = fmt::format("{}:{}{}", problem.file, problem.group, name);
  FDMA_TRY(tensor.spec, describe_tensor_file(problem.file, problem.group + name));
  if (tensor.spec.rank != 4) {
    return usage_failure(fmt::format("{}: expected 4 dimensions [{}], got {}", tensor.label,
                                     problem.layout == TensorLayout::bshd
                                         ? "batch, len, heads, head_dim"
                                         : "batch, heads, len, head_dim",
                                     to_string(tensor.spec)));
  }
  const bool is_bshd = problem.layout == TensorLayout::bshd;
  const auto& extents = tensor.spec.extents;
  tensor.batch = extents[0];
  tensor.len = extents[is_bshd ? 1 : 2];
  tensor.heads = extents[is_bshd ? 2 : 1];
  tensor.dim = extents[3];
  return tensor;
}

Status check_extent(const FileTensor& tensor, std::string_view what, std::int64_t expected,
                    std::int64_t got, std::string_view reason, TensorLayout layout) {
  if (expected == got) return Nothing{};
  return usage_failure(fmt::format("{}: {}: expected {} ({}), got {} in {}; --layout is {}",
                                   tensor.label, what, expected, reason, got,
                                   to_string(tensor.spec), to_string(layout)));
}

Status check_range(const FileTensor& tensor, std::string_view what, std::int64_t low,
                   std::int64_t high, std::int64_t got) {
  if (got >= low && got <= high) return Nothing{};
  return usage_failure(fmt::format("{}: {}: expected {} to {}, got {} in {}", tensor.label, what,
                                   low, high, got, to_string(tensor.spec)));
}

}  // namespace

std::string_view to_string(TensorLayout layout) {
  return layout == TensorLayout::bshd ? "bshd" : "bhsd";
}

TensorLayout layout_of(const Arguments& arguments) {
  return arguments.find("layout") == "bhsd" ? TensorLayout::bhsd : TensorLayout::bshd;
}

std::string AttentionProblem::source() const {
  if (file.empty()) return fmt::format("random tensors (seed {})", seed);
  return group == "/" ? file : fmt::format("{}:{}", file, group.substr(0, group.size() - 1));
}

TensorSpec q_spec(const AttentionProblem& p) {
  return four(p.shape.q_dtype, p.layout, p.shape.batch, p.shape.max_q_len(), p.shape.heads_q,
              p.shape.head_dim);
}
TensorSpec k_spec(const AttentionProblem& p) {
  return four(p.shape.k_dtype, p.layout, p.shape.batch, p.shape.max_kv_len(), p.shape.heads_kv,
              p.shape.head_dim);
}
TensorSpec v_spec(const AttentionProblem& p) {
  return four(p.shape.v_dtype, p.layout, p.shape.batch, p.shape.max_kv_len(), p.shape.heads_kv,
              p.shape.head_dim_v);
}
TensorSpec out_spec(const AttentionProblem& p) {
  return four(p.shape.out_dtype, p.layout, p.shape.batch, p.shape.max_q_len(), p.shape.heads_q,
              p.shape.head_dim_v);
}
TensorSpec lse_spec(const AttentionProblem& p) {
  return three(p.shape.batch, p.shape.heads_q, p.shape.max_q_len());
}

AttentionTensors AttentionMemory::tensors(const AttentionProblem& problem) {
  AttentionTensors all;
  all.q = in_call_order(q.view(), problem.layout);
  all.kv.k = in_call_order(k.view(), problem.layout);
  all.kv.v = in_call_order(v.view(), problem.layout);
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (problem.score.has(kScoreTensors[i])) all.*kScoreTensors[i].view = score[i].view();
  }
  all.out = in_call_order(out.mutable_view(), problem.layout);
  all.lse = lse.mutable_view();
  return all;
}

std::vector<std::string_view> dtype_choices() {
  return {"float32", "float16", "bfloat16", "fp32", "fp16", "bf16"};
}

std::vector<OptionSpec> random_options() {
  return {
      {.name = "batch",
       .value = "N",
       .help = "Batch elements of random tensors (default: those of the mask)."},
      {.name = "heads",
       .value = "N",
       .help = "Query heads of random tensors (default: those of the mask)."},
      {.name = "heads-kv",
       .value = "N",
       .help = "Their key and value heads, which divide the query heads (default: as many)."},
      {.name = "head-dim",
       .value = "N",
       .help = "Their elements per head, 1 to 256 (default 128)."},
      {.name = "head-dim-v",
       .value = "N",
       .help = "Elements per head of the values and the result (default: --head-dim)."},
      {.name = "dtype",
       .value = "DTYPE",
       .help = "Their element type (default float32).",
       .choices = dtype_choices()},
      {.name = "seed",
       .value = "N",
       .help = "Where random numbers start (default 0); equal seeds give equal tensors."},
  };
}

Status check_no_random_options(const Arguments& arguments) {
  for (const OptionSpec& option : random_options()) {
    if (!arguments.has(option.name)) continue;
    return usage_failure(fmt::format(
        "--{}: is for random tensors (--random); the file says it itself", option.name));
  }
  return Nothing{};
}

OptionSpec tile_option() {
  return {.name = "tile",
          .value = "QxK",
          .help = "Query rows and keys of a tile (default: the backend's choice)."};
}

OptionSpec backend_option() {
  std::vector<std::string_view> choices{"auto"};
  for (const Backend backend : registered_backends()) choices.push_back(to_string(backend));
  return {
      .name = "backend",
      .value = "BACKEND",
      .help =
          "Who computes: cpu; sm90, a GPU such as the H100 or H200, for bfloat16 or "
          "float16 and head sizes that are multiples of 8; auto (the default), which is sm90 where "
          "this machine and the tensors allow it, else cpu. What cannot be had here ends "
          "with status 4.",
      .choices = std::move(choices)};
}

OptionSpec plan_form_option() {
  return {.name = "plan-form",
          .value = "FORM",
          .help =
              "What the plan keeps of the mask: segments (the default), a list of work tiles and "
              "runs of tiles; parametric, a few integers that kernels evaluate, for masks in "
              "closed form that are the same for all heads (others end with status 4).",
          .choices = {"segments", "parametric"}};
}

OptionSpec columns_option() {
  return {.name = "columns",
          .value = "MODE",
          .help =
              "How tiles of few live keys (evictions, learned selections) run: scan tiles, gather "
              "the live keys, reorder the keys by their live ranges, or what costs least (the "
              "default, automatic).",
          .choices = {"automatic", "scan", "gather", "reorder"}};
}

Status check_device(const PlanOptions& options) {
  if (options.profile == nullptr || options.profile->backend == options.backend) return Nothing{};
  return usage_failure(fmt::format("--device: {} is a profile for {}, but {} computes",
                                   options.profile->name, to_string(options.profile->backend),
                                   to_string(options.backend)));
}

OptionSpec plan_device_option() {
  return device_option(
      "Device by whose costs the plan is made: h200, h100, cpu, or the file of a profile, as "
      "calibrate writes it. Its plans must run on the backend that computes (default: the "
      "profile that comes with that backend, h200 for sm90).");
}

Outcome<PlanChoice> plan_choice(const Arguments& arguments) {
  PlanChoice choice;
  const std::string backend = arguments.find("backend").value_or("auto");
  choice.is_auto = backend == "auto";
  if (choice.is_auto) {
    choice.options.backend = default_backend();
  } else {
    FDMA_TRY(choice.options.backend, parse_backend(backend));
  }
  FDMA_TRY(choice.options.tile, arguments.block(choice.options.tile, "tile"));
  if (const auto form = arguments.find("plan-form")) {
    FDMA_TRY(choice.options.form, parse_plan_form(*form));
  }
  if (const auto columns = arguments.find("columns")) {
    FDMA_TRY(choice.options.columns, parse_column_mode(*columns));
  }
  if (arguments.has("device")) {
    FDMA_TRY(DeviceProfile profile, read_device(arguments, {}));
    choice.options.profile = std::make_shared<const DeviceProfile>(std::move(profile));
  }
  return choice;
}

Outcome<std::shared_ptr<const AttentionPlan>> make_chosen_plan(const BlockMask& mask,
                                                               const AttentionProblem& problem,
                                                               const PlanChoice& choice) {
  PlanOptions options = choice.options;
  FDMA_TRY_VOID(check_device(options));
  Result<AttentionPlan> plan = make_plan(mask, problem.shape, problem.score.parts, options);
  if (!plan && choice.is_auto && plan.error().code == ErrorCode::unsupported) {
    options.backend = Backend::cpu;
    FDMA_TRY_VOID(check_device(options));
    plan = make_plan(mask, problem.shape, problem.score.parts, options);
  }
  if (!plan) return std::move(plan).error();
  return std::make_shared<const AttentionPlan>(*std::move(plan));
}

Outcome<AttentionProblem> random_problem(const Arguments& arguments, const MaskShape& mask) {
  AttentionProblem problem;
  problem.layout = layout_of(arguments);
  AttentionShape& shape = problem.shape;
  shape.q_lens = mask.q_lens;
  shape.kv_lens = mask.kv_lens;
  constexpr std::int64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();
  FDMA_TRY(shape.batch, arguments.integer("batch", mask.num_batches, 1, kMaxHeads));
  FDMA_TRY(const std::int64_t heads, arguments.integer("heads", mask.num_heads, 1, kMaxHeads));
  FDMA_TRY(const std::int64_t heads_kv, arguments.integer("heads-kv", heads, 1, kMaxHeads));
  FDMA_TRY(const std::int64_t head_dim, arguments.integer("head-dim", 128, 1, kMaxHeadDim));
  FDMA_TRY(const std::int64_t head_dim_v,
           arguments.integer("head-dim-v", head_dim, 1, kMaxHeadDim));
  FDMA_TRY(problem.seed, arguments.integer("seed", 0, 0, kMaxSeed));
  if (heads % heads_kv != 0) {
    return usage_failure(
        fmt::format("--heads-kv: expected a divisor of --heads {}, got {}", heads, heads_kv));
  }
  const auto expect = [](const char* option, std::int64_t of_mask, std::int64_t got) -> Status {
    if (of_mask == 1 || of_mask == got) return Nothing{};
    return usage_failure(
        fmt::format("--{}: the mask is made for {}, got {}", option, of_mask, got));
  };
  FDMA_TRY_VOID(expect("batch", mask.num_batches, shape.batch));
  FDMA_TRY_VOID(expect("heads", mask.num_heads, heads));
  shape.heads_q = static_cast<std::int32_t>(heads);
  shape.heads_kv = static_cast<std::int32_t>(heads_kv);
  shape.head_dim = static_cast<std::int32_t>(head_dim);
  shape.head_dim_v = static_cast<std::int32_t>(head_dim_v);
  FDMA_TRY(const DType dtype, parse_attention_dtype(arguments.find("dtype").value_or("float32")));
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  FDMA_TRY(problem.score, read_score(arguments, shape, {}, {}));
  return problem;
}

Outcome<AttentionProblem> file_problem(const Arguments& arguments, const std::string& address,
                                       const MaskShape& mask) {
  AttentionProblem problem;
  const TensorLayout layout = problem.layout = layout_of(arguments);
  const MaskAddress parsed = parse_address(address);
  if (parsed.file.empty() || parsed.file == "-") {
    return usage_failure(
        fmt::format("--tensors: expected FILE.h5 or FILE.h5:/GROUP, got '{}'", address));
  }
  problem.file = parsed.file;
  problem.group = parsed.inner;
  if (!problem.group.starts_with('/')) problem.group.insert(0, "/");
  if (!problem.group.ends_with('/')) problem.group += '/';

  FDMA_TRY(const FileTensor q, describe_four(problem, "q"));
  FDMA_TRY(const FileTensor k, describe_four(problem, "k"));
  FDMA_TRY(const FileTensor v, describe_four(problem, "v"));
  FDMA_TRY_VOID(check_range(q, "batch", 1, kMaxHeads, q.batch));
  FDMA_TRY_VOID(check_range(q, "heads", 1, kMaxHeads, q.heads));
  FDMA_TRY_VOID(check_range(q, "head_dim", 1, kMaxHeadDim, q.dim));
  FDMA_TRY_VOID(check_range(k, "heads", 1, q.heads, k.heads));
  FDMA_TRY_VOID(check_range(v, "head_dim", 1, kMaxHeadDim, v.dim));
  if (mask.num_batches != 1) {
    FDMA_TRY_VOID(check_extent(q, "batch", mask.num_batches, q.batch, "the mask's", layout));
  }
  if (mask.num_heads != 1) {
    FDMA_TRY_VOID(check_extent(q, "heads", mask.num_heads, q.heads, "the mask's", layout));
  }
  const char* lengths = mask.q_lens.size() == 1 ? "the mask's length" : "the mask's longest";
  FDMA_TRY_VOID(check_extent(q, "len", mask.max_q_len(), q.len, lengths, layout));
  FDMA_TRY_VOID(check_extent(k, "len", mask.max_kv_len(), k.len, lengths, layout));
  FDMA_TRY_VOID(check_extent(k, "batch", q.batch, k.batch, "that of q", layout));
  FDMA_TRY_VOID(check_extent(k, "head_dim", q.dim, k.dim, "that of q", layout));
  FDMA_TRY_VOID(check_extent(v, "batch", q.batch, v.batch, "that of q", layout));
  FDMA_TRY_VOID(check_extent(v, "len", k.len, v.len, "that of k", layout));
  FDMA_TRY_VOID(check_extent(v, "heads", k.heads, v.heads, "that of k", layout));
  if (q.heads % k.heads != 0) {
    return usage_failure(fmt::format("{}: heads: expected a divisor of q's {}, got {} in {}",
                                     k.label, q.heads, k.heads, to_string(k.spec)));
  }
  AttentionShape& shape = problem.shape;
  shape.batch = q.batch;
  shape.heads_q = static_cast<std::int32_t>(q.heads);
  shape.heads_kv = static_cast<std::int32_t>(k.heads);
  shape.q_lens = mask.q_lens;
  shape.kv_lens = mask.kv_lens;
  shape.head_dim = static_cast<std::int32_t>(q.dim);
  shape.head_dim_v = static_cast<std::int32_t>(v.dim);
  shape.q_dtype = q.spec.dtype;
  shape.k_dtype = k.spec.dtype;
  shape.v_dtype = v.spec.dtype;
  shape.out_dtype = q.spec.dtype;
  FDMA_TRY(problem.score, read_score(arguments, shape, problem.file, problem.group));
  return problem;
}

void draw(OwnedTensor& tensor, std::int64_t seed, std::uint64_t which, int num_threads) {
  constexpr std::int64_t kValuesAtOnce = 4096;
  const std::uint64_t key = mixed(mixed(static_cast<std::uint64_t>(seed)) + which);
  const std::int64_t count = tensor.spec().num_elements();
  parallel_for((count + kValuesAtOnce - 1) / kValuesAtOnce, num_threads,
               [&](std::int64_t task, int) {
                 float values[kValuesAtOnce];
                 const std::int64_t begin = task * kValuesAtOnce;
                 const std::int64_t size = std::min(kValuesAtOnce, count - begin);
                 for (std::int64_t i = 0; i < size; ++i) values[i] = normal_like(key, begin + i);
                 store_elements(values, size, tensor.data(), tensor.spec().dtype, begin);
               });
}

Status check_memory(const std::vector<NamedSpec>& tensors) {
  double needed = 0;
  std::string what;
  for (const auto& [name, spec] : tensors) {
    const bool is_last = name == tensors.back().name;
    what += fmt::format("{}{}", what.empty() ? "" : is_last ? " and " : ", ", name);
    double bytes = size_bytes(spec.dtype);
    for (int d = 0; d < spec.rank; ++d) {
      bytes *= static_cast<double>(spec.extents[static_cast<std::size_t>(d)]);
    }
    needed += bytes;
  }
  constexpr double kMax = 9e18;
  FDMA_TRY_VOID(fdma::check_memory(static_cast<std::int64_t>(std::min(needed, kMax)), what));
  return Nothing{};
}

Outcome<AttentionMemory> fill_memory(const AttentionProblem& problem, int num_threads) {
  const ProblemScore& score = problem.score;
  std::vector<NamedSpec> tensors{{"q", q_spec(problem)},
                                 {"k", k_spec(problem)},
                                 {"v", v_spec(problem)},
                                 {"out", out_spec(problem)},
                                 {"lse", lse_spec(problem)}};
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (score.has(kScoreTensors[i])) tensors.push_back({kScoreTensors[i].name, score.specs[i]});
  }
  FDMA_TRY_VOID(check_memory(tensors));
  AttentionMemory memory;
  const auto fill = [&](OwnedTensor& tensor, const char* name, const TensorSpec& spec,
                        std::uint64_t which) -> Status {
    if (!problem.file.empty()) {
      FDMA_TRY(tensor, read_tensor_file(problem.file, problem.group + name, spec));
      return Nothing{};
    }
    FDMA_TRY(tensor, OwnedTensor::zeros(spec));
    draw(tensor, problem.seed, which, num_threads);
    return Nothing{};
  };
  // The results get their memory first, so that missing memory fails before the reading.
  FDMA_TRY(memory.out, OwnedTensor::zeros(out_spec(problem)));
  FDMA_TRY(memory.lse, OwnedTensor::zeros(lse_spec(problem)));
  FDMA_TRY_VOID(fill(memory.q, "q", q_spec(problem), 0));
  FDMA_TRY_VOID(fill(memory.k, "k", k_spec(problem), 1));
  FDMA_TRY_VOID(fill(memory.v, "v", v_spec(problem), 2));
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    if (!score.has(tensor)) continue;
    FDMA_TRY_VOID(fill(memory.score[i], tensor.name, score.specs[i], tensor.which));
    if (tensor.part != &ScoreSpec::alibi || !problem.file.empty()) continue;
    const std::vector<float> slopes = alibi_slopes(problem.shape.heads_q);
    std::ranges::copy(slopes, static_cast<float*>(memory.score[i].data()));
  }
  auto* lse = static_cast<float*>(memory.lse.data());
  std::fill(lse, lse + memory.lse.spec().num_elements(), -std::numeric_limits<float>::infinity());
  return memory;
}

}  // namespace fdma::maskc
