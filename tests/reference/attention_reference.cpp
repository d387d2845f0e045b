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

  /// The logit of a pair before its bias.
  Real capped(std::int64_t row, std::int64_t key) const {
    const Real x = scale_ * dot(q(row), k(key), problem_.head_dim);
    return cap_ == 0 ? x : cap_ * std::tanh(x / cap_);
  }
  /// The derivative of that with respect to the scaled product.
  Real slope(std::int64_t row, std::int64_t key) const {
    if (cap_ == 0) return 1;
    const Real t = std::tanh(scale_ * dot(q(row), k(key), problem_.head_dim) / cap_);
    return 1 - t * t;
  }

  /// Sets `keys` to the keys that a row sees and `p` to their exponentials. Returns log(sum exp),
  /// or -inf for a row without keys.
  double softmax(std::int64_t row, std::vector<std::int64_t>& keys, std::vector<Real>& p) const {
    keys.clear();
    p.clear();
    Real largest = -std::numeric_limits<Real>::infinity();
    for (std::int64_t key = 0; key < problem_.kv_len; ++key) {
      if (problem_.cells[row * problem_.kv_len + key] == 0) continue;
      Real logit = capped(row, key);
      if (!bias_.empty()) logit += bias_[size(key)];
      keys.push_back(key);
      p.push_back(logit);
      if (logit > largest) largest = logit;
    }
    if (keys.empty()) return -std::numeric_limits<double>::infinity();
    Real total = 0;
    for (Real& logit : p) {
      logit = std::exp(logit - largest);
      total += logit;
    }
    for (Real& each : p) each /= total;
    return largest + std::log(total);
  }

  /// out = sum of p * v. The weights and the sums are rounded.
  template <class RoundP, class RoundOut>
  void weigh(const std::vector<std::int64_t>& keys, const std::vector<Real>& p, RoundP round_p,
             RoundOut round_out, std::vector<Real>& out) const {
    out.assign(size(problem_.head_dim_v), 0);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto weight = static_cast<Real>(round_p(p[i]));
      const Real* values = v(keys[i]);
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * values[d];
    }
    for (Real& each : out) each = static_cast<Real>(round_out(each));
  }

 private:
  const HeadProblem& problem_;
  std::vector<Real> q_, k_, v_, bias_;
  Real scale_, cap_;
};

template <class Real, class RoundP, class RoundOut>
HeadResult attention(const HeadProblem& problem, RoundP round_p, RoundOut round_out) {
  const Head<Real> head(problem);
  HeadResult result;
  result.out.reserve(size(problem.q_len * problem.head_dim_v));
  std::vector<std::int64_t> keys;
  std::vector<Real> p, out;
  for (std::int64_t row = 0; row < problem.q_len; ++row) {
    result.lse.push_back(head.softmax(row, keys, p));
    head.weigh(keys, p, round_p, round_out, out);
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
  std::vector<Real> dbias(size(problem.kv_len), 0);
  std::vector<std::int64_t> keys;
  std::vector<Real> p, out;
  for (std::int64_t row = 0; row < problem.q_len; ++row) {
    head.softmax(row, keys, p);
    head.weigh(keys, p, round_p, round_out, out);
    const Real* dout = dout_all.data() + row * problem.head_dim_v;
    Real* dq_row = dq.data() + row * problem.head_dim;
    Real shift = dot(dout, out.data(), problem.head_dim_v);
    if (!dlse.empty()) shift -= static_cast<Real>(dlse[size(row)]);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t key = size(keys[i]);
      const Real ds = p[i] * (dot(dout, head.v(keys[i]), problem.head_dim_v) - shift);
      const auto weight = static_cast<Real>(round_p(p[i]));
      const Real scaled = head.scale() * static_cast<Real>(round_p(ds * head.slope(row, keys[i])));
      for (std::size_t d = 0; d < head_dim_v; ++d) dv[key * head_dim_v + d] += weight * dout[d];
      for (std::size_t d = 0; d < head_dim; ++d) {
        dq_row[d] += scaled * head.k(keys[i])[d];
        dk[key * head_dim + d] += scaled * head.q(row)[d];
      }
      dbias[key] += ds;
    }
  }
  HeadGradients result;
  result.dq.assign(dq.begin(), dq.end());
  result.dk.assign(dk.begin(), dk.end());
  result.dv.assign(dv.begin(), dv.end());
  result.dbias.assign(dbias.begin(), dbias.end());
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
