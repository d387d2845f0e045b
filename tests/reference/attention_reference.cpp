#include "attention_reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace fdma::reference {
namespace {

/// A binary floating-point format of 16 bits: sign, exponent, mantissa.
struct Format16 {
  int mantissa_bits;
  int bias;
};

Format16 format_of(DType dtype) {
  return dtype == DType::float16 ? Format16{10, 15} : Format16{7, 127};
}

double decode16(std::uint16_t bits, Format16 format) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int exponent = (bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << format.mantissa_bits),
                       exponent - format.bias - format.mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

std::uint16_t encode16(double value, Format16 format) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = 0x7fff & ~((1 << format.mantissa_bits) - 1);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent - 1), 2^exponent)
  exponent = std::max(exponent - 1, 1 - format.bias);
  // The mantissa in units of the last place. A carry goes into the exponent by the addition, also
  // up to infinity.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double bits =
      units + std::ldexp(exponent + format.bias - 1, format.mantissa_bits);  // implicit bit: + 1
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::fmin(bits, infinity)));
}

/// The dot product in four sums side by side. The order of additions is free here, and each
/// addition to a single sum would wait for the one before it.
template <class Real>
Real dot(const Real* a, const Real* b, std::int64_t n) {
  Real sums[4] = {0, 0, 0, 0};
  for (std::int64_t i = 0; i < n; ++i) sums[i % 4] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Rounds the operands and results of a matrix product to a type. Keep leaves them as they are.
struct Round {
  DType dtype;
  double operator()(double value) const { return rounded(value, dtype); }
};

struct Keep {
  double operator()(double value) const { return value; }
};

/// The softmax of one row.
template <class Real>
struct Row {
  std::vector<std::int64_t> keys;  ///< that the row sees; none if all their logits are -inf
  std::vector<Real> p;             ///< their weights, before dropout
  std::vector<Real> without_sink;  ///< their weights if there were no sink
  Real sink = 0;                   ///< the weight of the sink
  double lse = -std::numeric_limits<double>::infinity();
  double largest = -std::numeric_limits<double>::infinity();  ///< logit
};

/// The inputs of one head in type Real, and the softmax of its rows.
template <class Real>
class Head {
 public:
  explicit Head(const HeadProblem& problem)
      : problem_(problem),
        q_(problem.q.begin(), problem.q.end()),
        k_(problem.k.begin(), problem.k.end()),
        v_(problem.v.begin(), problem.v.end()),
        bias_(problem.bias.begin(), problem.bias.end()),
        scale_(static_cast<Real>(problem.softmax_scale)),
        cap_(static_cast<Real>(problem.softcap)) {}

  const Real* q(std::int64_t row) const { return q_.data() + row * problem_.head_dim; }
  const Real* k(std::int64_t key) const { return k_.data() + key * problem_.head_dim; }
  const Real* v(std::int64_t key) const { return v_.data() + key * problem_.head_dim_v; }
  Real scale() const { return scale_; }

  /// The derivative of a logit with respect to the scaled product.
  Real slope(std::int64_t row, std::int64_t key) const {
    if (cap_ == 0) return 1;
    const Real t = std::tanh(scale_ * dot(q(row), k(key), problem_.head_dim) / cap_);
    return 1 - t * t;
  }

  /// The factor of a pair's weight by dropout.
  Real keep(std::int64_t row, std::int64_t key) const {
    if (problem_.kept.empty()) return 1;
    const bool is_kept = problem_.kept[cell(row, key)] != 0;
    return is_kept ? static_cast<Real>(1 / (1 - problem_.dropout_rate)) : 0;
  }

  /// The element of the relative table for a pair.
  std::size_t distance_index(std::int64_t row, std::int64_t key) const {
    const std::int64_t left = problem_.relative_left;
    const std::int64_t right = static_cast<std::int64_t>(problem_.relative.size()) - 1 - left;
    return size(std::clamp(key - problem_.positions[size(row)], -left, right) + left);
  }

  void softmax(std::int64_t row, Row<Real>& result) const {
    result = {};
    Real largest = -std::numeric_limits<Real>::infinity();
    bool has_weight = false;
    for (std::int64_t key = 0; key < problem_.kv_len; ++key) {
      if (problem_.cells[cell(row, key)] == 0) continue;
      const Real each = logit(row, key);
      result.keys.push_back(key);
      result.p.push_back(each);
      if (each > largest) largest = each;
      has_weight |= each != -std::numeric_limits<Real>::infinity();
    }
    if (!has_weight) {
      result.keys.clear();
      result.p.clear();
      return;
    }
    Real total = 0;
    for (Real& each : result.p) {
      each = std::exp(each - largest);
      total += each;
    }
    const Real sink = problem_.sinks.empty()
                          ? 0
                          : std::exp(static_cast<Real>(problem_.sinks[size(row)]) - largest);
    result.sink = std::isinf(sink) ? 1 : sink / (total + sink);
    for (Real& each : result.p) {
      result.without_sink.push_back(each / total);
      each /= total + sink;
    }
    result.lse = largest + std::log(total);
    result.largest = largest;
  }

  /// out = sum of p * keep * v. The weights and the sums are rounded.
  template <class RoundP, class RoundOut>
  void weigh(std::int64_t row, const Row<Real>& of, RoundP round_p, RoundOut round_out,
             std::vector<Real>& out) const {
    out.assign(size(problem_.head_dim_v), 0);
    for (std::size_t i = 0; i < of.keys.size(); ++i) {
      const auto weight = static_cast<Real>(round_p(of.p[i] * keep(row, of.keys[i])));
      const Real* values = v(of.keys[i]);
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * values[d];
    }
    for (Real& each : out) each = static_cast<Real>(round_out(each));
  }

 private:
  std::size_t cell(std::int64_t row, std::int64_t key) const {
    return size(row * problem_.kv_len + key);
  }

  Real logit(std::int64_t row, std::int64_t key) const {
    const Real x = scale_ * dot(q(row), k(key), problem_.head_dim);
    Real result = cap_ == 0 ? x : cap_ * std::tanh(x / cap_);
    if (!bias_.empty()) result += bias_[size(key)];
    if (!problem_.pair_bias.empty()) {
      result += static_cast<Real>(problem_.pair_bias[cell(row, key)]);
    }
    if (problem_.alibi_slope != 0) {
      result -= static_cast<Real>(problem_.alibi_slope) *
                static_cast<Real>(std::abs(problem_.positions[size(row)] - key));
    }
    if (!problem_.relative.empty()) {
      result += static_cast<Real>(problem_.relative[distance_index(row, key)]);
    }
    return result;
  }

  const HeadProblem& problem_;
  std::vector<Real> q_, k_, v_, bias_;
  Real scale_, cap_;
};

template <class Real, class RoundP, class RoundOut>
HeadResult attention(const HeadProblem& problem, RoundP round_p, RoundOut round_out) {
  const Head<Real> head(problem);
  HeadResult result;
  result.out.reserve(size(problem.q_len * problem.head_dim_v));
  Row<Real> of;
  std::vector<Real> out;
  for (std::int64_t row = 0; row < problem.q_len; ++row) {
    head.softmax(row, of);
    result.lse.push_back(of.lse);
    result.max_logit = std::max(result.max_logit, of.largest);
    head.weigh(row, of, round_p, round_out, out);
    result.out.insert(result.out.end(), out.begin(), out.end());
  }
  return result;
}

template <class Real, class RoundP, class RoundOut>
HeadGradients gradients(const HeadProblem& problem, const std::vector<double>& dout_values,
                        const std::vector<double>& dlse, RoundP round_p, RoundOut round_out) {
  const Head<Real> head(problem);
  const std::vector<Real> dout_all(dout_values.begin(), dout_values.end());
  const std::size_t head_dim = size(problem.head_dim), head_dim_v = size(problem.head_dim_v);
  std::vector<Real> dq(problem.q.size(), 0), dk(problem.k.size(), 0), dv(problem.v.size(), 0);
  std::vector<Real> dbias(size(problem.kv_len), 0), drelative(problem.relative.size(), 0);
  HeadGradients result;
  result.dpair_bias.resize(problem.pair_bias.size());
  result.dsinks.resize(problem.sinks.size());
  Row<Real> of;
  std::vector<Real> out;
  for (std::int64_t row = 0; row < problem.q_len; ++row) {
    head.softmax(row, of);
    head.weigh(row, of, round_p, round_out, out);
    const Real* dout = dout_all.data() + row * problem.head_dim_v;
    Real* dq_row = dq.data() + row * problem.head_dim;
    const Real delta = dot(dout, out.data(), problem.head_dim_v);
    if (!problem.sinks.empty() && !of.keys.empty()) result.dsinks[size(row)] = -of.sink * delta;
    const Real of_lse = dlse.empty() ? 0 : static_cast<Real>(dlse[size(row)]);
    for (std::size_t i = 0; i < of.keys.size(); ++i) {
      const std::size_t key = size(of.keys[i]);
      const Real keep = head.keep(row, of.keys[i]);
      const Real dp = keep * dot(dout, head.v(of.keys[i]), problem.head_dim_v);
      const Real ds = of.p[i] * (dp - delta) + of.without_sink[i] * of_lse;
      const auto weight = static_cast<Real>(round_p(of.p[i] * keep));
      const Real scaled =
          head.scale() * static_cast<Real>(round_p(ds * head.slope(row, of.keys[i])));
      for (std::size_t d = 0; d < head_dim_v; ++d) dv[key * head_dim_v + d] += weight * dout[d];
      for (std::size_t d = 0; d < head_dim; ++d) {
        dq_row[d] += scaled * head.k(of.keys[i])[d];
        dk[key * head_dim + d] += scaled * head.q(row)[d];
      }
      dbias[key] += ds;
      if (!problem.pair_bias.empty()) {
        result.dpair_bias[size(row * problem.kv_len) + key] = ds;
      }
      if (!drelative.empty()) drelative[head.distance_index(row, of.keys[i])] += ds;
    }
  }
  result.dq.assign(dq.begin(), dq.end());
  result.dk.assign(dk.begin(), dk.end());
  result.dv.assign(dv.begin(), dv.end());
  result.dbias.assign(dbias.begin(), dbias.end());
  result.drelative.assign(drelative.begin(), drelative.end());
  return result;
}

}  // namespace

