#include "backend/backend_backward_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "attention_reference.hpp"
#include "backend/tensor_error.hpp"

namespace fdma::testing {
namespace {

CaseChoice with_lse(CaseChoice choice) {
  choice.wants_lse = true;
  return choice;
}

AttentionPlan plan_of(const MaskCase& mask, const AttentionPlan& forward,
                      const BackwardChoice& backward) {
  PlanOptions options;
  options.backend = forward.backend;
  options.direction = Direction::backward;
  options.tile = backward.tile;
  options.form = backward.form;
  options.columns = backward.columns;
  options.l2_bytes = backward.l2_bytes;
  auto plan = make_plan(mask.mask, forward.shape, forward.score, options);
  if (!plan) throw std::runtime_error(mask.name + ": backward: " + plan.error().message);
  return *std::move(plan);
}

// The valid elements of head h of batch element b, row by row.
std::vector<double> head_values(const BackendTensor& tensor, std::int64_t b, std::int64_t h,
                                std::int64_t len, std::int64_t dim) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(len * dim));
  for (std::int64_t i = 0; i < len; ++i)
    for (std::int64_t d = 0; d < dim; ++d) values.push_back(tensor.get(b, i, h, d));
  return values;
}

// The gradients of one KV head and its query heads.
struct GroupGradients {
  std::vector<reference::HeadGradients> exact, in_own_type;  ///< dq by head, others in entry 0
};

// Compares the heads of one gradient with their references.
class GradientError {
 public:
  GradientError(std::string_view name, DType dtype) : name_(name), dtype_(dtype) {}

  // Adds head h of batch element b, with rows of `dim` elements. A row for which `is_live` is false
  // must be exactly 0.
  template <class IsLive>
  void add(const BackendTensor& got, std::int64_t b, std::int64_t h, std::int64_t dim,
           const std::vector<double>& exact, const std::vector<double>& in_own_type,
           const IsLive& is_live) {
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const RowPlace place{b, h, static_cast<std::int64_t>(i) / dim};
      const double value = got.get(b, place.row, h, static_cast<std::int64_t>(i) % dim);
      if (!is_live(place.row) && value != 0 && dead_.empty())
        dead_ = fmt::format("{}: {} at {}, which nothing sees", name_, value, to_string(place));
      error_.add(value, exact[i], reference::rounded(in_own_type[i], dtype_), place);
    }
  }
  std::string message() const { return dead_.empty() ? bound_error(name_, error_) : dead_; }

 private:
  std::string_view name_;
  DType dtype_;
  TensorError error_;
  std::string dead_;
};

}  // namespace

std::string to_string(const BackwardChoice& choice) {
  return fmt::format(
      "backward {} {}{}{}{}{} tile {}x{}", to_string(choice.form), to_string(choice.columns),
      choice.has_dlse ? " dlse" : "", choice.wants_dbias ? "" : " without dbias",
      choice.are_gradients_float32 ? " to float32" : "",
      choice.deterministic ? " deterministic" : "", choice.tile.block_q, choice.tile.block_kv);
}

BackendBackwardCase::BackendBackwardCase(BackendFixture& fixture, const MaskCase& mask,
                                         const CaseHeads& heads, CaseChoice choice,
                                         const BackwardChoice& backward)
    : fixture_(fixture),
      mask_(mask),
      choice_(with_lse(std::move(choice))),
      backward_(backward),
      forward_(fixture, mask, heads, choice_),
      plan_(plan_of(mask, forward_.plan(), backward)),
      dout_(fixture, choice_.dtype, plan_.shape.batch, plan_.shape.q_lens, heads.heads_q,
            plan_.shape.head_dim_v, choice_.layout, false),
      dlse_(fixture, DType::float32, plan_.shape.batch, plan_.shape.q_lens, heads.heads_q, 0,
            choice_.layout, false),
      dq_(fixture, backward.are_gradients_float32 ? DType::float32 : choice_.dtype,
          plan_.shape.batch, plan_.shape.q_lens, heads.heads_q, plan_.shape.head_dim,
          choice_.layout, true),
      dk_(fixture, backward.are_gradients_float32 ? DType::float32 : choice_.dtype,
          plan_.shape.batch, plan_.shape.kv_lens, heads.heads_kv, plan_.shape.head_dim,
          choice_.layout, true),
      dv_(fixture, backward.are_gradients_float32 ? DType::float32 : choice_.dtype,
          plan_.shape.batch, plan_.shape.kv_lens, heads.heads_kv, plan_.shape.head_dim_v,
          choice_.layout, true),
      // The last axis of a bias must be contiguous, which the transposed layout of outputs is not.
      dbias_(fixture, DType::float32, plan_.shape.batch, plan_.shape.kv_lens, heads.heads_kv, 0,
             choice_.layout == Layout::padded ? Layout::rows : choice_.layout, true) {
  dout_.randomize(choice_.seed * 4 + 1000003, 1);
  dlse_.randomize(choice_.seed * 4 + 1000004, 1);
  run_forward();
}

