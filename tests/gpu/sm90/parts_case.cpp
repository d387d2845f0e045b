#include "sm90/parts_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>

#include "attention_reference.hpp"
#include "call/dropout_bits.hpp"

namespace fdma::gpu_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::int64_t size_of(const std::vector<std::int64_t>& extents) {
  std::int64_t size = 1;
  for (const std::int64_t extent : extents) size *= extent;
  return size;
}

// Root mean square of the differences over that of the expected values. NaN if a value is.
double error_of(const std::vector<double>& values, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i]) {  // infinities too
      norm += std::isfinite(values[i]) ? values[i] * values[i] : 0;
      continue;
    }
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

void require(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

}  // namespace

PartTensor::PartTensor(GpuFixture& fixture, DType dtype, std::vector<std::int64_t> extents,
                       std::uint64_t seed, double scale)
    : dtype_(dtype),
      extents_(std::move(extents)),
      values_(static_cast<std::size_t>(size_of(extents_))),
      bytes_(values_.size() * static_cast<std::size_t>(size_bytes(dtype))),
      memory_(fixture, bytes_) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  for (double& value : values_) value = reference::rounded(scale * normal(rng), dtype);
  upload();
}

std::int64_t PartTensor::offset(std::initializer_list<std::int64_t> indices) const {
  std::int64_t at = 0;
  std::size_t axis = 0;
  for (const std::int64_t index : indices) {
    at = at * extents_[axis] + (extents_[axis] == 1 ? 0 : index);
    ++axis;
  }
  return at;
}

void PartTensor::set(std::initializer_list<std::int64_t> indices, double value) {
  values_[static_cast<std::size_t>(offset(indices))] = value;
}

void PartTensor::upload() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    reference::encode(bytes_.data(), dtype_, static_cast<std::int64_t>(i), values_[i]);
  }
  memory_.set(bytes_);
}

void PartTensor::poison() { memory_.set(std::vector<unsigned char>(bytes_.size(), 0xff)); }

void PartTensor::fetch() {
  bytes_ = memory_.fetch();
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i] = reference::decode(bytes_.data(), dtype_, static_cast<std::int64_t>(i));
  }
}

std::string to_string(const PartsChoice& choice) {
  return fmt::format(
      "{} dim {} heads {}/{} softcap {}{} bias {} {} alibi {} relative {} sinks {} dropout "
      "{}{}{}{} "
      "delta {} columns {} form {}",
      fdma::to_string(choice.dtype), choice.head_dim, choice.heads_q, choice.heads_kv,
      choice.softcap, choice.has_key_bias ? " key_bias" : "", choice.bias,
      fdma::to_string(choice.bias_dtype), choice.alibi, choice.relative, choice.sinks,
      choice.dropout.rate, choice.has_dlse ? " dlse" : "", choice.wants_out_low ? " out_low" : "",
      choice.deterministic ? " deterministic" : "", static_cast<int>(choice.delta_source),
      to_string(choice.columns), to_string(choice.form));
}

/// The results of the definition. Gradients have the extents of their tensors.
struct PartsCase::Reference {
  std::vector<double> out, lse, dq, dk, dv, dkey_bias, dbias, drelative, dsinks;
};

PartsCase::Owned PartsCase::made(DType dtype, const std::vector<std::int64_t>& extents,
                                 double scale) {
  if (extents.empty()) return nullptr;
  return std::make_unique<PartTensor>(fixture_, dtype, extents, ++seed_, scale);
}

PartsCase::PartsCase(GpuFixture& fixture, const testing::MaskCase& mask, PartsChoice choice)
    : fixture_(fixture),
      mask_(mask),
      choice_(std::move(choice)),
      shape_(testing::shape_for(mask.mask, choice_.batch, choice_.heads_q, choice_.heads_kv)),
      seeds_(fixture, {choice_.dropout.seed, choice_.dropout.offset}),
      seed_(choice_.seed * 100) {
  shape_.head_dim = shape_.head_dim_v = choice_.head_dim;
  shape_.q_dtype = shape_.k_dtype = shape_.v_dtype = shape_.out_dtype = choice_.dtype;
  const std::int64_t batch = shape_.batch, q_len = shape_.max_q_len(), kv_len = shape_.max_kv_len();
  const std::vector<std::int64_t> of_queries{batch, q_len, choice_.heads_q, choice_.head_dim},
      of_keys{batch, kv_len, choice_.heads_kv, choice_.head_dim},
      of_rows{batch, choice_.heads_q, q_len}, of_key_bias{batch, choice_.heads_kv, kv_len};
  const DType dtype = choice_.dtype;
  for (Owned* each : {&q_, &dout_, &out_, &dq_}) *each = made(dtype, of_queries);
  if (choice_.wants_out_low) out_low_ = made(dtype, of_queries);
  for (Owned* each : {&k_, &v_, &dk_, &dv_}) *each = made(dtype, of_keys);
  lse_ = made(DType::float32, of_rows);
  if (choice_.has_dlse) dlse_ = made(DType::float32, of_rows);
  if (choice_.has_key_bias) {
    key_bias_ = made(DType::float32, of_key_bias);
    dkey_bias_ = made(DType::float32, of_key_bias);
  }
  bias_ = made(choice_.bias_dtype, choice_.bias);
  dbias_ = made(choice_.bias_dtype, choice_.bias);
  alibi_ = made(DType::float32, choice_.alibi, 0.02);
  relative_ = made(DType::float32, choice_.relative);
  drelative_ = made(DType::float32, choice_.relative);
  sinks_ = made(choice_.sinks_dtype, choice_.sinks, choice_.sinks_scale);
  dsinks_ = made(choice_.sinks_dtype, choice_.sinks);
}

