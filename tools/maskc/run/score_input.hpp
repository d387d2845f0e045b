// The score of run and bench: what options and tensors add to logits and weights beside the softmax
// scale and the mask.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/io/tensor_dataset.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace fdma::maskc {

/// A tensor that a part of the score has.
struct ScoreTensor {
  const char* name;      ///< of its dataset in a file
  const char* gradient;  ///< that of its gradient; null: it has none
  bool ScoreSpec::*part;
  TensorView AttentionTensors::*view;
  TensorView BackwardTensors::*backward_view;
  MutableTensorView BackwardTensors::*gradient_view;
  std::uint64_t which;  ///< tells it apart from the other random tensors of one seed
};
inline constexpr std::array<ScoreTensor, 5> kScoreTensors{{
    {"key_bias", "dkey_bias", &ScoreSpec::key_bias, &AttentionTensors::key_bias,
     &BackwardTensors::key_bias, &BackwardTensors::dkey_bias, 3},
    {"bias", "dbias", &ScoreSpec::bias, &AttentionTensors::bias, &BackwardTensors::bias,
     &BackwardTensors::dbias, 6},
    {"alibi_slopes", nullptr, &ScoreSpec::alibi, &AttentionTensors::alibi_slopes,
     &BackwardTensors::alibi_slopes, nullptr, 7},
    {"relative", "drelative", &ScoreSpec::relative_table, &AttentionTensors::relative,
     &BackwardTensors::relative, &BackwardTensors::drelative, 8},
    {"sinks", "dsinks", &ScoreSpec::sink, &AttentionTensors::sinks, &BackwardTensors::sinks,
     &BackwardTensors::dsinks, 9},
}};
/// One for each of kScoreTensors; of parts that a score lacks it is empty.
template <class T>
using OfScoreTensors = std::array<T, kScoreTensors.size()>;

/// The score of a problem, known before any element is in memory.
struct ProblemScore {
  ScoreSpec parts;
  float softcap = 0;               ///< 0: none, else `parts` has one
  std::int64_t relative_left = 0;  ///< AttentionOptions::relative_left
  Dropout dropout;                 ///< rate 0: none, else `parts` has it
  OfScoreTensors<TensorSpec> specs;

  bool has(const ScoreTensor& tensor) const { return parts.*tensor.part; }
  bool has_gradient(const ScoreTensor& tensor) const {
    return has(tensor) && tensor.gradient != nullptr;
  }
  /// Its numbers, as members of the options of a call.
  template <class Options>
  void set_numbers(Options& options) const {
    options.softcap = softcap;
    options.relative_left = relative_left;
    options.dropout = dropout;
  }
};

/// --score, --softcap, --relative-left, --dropout, --dropout-seed and --dropout-offset.
std::vector<OptionSpec> score_options();

/// The score of tensors of `shape` from the datasets of `group` ("/" or "/layer/") in `file`, or of
/// random tensors if `file` is empty, and from score_options(). Reads no element. Failures: file;
/// usage for extents that contradict the shape, and for options.
Outcome<ProblemScore> read_score(const Arguments& arguments, const AttentionShape& shape,
                                 const std::string& file, const std::string& group);

/// The slopes that ALiBi gives `count` heads: a geometric sequence from 2^(-8 / n) to 2^-8 where
/// their number n is a power of two, else that of the next smaller one and then every second slope
/// of the next larger one.
std::vector<float> alibi_slopes(std::int64_t count);

/// ", key_bias, bias float32 [1, 4, 64, 64], softcap 30, dropout 0.1 (seed 7)"; empty for no parts.
std::string score_text(const ProblemScore& score);
Json score_json(const ProblemScore& score);

}  // namespace fdma::maskc
