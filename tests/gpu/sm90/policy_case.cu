#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "backend/mask_cases.hpp"
#include "gpu_fixture.hpp"
#include "sm90/backward/attention_backward.hpp"
#include "sm90/forward/attention_forward.hpp"
#include "sm90/policy_case.hpp"

namespace fdma::gpu_test {
namespace {

constexpr int kBatch = 2, kHeadsQ = 4, kHeadsKv = 2, kQLen = 200, kKvLen = 333;
constexpr int kDim = PolicyCase::kHeadDim;

std::size_t size_of(int heads, int length) {
  return std::size_t{kBatch} * static_cast<std::size_t>(heads * length * kDim);
}
// Offset of a row of a tensor [batch, length, heads, kDim].
std::size_t row_at(int batch, int length, int row, int heads, int head) {
  return static_cast<std::size_t>(((batch * length + row) * heads + head) * kDim);
}
std::size_t lse_at(int batch, int head, int query) {
  return static_cast<std::size_t>((batch * kHeadsQ + head) * kQLen + query);
}
bool is_live(int query, int key) { return key <= query + kKvLen - kQLen; }

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
}
float from_bfloat16(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16U);
}

std::vector<float> random_values(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = from_bfloat16(to_bfloat16(normal(rng)));
  return values;
}
std::vector<std::uint16_t> narrowed(const std::vector<float>& values) {
  std::vector<std::uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), to_bfloat16);
  return narrow;
}
std::vector<double> widened(const std::vector<std::uint16_t>& values) {
  std::vector<double> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(), from_bfloat16);
  return wide;
}

double error_of(const std::vector<double>& values, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}
std::vector<double> fetched(const DeviceArray<float>& values) {
  const std::vector<float> host = values.to_host();
  return {host.begin(), host.end()};
}

MutableTensorView view_of(void* data, DType dtype, int length, int heads) {
  MutableTensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = Device::cuda;
  view.rank = 4;
  view.extents = {kBatch, length, heads, kDim};
  view.strides = {std::int64_t{length} * heads * kDim, std::int64_t{heads} * kDim, kDim, 1};
  return view;
}
MutableTensorView lse_view(float* data) {
  MutableTensorView view;
  view.data = data;
  view.dtype = DType::float32;
  view.device = Device::cuda;
  view.rank = 3;
  view.extents = {kBatch, kHeadsQ, kQLen, 1};
  view.strides = {std::int64_t{kHeadsQ} * kQLen, kQLen, 1, 0};
  return view;
}

void require(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}
std::unique_ptr<gpu::DevicePlan> uploaded(const AttentionPlan& plan) {
  auto result = gpu::upload(plan, nullptr);
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

}  // namespace

struct PolicyCase::Results {
  std::vector<double> out, lse, dq, dk, dv;
};

PolicyCase::PolicyCase()
    : q_(random_values(size_of(kHeadsQ, kQLen), 1)),
      k_(random_values(size_of(kHeadsKv, kKvLen), 2)),
      v_(random_values(size_of(kHeadsKv, kKvLen), 3)),
      dout_(random_values(size_of(kHeadsQ, kQLen), 4)),
      d_q_(narrowed(q_)),
      d_k_(narrowed(k_)),
      d_v_(narrowed(v_)),
      d_dout_(narrowed(dout_)),
      d_out_(q_.size()),
      d_lse_(q_.size() / kDim),
      d_dq_(q_.size()),
      d_dk_(k_.size()),
      d_dv_(v_.size()) {
  shape_.batch = kBatch;
  shape_.heads_q = kHeadsQ;
  shape_.heads_kv = kHeadsKv;
  shape_.q_lens = {kQLen};
  shape_.kv_lens = {kKvLen};
  shape_.head_dim = shape_.head_dim_v = kDim;
  shape_.q_dtype = shape_.k_dtype = shape_.v_dtype = shape_.out_dtype = DType::bfloat16;
}

AttentionPlan PolicyCase::plan(Direction direction) const {
  const auto cells = testing::make_cells(kQLen, kKvLen, [](auto query, auto key) {
    return is_live(static_cast<int>(query), static_cast<int>(key));
  });
  PlanOptions options;
  options.backend = Backend::sm90;
  options.direction = direction;
  auto plan = make_plan(testing::case_of("causal", cells, {128, 128}).mask, shape_, {}, options);
  if (!plan) throw std::runtime_error(plan.error().message);
  return *std::move(plan);
}

void PolicyCase::forward(const sm90::ForwardKernel& kernel) {
  const auto device_plan = uploaded(plan(Direction::forward));
  const Workspace workspace(sm90::forward_workspace_bytes(*device_plan));
  AttentionTensors tensors;
  tensors.q = view_of(d_q_.data(), DType::bfloat16, kQLen, kHeadsQ).view();
  tensors.kv.k = view_of(d_k_.data(), DType::bfloat16, kKvLen, kHeadsKv).view();
  tensors.kv.v = view_of(d_v_.data(), DType::bfloat16, kKvLen, kHeadsKv).view();
  tensors.out = view_of(d_out_.data(), DType::bfloat16, kQLen, kHeadsQ);
  tensors.lse = lse_view(d_lse_.data());
  require(sm90::attention_forward_by(kernel, *device_plan, tensors, Launch{workspace.data()}, {}));
  workspace.require_canaries();
}