ScoreSpec PartsCase::score() const {
  ScoreSpec score;
  score.softcap = choice_.softcap != 0;
  score.key_bias = choice_.has_key_bias;
  score.bias = bias_ != nullptr;
  score.alibi = alibi_ != nullptr;
  score.relative_table = relative_ != nullptr;
  score.sink = sinks_ != nullptr;
  score.dropout = choice_.dropout.rate > 0;
  return score;
}

AttentionPlan PartsCase::make_plan_for(Direction direction) const {
  PlanOptions options;
  options.backend = fixture_.backend();
  options.direction = direction;
  // Backward plans have no kv index lists.
  const bool is_refused = direction == Direction::backward && choice_.columns == ColumnMode::gather;
  options.columns = is_refused ? ColumnMode::automatic : choice_.columns;
  options.form = choice_.form;
  options.split = choice_.split;
  auto plan = make_plan(mask_.mask, shape_, score(), options);
  if (!plan) throw std::runtime_error(mask_.name + ": " + plan.error().message);
  return *std::move(plan);
}

PartsCase::Reference PartsCase::reference() const {
  Reference results;
  const auto sized = [](const Owned& tensor) {
    return std::vector<double>(tensor == nullptr ? 0 : tensor->values().size());
  };
  results.out = sized(out_);
  results.lse = sized(lse_);
  results.dq = sized(dq_);
  results.dk = sized(dk_);
  results.dv = sized(dv_);
  results.dkey_bias = sized(dkey_bias_);
  results.dbias = sized(dbias_);
  results.drelative = sized(drelative_);
  results.dsinks = sized(dsinks_);
  const std::int64_t dim = choice_.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const double cap = static_cast<double>(choice_.softcap);
  const auto row_of = [](const PartTensor& tensor, std::int64_t b, std::int64_t row,
                         std::int64_t h) {
    return static_cast<std::size_t>(tensor.offset({b, row, h, 0}));
  };
  const auto dot = [dim](const double* x, const double* y) {
    double sum = 0;
    for (std::int64_t d = 0; d < dim; ++d) sum += x[d] * y[d];
    return sum;
  };
  const auto add = [dim](double* to, double factor, const double* x) {
    for (std::int64_t d = 0; d < dim; ++d) to[d] += factor * x[d];
  };
  const auto add_at = [](std::vector<double>& to, const PartTensor& tensor,
                         std::initializer_list<std::int64_t> indices, double value) {
    to[static_cast<std::size_t>(tensor.offset(indices))] += value;
  };
  DropoutBits dropout = dropout_bits_of_rate(choice_.dropout.rate);
  dropout.set_seed(choice_.dropout.seed, choice_.dropout.offset);
  const auto weight_of = [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
    const auto head = static_cast<std::uint32_t>(b * choice_.heads_q + h);
    return dropout.keeps(head, q, k) ? 1 / (1 - choice_.dropout.rate) : 0.0;
  };
  const std::int64_t group_size = shape_.group_size();
  // The index along the head axis of a bias.
  const auto bias_head = [&](std::int64_t h) {
    return choice_.bias[1] == choice_.heads_q ? h : h / group_size;
  };
  const auto distance_index = [&](std::int64_t distance) {
    const std::int64_t last = choice_.relative[1] - 1;
    return std::clamp(distance + choice_.relative_left, std::int64_t{0}, last);
  };
  for (std::int64_t b = 0; b < shape_.batch; ++b) {
    for (std::int64_t h = 0; h < choice_.heads_q; ++h) {
      const std::int64_t g = h / group_size;
      const testing::Cells& cells = mask_.at(b, h);
      for (std::int64_t i = 0; i < shape_.q_len(b); ++i) {
        const std::int64_t pos = i + shape_.kv_len(b) - shape_.q_len(b);
        const std::size_t q_at = row_of(*q_, b, i, h);
        const double* q = &q_->values()[q_at];
        const double* dout = &dout_->values()[q_at];
        std::vector<std::int64_t> keys;
        std::vector<double> logits, slopes;
        double largest = -kInfinity;
        for (std::int64_t k = 0; k < shape_.kv_len(b); ++k) {
          if (cells.get(i, k) == 0) continue;
          double x = scale * dot(q, &k_->values()[row_of(*k_, b, k, g)]), slope = 1;
          if (cap != 0) {
            const double t = std::tanh(x / cap);
            x = cap * t;
            slope = 1 - t * t;
          }
          if (key_bias_ != nullptr) x += key_bias_->at({b, g, k});
          if (bias_ != nullptr) x += bias_->at({b, bias_head(h), i, k});
          if (alibi_ != nullptr) {
            x -= (choice_.alibi.size() == 1 ? alibi_->at({h}) : alibi_->at({b, h})) *
                 static_cast<double>(std::abs(pos - k));
          }
          if (relative_ != nullptr) x += relative_->at({h, distance_index(k - pos)});
          keys.push_back(k);
          logits.push_back(x);
          slopes.push_back(slope);
          largest = std::max(largest, x);
        }
        const auto row = static_cast<std::size_t>(lse_->offset({b, h, i}));
        if (largest == -kInfinity) {
          results.lse[row] = -kInfinity;
          continue;
        }
        double sum = 0;
        for (const double x : logits) sum += std::exp(x - largest);
        results.lse[row] = largest + std::log(sum);
        double sink = -kInfinity;
        if (sinks_ != nullptr) {
          sink = choice_.sinks.size() == 1 ? sinks_->at({h}) : sinks_->at({b, h, i});
        }
        const double total = sum + std::exp(sink - largest);
        double delta = 0;
        std::vector<double> p, dp;
        for (std::size_t j = 0; j < keys.size(); ++j) {
          const std::size_t k_at = row_of(*k_, b, keys[j], g);
          p.push_back(std::exp(logits[j] - largest) / total);
          const double weight = weight_of(b, h, i, keys[j]);
          dp.push_back(weight * dot(dout, &v_->values()[k_at]));
          add(&results.out[q_at], weight * p[j], &v_->values()[k_at]);
          add(&results.dv[k_at], weight * p[j], dout);
          delta += p[j] * dp[j];
        }
        const double dlse = dlse_ == nullptr ? 0 : dlse_->at({b, h, i});
        for (std::size_t j = 0; j < keys.size(); ++j) {
          const std::int64_t k = keys[j];
          const std::size_t k_at = row_of(*k_, b, k, g);
          const double ds = p[j] * (dp[j] - delta) + dlse * std::exp(logits[j] - results.lse[row]);
          const double bent = scale * slopes[j] * ds;
          add(&results.dq[q_at], bent, &k_->values()[k_at]);
          add(&results.dk[k_at], bent, q);
          if (key_bias_ != nullptr) add_at(results.dkey_bias, *key_bias_, {b, g, k}, ds);
          if (bias_ != nullptr) add_at(results.dbias, *bias_, {b, bias_head(h), i, k}, ds);
          if (relative_ != nullptr) {
            add_at(results.drelative, *relative_, {h, distance_index(k - pos)}, ds);
          }
        }
        if (sinks_ == nullptr) continue;
        const double dsink = -std::exp(sink - largest) / total * delta;
        if (choice_.sinks.size() == 1) {
          add_at(results.dsinks, *sinks_, {h}, dsink);
        } else {
          add_at(results.dsinks, *sinks_, {b, h, i}, dsink);
        }
      }
    }
  }
  return results;
}

