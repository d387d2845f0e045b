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
  // In units of the last place; a carry into the next exponent adds up by itself, also to infinity.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double bits =
      units + std::ldexp(exponent + format.bias - 1, format.mantissa_bits);  // implicit bit: + 1
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::fmin(bits, infinity)));
}

/// Four sums side by side: the order of additions is free here, and one sum would wait for itself.
template <class Real>
Real dot(const Real* a, const Real* b, std::int64_t n) {
  Real sums[4] = {0, 0, 0, 0};
  for (std::int64_t i = 0; i < n; ++i) sums[i % 4] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class Real, class Round>
HeadResult attention(const HeadProblem& problem, const Round& round_p, const Round& round_out) {
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const std::vector<Real> q(problem.q.begin(), problem.q.end());
  const std::vector<Real> k(problem.k.begin(), problem.k.end());
  const std::vector<Real> v(problem.v.begin(), problem.v.end());
  const std::vector<Real> bias(problem.bias.begin(), problem.bias.end());
  const auto scale = static_cast<Real>(problem.softmax_scale);

  HeadResult result;
  result.out.assign(size(problem.q_len * problem.head_dim_v), 0);
  result.lse.assign(size(problem.q_len), -std::numeric_limits<double>::infinity());
  std::vector<std::int64_t> keys;
  std::vector<Real> logits, sums(size(problem.head_dim_v));
  for (std::int64_t row = 0; row < problem.q_len; ++row) {
    keys.clear();
    logits.clear();
    Real largest = -std::numeric_limits<Real>::infinity();
    for (std::int64_t key = 0; key < problem.kv_len; ++key) {
      if (problem.cells[row * problem.kv_len + key] == 0) continue;
      Real logit = scale * dot(q.data() + row * problem.head_dim, k.data() + key * problem.head_dim,
                               problem.head_dim);
      if (!bias.empty()) logit += bias[size(key)];
      keys.push_back(key);
      logits.push_back(logit);
      if (logit > largest) largest = logit;
    }
    if (keys.empty()) continue;
    Real total = 0;
    for (Real& logit : logits) {
      logit = std::exp(logit - largest);
      total += logit;
    }
    sums.assign(sums.size(), 0);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto p = static_cast<Real>(round_p(logits[i] / total));
      const Real* values = v.data() + keys[i] * problem.head_dim_v;
      for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += p * values[d];
    }
    for (std::size_t d = 0; d < sums.size(); ++d) {
      result.out[size(row * problem.head_dim_v) + d] = round_out(sums[d]);
    }
    result.lse[size(row)] = largest + std::log(total);
  }
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
  const auto keep = [](double value) { return value; };
  return attention<double>(problem, keep, keep);
}

HeadResult attention_explicit(const HeadProblem& problem, DType p_dtype, DType out_dtype) {
  struct Round {
    DType dtype;
    double operator()(double value) const { return rounded(value, dtype); }
  };
  return attention<float>(problem, Round{p_dtype}, Round{out_dtype});
}

}  // namespace fdma::reference
