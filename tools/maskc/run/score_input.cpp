#include "run/score_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cli/file_reading.hpp"

namespace fdma::maskc {
namespace {

constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();

/// The values that an extent of a tensor may have; none: any.
using Extent = std::vector<std::int64_t>;

/// What a tensor may be: of one of these types and forms.
struct ExpectedTensor {
  std::vector<DType> dtypes;
  std::vector<std::vector<Extent>> forms;
  const char* dimensions;

  bool has(const TensorSpec& spec) const {
    const auto is_form = [&](const std::vector<Extent>& form) {
      if (spec.rank != static_cast<int>(form.size())) return false;
      for (std::size_t d = 0; d < form.size(); ++d) {
        const bool is_any = form[d].empty() && spec.extents[d] > 0;
        if (!is_any && std::ranges::count(form[d], spec.extents[d]) == 0) return false;
      }
      return true;
    };
    return std::ranges::count(dtypes, spec.dtype) > 0 && std::ranges::any_of(forms, is_form);
  }

  /// "float32 [2 or 1, 4 or 1, 30 or 1, 40]"
  std::string text() const {
    std::vector<std::string> types, shapes;
    for (const DType dtype : dtypes) types.emplace_back(to_string(dtype));
    for (const std::vector<Extent>& form : forms) {
      std::vector<std::string> extents;
      for (const Extent& each : form) {
        extents.push_back(each.empty() ? "n" : fmt::format("{}", fmt::join(each, " or ")));
      }
      shapes.push_back(fmt::format("[{}]", fmt::join(extents, ", ")));
    }
    return fmt::format("{} {}", fmt::join(types, " or "), fmt::join(shapes, " or "));
  }
};

/// `extents` without those that repeat an earlier one.
Extent distinct(std::initializer_list<std::int64_t> extents) {
  Extent kept;
  for (const std::int64_t each : extents) {
    if (std::ranges::count(kept, each) == 0) kept.push_back(each);
  }
  return kept;
}

ExpectedTensor expected_tensor(const ScoreTensor& tensor, const AttentionShape& shape) {
  const std::vector<DType> any_type = shape.q_dtype == DType::float32
                                          ? std::vector{DType::float32}
                                          : std::vector{DType::float32, shape.q_dtype};
  const Extent batch{shape.batch}, heads{shape.heads_q}, q_len{shape.max_q_len()},
      kv_len{shape.max_kv_len()};
  if (tensor.part == &ScoreSpec::key_bias) {
    return {{DType::float32}, {{batch, {shape.heads_kv}, kv_len}}, "[batch, heads of k, len of k]"};
  }
  if (tensor.part == &ScoreSpec::bias) {
    return {any_type,
            {{distinct({shape.batch, 1}), distinct({shape.heads_q, shape.heads_kv, 1}),
              distinct({shape.max_q_len(), 1}), kv_len}},
            "[batch, heads of q or of k, len of q, len of k], each but the last perhaps 1"};
  }
  if (tensor.part == &ScoreSpec::alibi) {
    return {
        {DType::float32}, {{heads}, {batch, heads}}, "[heads of q], or with the batch in front"};
  }
  if (tensor.part == &ScoreSpec::relative_table) {
    return {{DType::float32},
            {{distinct({shape.heads_q, 1}), {}}},
            "[heads of q or 1, left + 1 + right]"};
  }
  return {any_type, {{heads}, {batch, heads, q_len}}, "[heads of q] or [batch, heads, len of q]"};
}

/// The tensor that is drawn where none is given: one bias for the batch, slopes, a table and sinks for
/// each head.
TensorSpec random_spec(const ScoreTensor& tensor, const AttentionShape& shape,
                       std::int64_t relative_left) {
  if (tensor.part == &ScoreSpec::key_bias) {
    return {DType::float32, 3, {shape.batch, shape.heads_kv, shape.max_kv_len(), 1}};
  }
  if (tensor.part == &ScoreSpec::bias) {
    return {shape.q_dtype, 4, {1, shape.heads_q, shape.max_q_len(), shape.max_kv_len()}};
  }
  if (tensor.part == &ScoreSpec::relative_table) {
    return {DType::float32, 2, {shape.heads_q, 2 * relative_left + 1, 1, 1}};
  }
  return {DType::float32, 1, {shape.heads_q, 1, 1, 1}};
}

Outcome<float> read_softcap(const Arguments& arguments) {
  FDMA_TRY(const std::optional<double> given, arguments.number("softcap"));
  if (!given) return 0.0f;
  const auto cap = static_cast<float>(*given);
  if (!(cap >= kLeastSoftcap && cap <= kMostSoftcap)) {
    return usage_failure(fmt::format("--softcap: expected a number from {:g} to {:g}, got '{}'",
                                     kLeastSoftcap, kMostSoftcap, *arguments.find("softcap")));
  }
  return cap;
}

Outcome<Dropout> read_dropout(const Arguments& arguments) {
  Dropout dropout;
  FDMA_TRY(const std::optional<double> rate, arguments.number("dropout"));
  if (rate && !(*rate > 0 && *rate < 1)) {
    return usage_failure(fmt::format("--dropout: expected a number above 0 and below 1, got '{}'",
                                     *arguments.find("dropout")));
  }
  for (const char* option : {"dropout-seed", "dropout-offset"}) {
    if (rate || !arguments.has(option)) continue;
    return usage_failure(fmt::format("--{}: expected --dropout beside it", option));
  }
  dropout.rate = rate.value_or(0);
  FDMA_TRY(const std::int64_t seed, arguments.integer("dropout-seed", 0, 0, kMaxNumber));
  FDMA_TRY(const std::int64_t offset, arguments.integer("dropout-offset", 0, 0, kMaxNumber));
  dropout.seed = static_cast<std::uint64_t>(seed);
  dropout.offset = static_cast<std::uint64_t>(offset);
  return dropout;
}

/// The parts that --score names for random tensors.
Outcome<ScoreSpec> random_parts(const Arguments& arguments) {
  const auto text = arguments.find("score");
  if (!text) return ScoreSpec{};
  Result<ScoreSpec> parts = parse_score(*text);
  if (!parts) return usage_failure(fmt::format("--{}", parts.error().message));
  for (const auto& [is_named, option] :
       {std::pair{parts->softcap, "softcap"}, std::pair{parts->dropout, "dropout"}}) {
    if (!is_named) continue;
    return usage_failure(
        fmt::format("--score: {} has no tensor; give --{} and a number", option, option));
  }
  return *parts;
}

/// Sets the parts and specs of the tensors in a file.
Status describe_tensors(const AttentionShape& shape, const std::string& file,
                        const std::string& group, ProblemScore& score) {
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    const std::string dataset = group + tensor.name;
    FDMA_TRY(score.parts.*tensor.part, has_object_in_file(file, dataset));
    if (!score.has(tensor)) continue;
    FDMA_TRY(score.specs[i], describe_tensor_file(file, dataset));
    const ExpectedTensor expected = expected_tensor(tensor, shape);
    if (expected.has(score.specs[i])) continue;
    return usage_failure(fmt::format("{}:{}: expected {}, that is {}, got {}", file, dataset,
                                     expected.text(), expected.dimensions,
                                     to_string(score.specs[i])));
  }
  return Nothing{};
}

std::int64_t table_size(const ProblemScore& score) {
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (kScoreTensors[i].part == &ScoreSpec::relative_table) return score.specs[i].extents[1];
  }
  return 0;
}

}  // namespace