Dropout PartsCase::call_dropout() const {
  Dropout dropout = choice_.dropout;
  if (choice_.seeds_on_device) {
    dropout.seed_at = static_cast<const std::uint64_t*>(seeds_.data());
    dropout.offset_at = dropout.seed_at + 1;
    dropout.seed = dropout.offset = 0;
  }
  return dropout;
}

std::string PartsCase::forward_error() {
  plan_ = std::make_unique<AttentionPlan>(make_plan_for(Direction::forward));
  AttentionTensors tensors;
  tensors.q = q_->view().view();
  tensors.kv.k = k_->view().view();
  tensors.kv.v = v_->view().view();
  tensors.out = out_->view();
  tensors.lse = lse_->view();
  if (out_low_ != nullptr) tensors.out_low = out_low_->view();
  if (key_bias_ != nullptr) tensors.key_bias = key_bias_->view().view();
  if (bias_ != nullptr) tensors.bias = bias_->view().view();
  if (alibi_ != nullptr) tensors.alibi_slopes = alibi_->view().view();
  if (relative_ != nullptr) tensors.relative = relative_->view().view();
  if (sinks_ != nullptr) tensors.sinks = sinks_->view().view();
  AttentionOptions options;
  options.softcap = choice_.softcap;
  options.relative_left = choice_.relative_left;
  options.dropout = call_dropout();
  for (PartTensor* each : {out_.get(), lse_.get(), out_low_.get()}) {
    if (each != nullptr) each->poison();
  }
  require(fixture_.forward(*plan_, tensors, options));
  out_->fetch();
  lse_->fetch();
  if (out_low_ != nullptr) out_low_->fetch();
  const Reference expected = reference();
  const double bound = choice_.dtype == DType::bfloat16 ? 0.01 : 0.0015;
  const double out_error = error_of(out_->values(), expected.out),
               lse_error = error_of(lse_->values(), expected.lse);
  if (!(out_error < bound) || !(lse_error < 1e-4)) {
    return fmt::format("{}: {}: errors of out {:.5f} lse {:.6f}", mask_.name, to_string(choice_),
                       out_error, lse_error);
  }
  return {};
}

