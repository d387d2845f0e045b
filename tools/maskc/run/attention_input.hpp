// The tensors of one attention call of run and bench, read from a file or random, and the plan
// options that estimate shares.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/io/tensor_dataset.hpp"
#include "fdma/kernels/attention.hpp"
#include "inputs/mask_operand.hpp"
#include "run/score_input.hpp"

namespace fdma::maskc {

/// The order of a tensor's dimensions in files: [batch, len, heads, head_dim], or heads before len.
enum class TensorLayout : std::uint8_t { bshd, bhsd };
std::string_view to_string(TensorLayout layout);
TensorLayout layout_of(const Arguments& arguments);

/// The problem that a call computes, known before any element is in memory.
struct AttentionProblem {
  AttentionShape shape;
  ProblemScore score;
  TensorLayout layout = TensorLayout::bshd;
  std::string file;   ///< empty for random tensors
  std::string group;  ///< "/" or "/layer/": the group in the file that holds q, k, v and the score
  std::int64_t seed = 0;

  /// "qkv.h5", "qkv.h5:/layer", "random tensors (seed 0)"
  std::string source() const;
};

/// The tensors in the order of dimensions of the file. tensors() gives views in the order of
/// attention_forward.
struct AttentionMemory {
  OwnedTensor q, k, v, out, lse;
  OfScoreTensors<OwnedTensor> score;
  /// The views borrow. The call writes out and lse.
  AttentionTensors tensors(const AttentionProblem& problem);
};

/// The words that name an element type of attention.
std::vector<std::string_view> dtype_choices();
/// --batch, --heads, --heads-kv, --head-dim, --head-dim-v, --dtype and --seed, for random tensors.
std::vector<OptionSpec> random_options();
/// Failure: usage, if one of random_options() was given.
Status check_no_random_options(const Arguments& arguments);
OptionSpec tile_option();
OptionSpec backend_option();
/// Usage failure unless plans are made by the costs of the device that they run on, or of the
/// default one.
Status check_device(const PlanOptions& options);
/// --device of run and bench.
OptionSpec plan_device_option();
OptionSpec plan_form_option();
/// --columns, which estimate has too.
OptionSpec columns_option();

/// The choice by --tile, --backend, --plan-form, --columns and --device. With --backend auto (is_auto), the
/// backend is the best one of this machine, or cpu if the best one has no kernels for the tensors.
struct PlanChoice {
  PlanOptions options;
  bool is_auto = false;
};
Outcome<PlanChoice> plan_choice(const Arguments& arguments);
/// The plan of the chosen backend. Failures: those of make_plan; usage for a --device whose plans run
/// on another backend.
Outcome<std::shared_ptr<const AttentionPlan>> make_chosen_plan(const BlockMask& mask,
                                                               const AttentionProblem& problem,
                                                               const PlanChoice& choice);

/// The problem of random tensors, with the score of score_options(). Failures: usage.
Outcome<AttentionProblem> random_problem(const Arguments& arguments, const MaskShape& mask);
/// Reads the extents of q, k, v and the tensors of the score that the file has at `address`, FILE.h5
/// or FILE.h5:/GROUP; reads no element. Failures: file; usage for extents that contradict each other
/// or the mask, and for score_options().
Outcome<AttentionProblem> file_problem(const Arguments& arguments, const std::string& address,
                                       const MaskShape& mask);

/// Draws random elements, approximately normal. `which` tells apart the tensors of one seed.
void draw(OwnedTensor& tensor, std::int64_t seed, std::uint64_t which, int num_threads);

/// A tensor that is about to be allocated.
struct NamedSpec {
  std::string_view name;
  TensorSpec spec;
};
/// Failure: unsupported, if these tensors do not fit in memory together; the message names them.
Status check_memory(const std::vector<NamedSpec>& tensors);

/// Allocates all tensors, and reads or draws the inputs. out is then 0 and lse is -inf. Failures:
/// file, unsupported (memory).
Outcome<AttentionMemory> fill_memory(const AttentionProblem& problem, int num_threads);

/// The extents and type of each tensor, "[1, 8192, 8, 64]" for example, in the problem's layout.
TensorSpec q_spec(const AttentionProblem& problem);
TensorSpec k_spec(const AttentionProblem& problem);
TensorSpec v_spec(const AttentionProblem& problem);
TensorSpec out_spec(const AttentionProblem& problem);
TensorSpec lse_spec(const AttentionProblem& problem);

}  // namespace fdma::maskc