std::vector<OptionSpec> score_options() {
  return {
      {.name = "score",
       .value = "PARTS",
       .help = "What is added to the logits of random tensors, separated by commas: key_bias, "
               "bias (of q's type, [1, heads, q_len, kv_len]), alibi (its usual slopes), "
               "relative_table (with --relative-left N, of 2 N + 1 distances), sink. Datasets of "
               "a file need no option."},
      {.name = "softcap",
       .value = "X",
       .help = "Caps scaled products x: they become X * tanh(x / X), before anything is added to "
               "them (default: no cap)."},
      {.name = "relative-left",
       .value = "N",
       .help = "The element of each row of relative for k = pos; elements before it are for keys "
               "before the query. Needed where there is such a table."},
      {.name = "dropout",
       .value = "P",
       .help = "Drops each pair of query and key with probability P after the softmax, and divides "
               "the others by 1 - P."},
      {.name = "dropout-seed",
       .value = "N",
       .help = "Which pairs: the seed of the random numbers (default 0)."},
      {.name = "dropout-offset", .value = "N", .help = "And their offset (default 0)."},
  };
}

Outcome<ProblemScore> read_score(const Arguments& arguments, const AttentionShape& shape,
                                 const std::string& file, const std::string& group) {
  ProblemScore score;
  FDMA_TRY(score.softcap, read_softcap(arguments));
  FDMA_TRY(score.dropout, read_dropout(arguments));
  FDMA_TRY(score.relative_left, arguments.integer("relative-left", 0, 0, kMaxLength));
  const bool has_left = arguments.has("relative-left");
  if (file.empty()) {
    FDMA_TRY(score.parts, random_parts(arguments));
    for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
      if (!score.has(kScoreTensors[i])) continue;
      score.specs[i] = random_spec(kScoreTensors[i], shape, score.relative_left);
    }
  } else {
    if (arguments.has("score")) {
      return usage_failure("--score: is for random tensors (--random); the file says it itself");
    }
    FDMA_TRY_VOID(describe_tensors(shape, file, group, score));
  }
  if (has_left != score.parts.relative_table) {
    return usage_failure(has_left ? "--relative-left: expected a table relative beside q, or "
                                    "--score relative_table"
                                  : "--relative-left: is missing; it is the element of each row "
                                    "of relative for k = pos");
  }
  if (has_left && score.relative_left >= table_size(score)) {
    return usage_failure(fmt::format(
        "--relative-left: expected an index into the {} elements of a row of relative, got {}",
        table_size(score), score.relative_left));
  }
  score.parts.softcap = score.softcap != 0;
  score.parts.dropout = score.dropout.rate > 0;
  return score;
}