std::string PartsCase::backward_error() {
  plan_ = std::make_unique<AttentionPlan>(make_plan_for(Direction::backward));
  BackwardTensors tensors;
  tensors.q = q_->view().view();
  tensors.kv.k = k_->view().view();
  tensors.kv.v = v_->view().view();
  tensors.out = out_->view().view();
  tensors.lse = lse_->view().view();
  if (out_low_ != nullptr) tensors.out_low = out_low_->view().view();
  tensors.dout = dout_->view().view();
  if (dlse_ != nullptr) tensors.dlse = dlse_->view().view();
  tensors.dq = dq_->view();
  tensors.dk = dk_->view();
  tensors.dv = dv_->view();
  if (key_bias_ != nullptr) {
    tensors.key_bias = key_bias_->view().view();
    tensors.dkey_bias = dkey_bias_->view();
  }
  if (bias_ != nullptr) {
    tensors.bias = bias_->view().view();
    tensors.dbias = dbias_->view();
  }
  if (alibi_ != nullptr) tensors.alibi_slopes = alibi_->view().view();
  if (relative_ != nullptr) {
    tensors.relative = relative_->view().view();
    tensors.drelative = drelative_->view();
  }
  if (sinks_ != nullptr) {
    tensors.sinks = sinks_->view().view();
    tensors.dsinks = dsinks_->view();
  }
  BackwardOptions options;
  options.softcap = choice_.softcap;
  options.relative_left = choice_.relative_left;
  options.dropout = call_dropout();
  options.deterministic = choice_.deterministic;
  options.delta_source = choice_.delta_source;
  const Reference expected = reference();
  const std::pair<std::pair<const char*, PartTensor*>, const std::vector<double>*> results[] = {
      {{"dq", dq_.get()}, &expected.dq},
      {{"dk", dk_.get()}, &expected.dk},
      {{"dv", dv_.get()}, &expected.dv},
      {{"dkey_bias", dkey_bias_.get()}, &expected.dkey_bias},
      {{"dbias", dbias_.get()}, &expected.dbias},
      {{"drelative", drelative_.get()}, &expected.drelative},
      {{"dsinks", dsinks_.get()}, &expected.dsinks}};
  for (const auto& [named, values] : results) {
    if (named.second != nullptr) named.second->poison();
  }
  require(fixture_.backward(*plan_, tensors, options));
  const double bound = choice_.dtype == DType::bfloat16 ? 0.02 : 0.004;
  std::string wrong;
  for (const auto& [named, values] : results) {
    const auto& [name, tensor] = named;
    if (tensor == nullptr) continue;
    tensor->fetch();
    const double error = error_of(tensor->values(), *values);
    if (!(error < bound)) wrong += fmt::format(" {} {:.5f}", name, error);
    for (std::size_t i = 0; i < values->size() && wrong.empty(); ++i) {
      if ((*values)[i] == 0 && tensor->values()[i] != 0) {
        wrong += fmt::format(" {} is {} at {}, which nothing sees", name, tensor->values()[i], i);
      }
    }
  }
  if (wrong.empty()) return {};
  return fmt::format("{}: {}: errors of{}", mask_.name, to_string(choice_), wrong);
}

std::vector<unsigned char> PartsCase::gradient_bytes() const {
  std::vector<unsigned char> bytes;
  for (const PartTensor* each : {dq_.get(), dk_.get(), dv_.get(), dkey_bias_.get(), dbias_.get(),
                                 drelative_.get(), dsinks_.get()}) {
    if (each != nullptr) bytes.insert(bytes.end(), each->bytes().begin(), each->bytes().end());
  }
  return bytes;
}

}  // namespace fdma::gpu_test
