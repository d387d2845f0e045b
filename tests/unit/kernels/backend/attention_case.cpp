#include "backend/attention_case.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "backend/tensor_error.hpp"

namespace fdma::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

AttentionCase::AttentionCase(AttentionShape shape, ScoreSpec score, const TensorChoice& choice)
    : shape_(std::move(shape)), score_(score), softcap_(score.softcap ? choice.softcap : 0) {
  const auto make = [&](DType dtype, const std::vector<std::int64_t>& lengths, std::int64_t heads,
                        std::int64_t dim) {
    return std::make_unique<TestTensor>(dtype, shape_.batch, lengths, heads, dim, choice.order,
                                        choice.side);
  };
  q_ = make(shape_.q_dtype, shape_.q_lens, shape_.heads_q, shape_.head_dim);
  k_ = make(shape_.k_dtype, shape_.kv_lens, shape_.heads_kv, shape_.head_dim);
  v_ = make(shape_.v_dtype, shape_.kv_lens, shape_.heads_kv, shape_.head_dim_v);
  bias_ = make(DType::float32, shape_.kv_lens, shape_.heads_kv, 0);
  out_ = make(shape_.out_dtype, shape_.q_lens, shape_.heads_q, shape_.head_dim_v);
  lse_ = make(DType::float32, shape_.q_lens, shape_.heads_q, 0);
  q_->randomize(choice.seed * 4, choice.q_scale);
  k_->randomize(choice.seed * 4 + 1, 1);
  v_->randomize(choice.seed * 4 + 2, 1);
  if (score_.key_bias) bias_->randomize(choice.seed * 4 + 3, choice.bias_scale);
}

AttentionTensors AttentionCase::tensors() const {
  AttentionTensors tensors;
  tensors.q = q_->view();
  tensors.kv.k = k_->view();
  tensors.kv.v = v_->view();
  if (score_.key_bias) tensors.key_bias = bias_->view();
  tensors.out = out_->mutable_view();
  tensors.lse = lse_->mutable_view();
  return tensors;
}

Result<void> AttentionCase::run(const AttentionPlan& plan, AttentionOptions options,
                                unsigned char poison) {
  poison_ = poison;
  out_->fill(poison);
  lse_->fill(poison);
  options.softcap = softcap_;
  return attention_forward(plan, tensors(), options);
}

reference::HeadProblem AttentionCase::problem(std::int64_t b, std::int64_t h, const MaskCase& mask,
                                              float softmax_scale) const {
  const std::int64_t h_kv = h / shape_.group_size();
  reference::HeadProblem problem;
  problem.q_len = shape_.q_len(b);
  problem.kv_len = shape_.kv_len(b);
  problem.head_dim = shape_.head_dim;
  problem.head_dim_v = shape_.head_dim_v;
  problem.q = q_->head(b, h);
  problem.k = k_->head(b, h_kv);
  problem.v = v_->head(b, h_kv);
  if (score_.key_bias) problem.bias = bias_->head(b, h_kv);
  problem.softmax_scale = softmax_scale != 0 ? static_cast<double>(softmax_scale)
                                             : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
  problem.softcap = static_cast<double>(softcap_);
  problem.cells = mask.at(b, h).values.data();
  return problem;
}

std::string AttentionCase::compare(const MaskCase& mask, float softmax_scale) const {
  for (const auto& [name, tensor] : {std::pair{"out", out_.get()}, std::pair{"lse", lse_.get()}}) {
    const std::string stray = tensor->stray_writes(poison_);
    if (!stray.empty()) return fmt::format("{}: {}: {}", mask.name, name, stray);
  }
  TensorError out_error, lse_error;
  for (std::int64_t b = 0; b < shape_.batch; ++b) {
    for (std::int64_t h = 0; h < shape_.heads_q; ++h) {
      const reference::HeadProblem head = problem(b, h, mask, softmax_scale);
      const reference::HeadResult wanted = reference::attention_float64(head);
      const reference::HeadResult in_own_type =
          reference::attention_explicit(head, shape_.v_dtype, shape_.out_dtype);
      for (std::int64_t i = 0; i < shape_.q_len(b); ++i) {
        const RowPlace place{b, h, i};
        const auto row = static_cast<std::size_t>(i);
        const double lse = lse_->get(b, i, h);
        if (wanted.lse[row] == -kInfinity) {
          bool is_zero = lse == -kInfinity;
          for (std::int64_t d = 0; d < shape_.head_dim_v; ++d)
            is_zero &= out_->get(b, i, h, d) == 0;
          if (!is_zero)
            return fmt::format("{}: {}: no keys, but not 0 and -inf", mask.name, to_string(place));
          continue;
        }
        lse_error.add(lse, wanted.lse[row], in_own_type.lse[row], place);
        for (std::int64_t d = 0; d < shape_.head_dim_v; ++d) {
          const auto at =
              row * static_cast<std::size_t>(shape_.head_dim_v) + static_cast<std::size_t>(d);
          out_error.add(out_->get(b, i, h, d), wanted.out[at], in_own_type.out[at], place);
        }
      }
    }
  }
  for (const auto& [name, error] : {std::pair{"out", out_error}, std::pair{"lse", lse_error}}) {
    const std::string wrong = bound_error(name, error);
    if (!wrong.empty()) return mask.name + ": " + wrong;
  }
  return {};
}

std::vector<unsigned char> AttentionCase::result_bytes() const {
  std::vector<unsigned char> bytes = out_->bytes();
  const std::vector<unsigned char> lse = lse_->bytes();
  bytes.insert(bytes.end(), lse.begin(), lse.end());
  return bytes;
}

std::string check_attention(const MaskCase& mask, const AttentionShape& shape, ScoreSpec score,
                            const TensorChoice& choice, const PlanOptions& options,
                            float softmax_scale) {
  const auto plan = make_plan(mask.mask, shape, score, options);
  if (!plan) return mask.name + ": " + plan.error().message;
  AttentionCase attention(shape, score, choice);
  AttentionOptions run_options;
  run_options.num_threads = 1;
  run_options.softmax_scale = softmax_scale;
  if (const auto ran = attention.run(*plan, run_options); !ran)
    return mask.name + ": " + ran.error().message;
  return attention.compare(mask, softmax_scale);
}

}  // namespace fdma::testing