void BackendBackwardCase::run_forward() {
  if (const auto ran = forward_.run(); !ran)
    throw std::runtime_error(mask_.name + ": forward: " + ran.error().message);
  forward_.out().upload();
  forward_.lse().upload();
  forward_.out_low().upload();
}

BackwardTensors BackendBackwardCase::tensors() const {
  const AttentionTensors forward = forward_.tensors();
  BackwardTensors tensors;
  tensors.q = forward.q;
  tensors.kv = forward.kv;
  tensors.key_bias = forward.key_bias;
  tensors.out = forward.out.view();
  tensors.lse = forward.lse.view();
  tensors.out_low = forward.out_low.view();
  tensors.dout = dout_.view().view();
  if (backward_.has_dlse) tensors.dlse = dlse_.view().view();
  tensors.dq = dq_.view();
  tensors.dk = dk_.view();
  tensors.dv = dv_.view();
  if (choice_.has_bias && backward_.wants_dbias) tensors.dkey_bias = dbias_.view();
  if (forward_.parts() != nullptr) {
    forward_.parts()->add_to(tensors, backward_.wants_part_gradients);
  }
  return tensors;
}

BackwardOptions BackendBackwardCase::options() const {
  BackwardOptions options;
  options.softmax_scale = choice_.softmax_scale;
  options.softcap = choice_.softcap;
  options.deterministic = backward_.deterministic;
  if (forward_.parts() != nullptr) forward_.parts()->add_to(options);
  return options;
}

Result<void> BackendBackwardCase::run(unsigned char byte) { return run(options(), byte); }

Result<void> BackendBackwardCase::run(const BackwardOptions& options, unsigned char byte) {
  return run(plan_, tensors(), options, byte);
}

Result<void> BackendBackwardCase::run(const AttentionPlan& plan, const BackwardTensors& tensors,
                                      const BackwardOptions& options, unsigned char byte) {
  for (BackendTensor* tensor : {&dq_, &dk_, &dv_, &dbias_}) tensor->poison(byte);
  if (forward_.parts() != nullptr) forward_.parts()->poison(byte);
  Result<void> ran = fixture_.backward(plan, tensors, options);
  return ran ? fetched() : ran;
}

Result<void> BackendBackwardCase::run_by(
    const std::function<Result<void>(const BackwardTensors&)>& call, unsigned char byte) {
  for (BackendTensor* tensor : {&dq_, &dk_, &dv_, &dbias_}) tensor->poison(byte);
  Result<void> ran = call(tensors());
  return ran ? fetched() : ran;
}

Result<void> BackendBackwardCase::fetched() {
  forward_.fetch();  // the arrays of parts and their gradients as well
  for (BackendTensor* tensor : {&dout_, &dlse_, &dq_, &dk_, &dv_, &dbias_}) tensor->fetch();
  return {};
}