void PolicyCase::backward(const sm90::BackwardKernel& kernel) {
  const auto device_plan = uploaded(plan(Direction::backward));
  const Workspace workspace(sm90::backward_workspace_bytes(*device_plan));
  BackwardTensors tensors;
  tensors.q = view_of(d_q_.data(), DType::bfloat16, kQLen, kHeadsQ).view();
  tensors.kv.k = view_of(d_k_.data(), DType::bfloat16, kKvLen, kHeadsKv).view();
  tensors.kv.v = view_of(d_v_.data(), DType::bfloat16, kKvLen, kHeadsKv).view();
  tensors.out = view_of(d_out_.data(), DType::bfloat16, kQLen, kHeadsQ).view();
  tensors.lse = lse_view(d_lse_.data()).view();
  tensors.dout = view_of(d_dout_.data(), DType::bfloat16, kQLen, kHeadsQ).view();
  tensors.dq = view_of(d_dq_.data(), DType::float32, kQLen, kHeadsQ);
  tensors.dk = view_of(d_dk_.data(), DType::float32, kKvLen, kHeadsKv);
  tensors.dv = view_of(d_dv_.data(), DType::float32, kKvLen, kHeadsKv);
  BackwardOptions options;
  options.delta_source = DeltaSource::output;
  require(sm90::attention_backward_by(kernel, *device_plan, tensors, Launch{workspace.data()},
                                      options));
  workspace.require_canaries();
}

PolicyCase::Results PolicyCase::reference(const CellRules& rules) const {
  const double scale = 1 / std::sqrt(double{kDim});
  Results results;
  results.out.resize(q_.size());
  results.lse.resize(q_.size() / kDim);
  results.dq.resize(q_.size());
  results.dk.resize(k_.size());
  results.dv.resize(v_.size());
  const auto dot = [](const float* a, const float* b) {
    double sum = 0;
    for (int i = 0; i < kDim; ++i) sum += double{a[i]} * b[i];
    return sum;
  };
  const auto add = [](double* to, double factor, const float* x) {
    for (int i = 0; i < kDim; ++i) to[i] += factor * x[i];
  };
  for (int b = 0; b < kBatch; ++b) {
    for (int head = 0; head < kHeadsQ; ++head) {
      for (int query = 0; query < kQLen; ++query) {
        const std::size_t at = row_at(b, kQLen, query, kHeadsQ, head);
        const auto key_at = [&](int key) {
          return row_at(b, kKvLen, rules.reverses_keys ? kKvLen - 1 - key : key, kHeadsKv,
                        head / (kHeadsQ / kHeadsKv));
        };
        std::vector<double> p(kKvLen, 0.0);
        double sum = 0;
        for (int key = 0; key < kKvLen; ++key) {
          if (!is_live(query, key)) continue;
          const auto i = static_cast<std::size_t>(key);
          p[i] = std::exp(scale * dot(&q_[at], &k_[key_at(key)]) +
                          rules.added_logit(head, query, key));
          sum += p[i];
        }
        results.lse[lse_at(b, head, query)] = std::log(sum);
        std::vector<double> dp(kKvLen, 0.0);
        double delta = 0;
        for (int key = 0; key < kKvLen; ++key) {
          if (!is_live(query, key)) continue;
          const auto i = static_cast<std::size_t>(key);
          p[i] /= sum;
          const double weight = rules.weight(head, query, key);
          add(&results.out[at], weight * p[i], &v_[key_at(key)]);
          add(&results.dv[key_at(key)], weight * p[i], &dout_[at]);
          dp[i] = weight * dot(&dout_[at], &v_[key_at(key)]);
          delta += p[i] * dp[i];
        }
        for (int key = 0; key < kKvLen; ++key) {
          const auto i = static_cast<std::size_t>(key);
          const double ds = scale * p[i] * (dp[i] - delta);
          add(&results.dq[at], ds, &k_[key_at(key)]);
          add(&results.dk[key_at(key)], ds, &q_[at]);
        }
      }
    }
  }
  return results;
}

PolicyErrors PolicyCase::forward_errors(const CellRules& rules) const {
  const Results expected = reference(rules);
  PolicyErrors errors;
  errors.out = error_of(widened(d_out_.to_host()), expected.out);
  const std::vector<double> lse = fetched(d_lse_);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    errors.lse = std::max(errors.lse, std::abs(lse[i] - expected.lse[i]));
  }
  return errors;
}

PolicyErrors PolicyCase::backward_errors(const CellRules& rules) const {
  const Results expected = reference(rules);
  PolicyErrors errors;
  errors.dq = error_of(fetched(d_dq_), expected.dq);
  errors.dk = error_of(fetched(d_dk_), expected.dk);
  errors.dv = error_of(fetched(d_dv_), expected.dv);
  return errors;
}

}  // namespace fdma::gpu_test