double decode(const void* data, DType dtype, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data) + index * size_bytes(dtype);
  if (dtype == DType::float32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return decode16(bits, format_of(dtype));
}

void encode(void* data, DType dtype, std::int64_t index, double value) {
  auto* bytes = static_cast<unsigned char*>(data) + index * size_bytes(dtype);
  if (dtype == DType::float32) {
    const auto nearest = static_cast<float>(value);
    std::memcpy(bytes, &nearest, sizeof nearest);
    return;
  }
  const std::uint16_t bits = encode16(value, format_of(dtype));
  std::memcpy(bytes, &bits, sizeof bits);
}

double rounded(double value, DType dtype) {
  if (dtype == DType::float32) return static_cast<float>(value);
  return decode16(encode16(value, format_of(dtype)), format_of(dtype));
}

HeadResult attention_float64(const HeadProblem& problem) {
  return attention<double>(problem, Keep{}, Keep{});
}

HeadResult attention_explicit(const HeadProblem& problem, DType p_dtype, DType out_dtype) {
  return attention<float>(problem, Round{p_dtype}, Round{out_dtype});
}

void HeadGradients::add_group_head(const HeadGradients& other) {
  for (const auto member : {&HeadGradients::dk, &HeadGradients::dv, &HeadGradients::dbias}) {
    std::vector<double>& sum = this->*member;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (other.*member)[i];
  }
}

HeadGradients gradients_float64(const HeadProblem& problem, const std::vector<double>& dout,
                                const std::vector<double>& dlse) {
  return gradients<double>(problem, dout, dlse, Keep{}, Keep{});
}

HeadGradients gradients_explicit(const HeadProblem& problem, const std::vector<double>& dout,
                                 const std::vector<double>& dlse, DType p_dtype, DType out_dtype) {
  return gradients<float>(problem, dout, dlse, Round{p_dtype}, Round{out_dtype});
}

}  // namespace fdma::reference