std::string BackendBackwardCase::check() {
  const bool has_dbias = tensors().dkey_bias.data != nullptr;
  for (const auto& [name, tensor] :
       {std::pair{"q", &forward_.q()}, std::pair{"k", &forward_.k()}, std::pair{"v", &forward_.v()},
        std::pair{"key_bias", &forward_.bias()}, std::pair{"out", &forward_.out()},
        std::pair{"lse", &forward_.lse()}, std::pair{"out_low", &forward_.out_low()},
        std::pair{"dout", &dout_}, std::pair{"dlse", &dlse_}, std::pair{"dq", &dq_},
        std::pair{"dk", &dk_}, std::pair{"dv", &dv_}, std::pair{"dkey_bias", &dbias_}}) {
    const std::string stray = tensor->stray_writes();
    if (!stray.empty()) return fmt::format("{}: {}: {}", mask_.name, name, stray);
  }
  PartArrays* const parts = forward_.parts();
  const bool wants_part_gradients = parts != nullptr && backward_.wants_part_gradients;
  if (parts != nullptr) {
    const std::string stray = parts->stray_writes();
    if (!stray.empty()) return fmt::format("{}: {}", mask_.name, stray);
  }
  const AttentionShape& shape = plan_.shape;
  const std::int64_t head_dim = shape.head_dim, head_dim_v = shape.head_dim_v;
  const auto group_of = [&](std::int64_t b, std::int64_t kv) {
    GroupGradients group;
    reference::HeadProblem head;
    head.q_len = shape.q_len(b);
    head.kv_len = shape.kv_len(b);
    head.head_dim = head_dim;
    head.head_dim_v = head_dim_v;
    head.softmax_scale = choice_.softmax_scale != 0 ? static_cast<double>(choice_.softmax_scale)
                                                    : 1 / std::sqrt(static_cast<double>(head_dim));
    head.softcap = static_cast<double>(choice_.softcap);
    head.k = head_values(forward_.k(), b, kv, head.kv_len, head_dim);
    head.v = head_values(forward_.v(), b, kv, head.kv_len, head_dim_v);
    if (choice_.has_bias) head.bias = head_values(forward_.bias(), b, kv, head.kv_len, 1);
    const reference::HeadProblem of_group = head;
    for (std::int64_t i = 0; i < shape.group_size(); ++i) {
      const std::int64_t h = kv * shape.group_size() + i;
      if (parts != nullptr) head = of_group;
      head.q = head_values(forward_.q(), b, h, head.q_len, head_dim);
      head.cells = mask_.at(b, h).values.data();
      if (parts != nullptr) {
        std::vector<std::int32_t> rows(static_cast<std::size_t>(head.q_len));
        std::iota(rows.begin(), rows.end(), 0);
        parts->add_to(head, b, h, rows);
      }
      const std::vector<double> dout = head_values(dout_, b, h, head.q_len, head_dim_v);
      std::vector<double> dlse;
      if (backward_.has_dlse) dlse = head_values(dlse_, b, h, head.q_len, 1);
      group.exact.push_back(gradients_float64(head, dout, dlse));
      group.in_own_type.push_back(
          gradients_explicit(head, dout, dlse, choice_.dtype, choice_.dtype));
      if (i == 0) continue;
      group.exact[0].add_group_head(group.exact.back());
      group.in_own_type[0].add_group_head(group.in_own_type.back());
    }
    return group;
  };
  std::vector<std::future<GroupGradients>> groups;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t kv = 0; kv < shape.heads_kv; ++kv)
      groups.push_back(std::async(std::launch::async, group_of, b, kv));

  const DType dtype = backward_.are_gradients_float32 ? DType::float32 : choice_.dtype;
  GradientError dq("dq", dtype), dk("dk", dtype), dv("dv", dtype), db("dkey_bias", DType::float32);
  std::unique_ptr<PartArrays::Expected> of_parts;
  if (wants_part_gradients) of_parts = std::make_unique<PartArrays::Expected>(*parts);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto b = static_cast<std::int64_t>(g) / shape.heads_kv;
    const auto kv = static_cast<std::int64_t>(g) % shape.heads_kv;
    const GroupGradients group = groups[g].get();
    std::vector<bool> is_seen(static_cast<std::size_t>(shape.kv_len(b)));
    for (std::int64_t i = 0; i < shape.group_size(); ++i) {
      const std::int64_t h = kv * shape.group_size() + i;
      const auto head = static_cast<std::size_t>(i);
      const Cells& cells = mask_.at(b, h);
      std::vector<bool> sees(static_cast<std::size_t>(shape.q_len(b)));
      for (std::int64_t q = 0; q < shape.q_len(b); ++q) {
        for (std::int64_t k = 0; k < shape.kv_len(b); ++k) {
          if (cells.get(q, k) == 0) continue;
          sees[static_cast<std::size_t>(q)] = is_seen[static_cast<std::size_t>(k)] = true;
        }
      }
      dq.add(dq_, b, h, head_dim, group.exact[head].dq, group.in_own_type[head].dq,
             [&](std::int64_t q) { return sees[static_cast<std::size_t>(q)]; });
      if (of_parts) of_parts->add(b, h, cells, group.exact[head], group.in_own_type[head]);
    }
    const auto is_live = [&](std::int64_t k) { return is_seen[static_cast<std::size_t>(k)]; };
    const reference::HeadGradients& exact = group.exact[0];
    const reference::HeadGradients& in_own_type = group.in_own_type[0];
    dk.add(dk_, b, kv, head_dim, exact.dk, in_own_type.dk, is_live);
    dv.add(dv_, b, kv, head_dim_v, exact.dv, in_own_type.dv, is_live);
    if (has_dbias) db.add(dbias_, b, kv, 1, exact.dbias, in_own_type.dbias, is_live);
  }
  for (const GradientError* error : {&dq, &dk, &dv, &db}) {
    if (const std::string wrong = error->message(); !wrong.empty())
      return mask_.name + ": " + wrong;
  }
  if (of_parts) {
    if (const std::string wrong = of_parts->compare(); !wrong.empty())
      return mask_.name + ": " + wrong;
  }
  return {};
}