std::vector<float> alibi_slopes(std::int64_t count) {
  const auto whole = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count)));
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < count; ++h) {
    const auto n = static_cast<double>(whole);
    const double exponent = h < whole ? -8.0 * static_cast<double>(h + 1) / n
                                      : -4.0 * static_cast<double>(2 * (h - whole) + 1) / n;
    slopes.push_back(static_cast<float>(std::exp2(exponent)));
  }
  return slopes;
}

std::string score_text(const ProblemScore& score) {
  std::string text;
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    if (!score.has(tensor)) continue;
    text += fmt::format(", {}", tensor.name);
    if (tensor.part != &ScoreSpec::key_bias) text += " " + to_string(score.specs[i]);
    if (tensor.part == &ScoreSpec::relative_table) {
      text += fmt::format(" (left {})", score.relative_left);
    }
  }
  if (score.softcap != 0) text += fmt::format(", softcap {}", score.softcap);
  if (score.dropout.rate > 0) {
    text += fmt::format(", dropout {} (seed {}, offset {})", score.dropout.rate, score.dropout.seed,
                        score.dropout.offset);
  }
  return text;
}

Json score_json(const ProblemScore& score) {
  Json document;
  document["parts"] = part_names(score.parts);
  document["softcap"] = score.softcap != 0 ? Json(score.softcap) : Json(nullptr);
  document["relative_left"] =
      score.parts.relative_table ? Json(score.relative_left) : Json(nullptr);
  document["dropout"] = score.dropout.rate > 0 ? Json{{"rate", score.dropout.rate},
                                                      {"seed", score.dropout.seed},
                                                      {"offset", score.dropout.offset}}
                                               : Json(nullptr);
  return document;
}

}  // namespace fdma::maskc
