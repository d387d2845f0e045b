// Rows of values on vectors, for the instruction set being compiled: widened to float32, multiplied
// with weights. Included once per instruction set.
#if defined(FDMA_ZOH_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_ZOH_ROWS_INL
#undef FDMA_ZOH_ROWS_INL
#else
#define FDMA_ZOH_ROWS_INL
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstring>
#include <vector>

#include "selection/host/zoh_call.hpp"

#ifndef FDMA_UNROLL
#if defined(__clang__)
#define FDMA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FDMA_UNROLL _Pragma("GCC unroll 4")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace fdma::zoh::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
constexpr std::size_t kLanes = hn::MaxLanes(FloatTag());
static_assert(kPadding % static_cast<std::int64_t>(kLanes) == 0);

HWY_INLINE FloatVec load_wide(const float* from) { return hn::LoadU(FloatTag(), from); }
template <class Half>
HWY_INLINE FloatVec load_wide(const Half* from) {
  const hn::Rebind<Half, FloatTag> half_tag;
  return hn::PromoteTo(FloatTag(), hn::LoadU(half_tag, from));
}

/// Loads fewer elements than a vector holds, followed by zeros.
template <class T>
HWY_INLINE FloatVec load_rest(const T* from, std::size_t count) {
  T rest[kLanes] = {};
  std::memcpy(static_cast<void*>(rest), from, count * sizeof(T));
  return load_wide(rest);
}

/// Sum of value * weight, as four sums so that additions do not wait for each other.
template <class T>
HWY_INLINE float dot(const T* values, const float* weights, std::size_t length) {
  const FloatTag tag;
  FloatVec sum[4];
  FDMA_UNROLL for (std::size_t j = 0; j < 4; ++j) sum[j] = hn::Zero(tag);
  std::size_t i = 0;
  for (; i + 4 * kLanes <= length; i += 4 * kLanes) {
    FDMA_UNROLL for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t at = i + j * kLanes;
      sum[j] = hn::MulAdd(load_wide(values + at), load_wide(weights + at), sum[j]);
    }
  }
  for (; i + kLanes <= length; i += kLanes) {
    sum[0] = hn::MulAdd(load_wide(values + i), load_wide(weights + i), sum[0]);
  }
  if (i < length) {
    sum[1] =
        hn::MulAdd(load_rest(values + i, length - i), load_rest(weights + i, length - i), sum[1]);
  }
  return hn::GetLane(
      hn::SumOfLanes(tag, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

/// A row as float32; in the last vector zeros after it.
template <class T>
HWY_INLINE void widen(const T* from, std::size_t length, float* to) {
  const FloatTag tag;
  std::size_t i = 0;
  for (; i + kLanes <= length; i += kLanes) hn::StoreU(load_wide(from + i), tag, to + i);
  if (i < length) hn::StoreU(load_rest(from + i, length - i), tag, to + i);
}

template <class T>
const T* row_of(const HostScoresCall& call, std::int64_t batch, std::int64_t key,
                std::int64_t head) {
  return reinterpret_cast<const T*>(call.values) + batch * call.batch_stride +
         key * call.key_stride + head * call.head_stride;
}

/// sums[k][o] += rows[k] * weights[o] on vectors, for 4 keys and 4 heads.
HWY_INLINE void add_products(const float* rows, const float* weights, std::size_t row_stride,
                             std::size_t weight_stride, std::size_t length, float* sums,
                             std::size_t sum_stride) {
  const FloatTag tag;
  FloatVec sum[4][4];
  FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
    FDMA_UNROLL for (std::size_t o = 0; o < 4; ++o) {
      sum[k][o] = hn::LoadU(tag, sums + k * sum_stride + o * kLanes);
    }
  }
  for (std::size_t d = 0; d < length; d += kLanes) {
    FloatVec weight[4];
    FDMA_UNROLL for (std::size_t o = 0; o < 4; ++o) weight[o] =
        load_wide(weights + o * weight_stride + d);
    FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
      const FloatVec value = load_wide(rows + k * row_stride + d);
      FDMA_UNROLL for (std::size_t o = 0; o < 4; ++o) sum[k][o] =
          hn::MulAdd(value, weight[o], sum[k][o]);
    }
  }
  FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
    FDMA_UNROLL for (std::size_t o = 0; o < 4; ++o) {
      hn::StoreU(sum[k][o], tag, sums + k * sum_stride + o * kLanes);
    }
  }
}

/// dt[head * kBlockKeys + i] of the i-th of `keys`, where each head sees the values of all heads.
template <class T>
void project_wide(const HostScoresCall& call, std::int64_t batch, const BlockKeys& keys,
                  float* dt) {
  const FloatTag tag;
  const auto heads = static_cast<std::size_t>(call.shape.num_heads_kv);
  const auto head_dim = static_cast<std::size_t>(call.shape.head_dim);
  const auto padded_dim = static_cast<std::size_t>(call.padded_dim);
  const std::size_t count = keys.count;
  const std::size_t padded_heads = (heads + 3) / 4 * 4;
  const std::size_t padded_keys = (count + 3) / 4 * 4;
  const std::size_t sum_stride = padded_heads * kLanes;
  thread_local std::vector<float> rows, sums;
  rows.assign(padded_keys * padded_dim, 0.0F);
  sums.assign(padded_keys * sum_stride, 0.0F);
  for (std::size_t source = 0; source < heads; ++source) {
    for (std::size_t key = 0; key < count; ++key) {
      widen(row_of<T>(call, batch, keys.at[key], static_cast<std::int64_t>(source)), head_dim,
            rows.data() + key * padded_dim);
    }
    for (std::size_t head = 0; head < padded_heads; head += 4) {
      const float* weights = call.weights.data() + (head * heads + source) * padded_dim;
      for (std::size_t key = 0; key < padded_keys; key += 4) {
        add_products(rows.data() + key * padded_dim, weights, padded_dim, heads * padded_dim,
                     padded_dim, sums.data() + key * sum_stride + head * kLanes, sum_stride);
      }
    }
  }
  for (std::size_t key = 0; key < count; ++key) {
    for (std::size_t head = 0; head < heads; ++head) {
      dt[head * kBlockKeys + key] = hn::GetLane(
          hn::SumOfLanes(tag, hn::LoadU(tag, sums.data() + key * sum_stride + head * kLanes)));
    }
  }
}

/// exp(-|dt|), from which softplus and sigmoid are computed.
HWY_INLINE FloatVec decay_of(FloatVec dt) { return hn::Exp(FloatTag(), hn::Neg(hn::Abs(dt))); }

/// max(dt, 0) + log1p(exp(-|dt|)). NaN stays NaN.
HWY_INLINE FloatVec softplus_of(FloatVec dt, FloatVec decay) {
  const FloatTag tag;
  const FloatVec sum = hn::Add(hn::Max(dt, hn::Zero(tag)), hn::Log1p(tag, decay));
  return hn::IfThenElse(hn::IsNaN(dt), dt, sum);
}

/// The exponential of A softplus(dt). NaN stays NaN.
HWY_INLINE FloatVec exp_of(FloatVec log) {
  const FloatTag tag;
  // Above 104 the polynomial leaves its range; the exponential is infinite from 89 on.
  const FloatVec exp = hn::Exp(tag, hn::Min(log, hn::Set(tag, 104.0F)));
  return hn::IfThenElse(hn::IsNaN(log), log, exp);
}

}  // namespace fdma::zoh::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