double BackendBackwardCase::surplus() const {
  const AttentionShape& shape = plan_.shape;
  double most = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t kv = 0; kv < shape.heads_kv; ++kv) {
      double sum = 0;
      for (std::int64_t k = 0; k < shape.kv_len(b); ++k) sum += dbias_.get(b, k, kv);
      for (std::int64_t i = 0; backward_.has_dlse && i < shape.group_size(); ++i) {
        const std::int64_t head = kv * shape.group_size() + i;
        for (std::int64_t q = 0; q < shape.q_len(b); ++q) sum -= dlse_.get(b, q, head);
      }
      most = std::max(most, std::fabs(sum));
    }
  }
  return most;
}

std::vector<unsigned char> BackendBackwardCase::result_bytes() const {
  std::vector<unsigned char> bytes;
  std::vector<const BackendTensor*> results{&dq_, &dk_, &dv_};
  if (choice_.has_bias && backward_.wants_dbias) results.push_back(&dbias_);
  for (const BackendTensor* tensor : results) {
    const std::vector<unsigned char> each = tensor->bytes();
    bytes.insert(bytes.end(), each.begin(), each.end());
  }
  if (forward_.parts() != nullptr && backward_.wants_part_gradients) {
    const std::vector<unsigned char> each = forward_.parts()->gradient_bytes();
    bytes.insert(bytes.end(), each.begin(), each.end());
  }
  return bytes;
}

std::string check_backward_case(BackendFixture& fixture, const MaskCase& mask,
                                const CaseHeads& heads, const CaseChoice& choice,
                                const BackwardChoice& backward, PlanCounts* counts) {
  BackendBackwardCase test_case(fixture, mask, heads, choice, backward);
  if (counts != nullptr) add_counts(*counts, test_case.plan().counts);
  const std::string where =
      fmt::format(" ({} batch elements, {} / {} heads, {}, {})", heads.batch, heads.heads_q,
                  heads.heads_kv, to_string(choice), to_string(backward));
  if (const auto ran = test_case.run(); !ran) return mask.name + ": " + ran.error().message + where;
  const std::string wrong = test_case.check();
  return wrong.empty() ? "" : wrong + where;
}

std::string delta_error(BackendFixture& fixture, CaseChoice choice,
                        const BackwardChoice& backward) {
  const MaskCase mask = case_of(
      "band", make_cells(290, 350, [](auto q, auto k) { return k <= q + 60 && q - k < 150; }),
      {128, 128});
  choice.has_bias = true;
  BackendBackwardCase test_case(fixture, mask, {2, 4, 2}, choice, backward);
  // The surplus of an exact D is below this bound. It adds 580 rows, in which P dP is about normal.
  // An out that is rounded to 16 bits leaves an error of about 0.001 in each row.
  constexpr double kExact = 1e-3;
  for (const DeltaSource delta_source :
       {DeltaSource::output, DeltaSource::corrected, DeltaSource::automatic}) {
    BackwardOptions options = test_case.options();
    options.delta_source = delta_source;
    if (const auto ran = test_case.run(options); !ran) return ran.error().message;
    const bool is_exact = test_case.surplus() < kExact;
    if (is_exact == (delta_source == DeltaSource::output))
      return fmt::format("row sums {}: surplus {}", static_cast<int>(delta_source),
                         test_case.surplus());
    if (delta_source == DeltaSource::output) continue;
    if (std::string wrong = test_case.check(); !wrong.empty()) return wrong;
  }
  // Weights that are all equal are not rounded in the product with v. D from out and out_low is
  // then exact.
  choice.q_scale = choice.bias_scale = 0;
  for (const bool has_out_low : {false, true}) {
    choice.wants_out_low = has_out_low;
    BackendBackwardCase even(fixture, mask, {2, 4, 2}, choice, backward);
    BackwardOptions options = even.options();
    options.delta_source = DeltaSource::output;
    if (const auto ran = even.run(options); !ran) return ran.error().message;
    if ((even.surplus() < kExact) != has_out_low)
      return fmt::format("{} residual: surplus {}", has_out_low ? "with" : "without",
                         even.surplus());
    if (!has_out_low) continue;
    if (std::string wrong = even.check(); !wrong.empty()) return wrong;
    const std::vector<unsigned char> bytes = even.result_bytes();
    if (const auto ran = even.run(even.options()); !ran) return ran.error().message;
    if (backward.deterministic && even.result_bytes() != bytes)
      return "automatic: does not take the residual";
  }
  return {};
}

}  // namespace fdma::testing
