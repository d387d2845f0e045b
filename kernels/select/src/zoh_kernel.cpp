// The scores of a block of keys.
//
//   dt        per-head dt_proj: one dot product of head_dim terms per score, straight from memory,
//             or four side by side so that the weights come from the cache once for all of them.
//             Wide dt_proj: a small matrix product; a head's values of all keys of the block are
//             widened to float32 once, then 4 keys x 4 scores are held in registers
//   score     softplus and exp on vectors of keys
//
// Sums run over the lanes of a vector and are added up at the end. Highway compiles this file once
// for each instruction set and picks one at run time; a score depends on its own key only, so the
// bits do not depend on threads or blocks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zoh_kernel.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "zoh_call.hpp"

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

constexpr std::int64_t kLongRowBytes = 8192;

HWY_INLINE FloatVec load_wide(const float* from) { return hn::LoadU(FloatTag(), from); }
template <class Half>
HWY_INLINE FloatVec load_wide(const Half* from) {
  const hn::Rebind<Half, FloatTag> half_tag;
  return hn::PromoteTo(FloatTag(), hn::LoadU(half_tag, from));
}

/// Fewer elements than a vector holds; zeros after them.
template <class T>
HWY_INLINE FloatVec load_rest(const T* from, std::size_t count) {
  T rest[kLanes] = {};
  std::memcpy(static_cast<void*>(rest), from, count * sizeof(T));
  return load_wide(rest);
}

/// Sum of value * weight. Four sums, so that additions do not wait for each other.
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

/// The same for four keys side by side, in the same order of additions: weights are read once.
template <class T>
HWY_INLINE void dot_four(const T* const* rows, const float* weights, std::size_t length,
                         float* sums) {
  const FloatTag tag;
  FloatVec sum[4][4];
  FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
    FDMA_UNROLL for (std::size_t j = 0; j < 4; ++j) sum[k][j] = hn::Zero(tag);
  }
  std::size_t i = 0;
  for (; i + 4 * kLanes <= length; i += 4 * kLanes) {
    FDMA_UNROLL for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t at = i + j * kLanes;
      const FloatVec weight = load_wide(weights + at);
      FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
        sum[k][j] = hn::MulAdd(load_wide(rows[k] + at), weight, sum[k][j]);
      }
    }
  }
  for (; i + kLanes <= length; i += kLanes) {
    const FloatVec weight = load_wide(weights + i);
    FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
      sum[k][0] = hn::MulAdd(load_wide(rows[k] + i), weight, sum[k][0]);
    }
  }
  if (i < length) {
    const FloatVec weight = load_rest(weights + i, length - i);
    FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
      sum[k][1] = hn::MulAdd(load_rest(rows[k] + i, length - i), weight, sum[k][1]);
    }
  }
  FDMA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
    sums[k] = hn::GetLane(
        hn::SumOfLanes(tag, hn::Add(hn::Add(sum[k][0], sum[k][1]), hn::Add(sum[k][2], sum[k][3]))));
  }
}

template <class T>
const T* row_of(const Call& call, std::int64_t batch, std::int64_t key, std::int64_t head) {
  return reinterpret_cast<const T*>(call.values) + batch * call.batch_stride +
         key * call.key_stride + head * call.head_stride;
}

/// dt[head * kBlockKeys + key] of each head by its own values.
template <class T>
void project_per_head(const Call& call, std::int64_t batch, std::int64_t first, std::int64_t count,
                      float* dt) {
  const auto length = static_cast<std::size_t>(call.shape.head_dim);
  // Memory is read fastest in one sweep, or in few long ones: keys go side by side where their rows
  // are long. There the weights would fill the first cache as well.
  const bool are_rows_long =
      call.shape.num_heads_kv * call.shape.head_dim * static_cast<std::int64_t>(sizeof(T)) >=
      kLongRowBytes;
  for (std::int64_t key = 0; key < count;) {
    const std::int64_t num_keys = are_rows_long && count - key >= 4 ? 4 : 1;
    const float* weights = call.weights.data();
    for (std::int64_t head = 0; head < call.shape.num_heads_kv; ++head, weights += length) {
      float* sums = dt + head * kBlockKeys + key;
      if (num_keys == 1) {
        *sums = dot(row_of<T>(call, batch, first + key, head), weights, length);
        continue;
      }
      const T* rows[4];
      for (std::int64_t k = 0; k < 4; ++k) rows[k] = row_of<T>(call, batch, first + key + k, head);
      dot_four(rows, weights, length, sums);
    }
    key += num_keys;
  }
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

/// dt[head * kBlockKeys + key] of each head by the values of all heads.
template <class T>
void project_wide(const Call& call, std::int64_t batch, std::int64_t first, std::int64_t count,
                  float* dt) {
  const FloatTag tag;
  const auto heads = static_cast<std::size_t>(call.shape.num_heads_kv);
  const auto head_dim = static_cast<std::size_t>(call.shape.head_dim);
  const auto padded_dim = static_cast<std::size_t>(call.padded_dim);
  const std::size_t padded_heads = (heads + 3) / 4 * 4;
  const std::size_t padded_keys = (static_cast<std::size_t>(count) + 3) / 4 * 4;
  const std::size_t sum_stride = padded_heads * kLanes;
  thread_local std::vector<float> rows, sums;
  rows.assign(padded_keys * padded_dim, 0.0F);
  sums.assign(padded_keys * sum_stride, 0.0F);
  for (std::size_t source = 0; source < heads; ++source) {
    for (std::size_t key = 0; key < static_cast<std::size_t>(count); ++key) {
      const T* from = row_of<T>(call, batch, first + static_cast<std::int64_t>(key),
                                static_cast<std::int64_t>(source));
      float* to = rows.data() + key * padded_dim;
      std::size_t d = 0;
      for (; d + kLanes <= head_dim; d += kLanes) hn::StoreU(load_wide(from + d), tag, to + d);
      if (d < head_dim) hn::StoreU(load_rest(from + d, head_dim - d), tag, to + d);
    }
    for (std::size_t head = 0; head < padded_heads; head += 4) {
      const float* weights = call.weights.data() + (head * heads + source) * padded_dim;
      for (std::size_t key = 0; key < padded_keys; key += 4) {
        add_products(rows.data() + key * padded_dim, weights, padded_dim, heads * padded_dim,
                     padded_dim, sums.data() + key * sum_stride + head * kLanes, sum_stride);
      }
    }
  }
  for (std::size_t key = 0; key < static_cast<std::size_t>(count); ++key) {
    for (std::size_t head = 0; head < heads; ++head) {
      dt[head * kBlockKeys + key] = hn::GetLane(
          hn::SumOfLanes(tag, hn::LoadU(tag, sums.data() + key * sum_stride + head * kLanes)));
    }
  }
}

/// max(dt, 0) + log1p(exp(-|dt|)), times a, and its exponential where asked for. NaN stays NaN.
template <ZohMode kMode>
HWY_INLINE FloatVec score_of(FloatVec dt, FloatVec a) {
  const FloatTag tag;
  const FloatVec small = hn::Log1p(tag, hn::Exp(tag, hn::Neg(hn::Abs(dt))));
  const FloatVec softplus = hn::Add(hn::Max(dt, hn::Zero(tag)), small);
  const FloatVec log = hn::Mul(a, hn::IfThenElse(hn::IsNaN(dt), dt, softplus));
  if constexpr (kMode == ZohMode::log) return log;
  // Above 104 the polynomial leaves its range; the exponential is infinite from 89 on.
  const FloatVec exp = hn::Exp(tag, hn::Min(log, hn::Set(tag, 104.0F)));
  return hn::IfThenElse(hn::IsNaN(log), log, exp);
}

template <ZohMode kMode>
void finish(const Call& call, std::int64_t batch, std::int64_t first, std::int64_t count,
            float* dt) {
  const FloatTag tag;
  for (std::int64_t head = 0; head < call.shape.num_heads_kv; ++head) {
    const FloatVec a = hn::Set(tag, call.a_coef[static_cast<std::size_t>(head)]);
    float* row = dt + head * kBlockKeys;  // whole vectors: what is past `count` is not stored
    for (std::int64_t key = 0; key < count; key += static_cast<std::int64_t>(kLanes)) {
      hn::StoreU(score_of<kMode>(hn::LoadU(tag, row + key), a), tag, row + key);
    }
    float* out = call.scores + batch * call.score_batch_stride + head * call.score_head_stride +
                 first * call.score_key_stride;
    for (std::int64_t key = 0; key < count; ++key) out[key * call.score_key_stride] = row[key];
  }
}

template <class T>
void project(const Call& call, std::int64_t batch, std::int64_t first, std::int64_t count,
             float* dt) {
  if (call.shape.is_per_head) {
    project_per_head<T>(call, batch, first, count, dt);
  } else {
    project_wide<T>(call, batch, first, count, dt);
  }
}

void score_block_here(const Call& call, std::int64_t batch, std::int64_t first,
                      std::int64_t count) {
  thread_local std::vector<float> dt;
  dt.resize(static_cast<std::size_t>(call.shape.num_heads_kv * kBlockKeys));
  if (call.dtype == DType::float32) {
    project<float>(call, batch, first, count, dt.data());
  } else if (call.dtype == DType::bfloat16) {
    project<hwy::bfloat16_t>(call, batch, first, count, dt.data());
  } else {
    project<hwy::float16_t>(call, batch, first, count, dt.data());
  }
  if (call.mode == ZohMode::exp) {
    finish<ZohMode::exp>(call, batch, first, count, dt.data());
  } else {
    finish<ZohMode::log>(call, batch, first, count, dt.data());
  }
}

}  // namespace fdma::zoh::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::zoh {

HWY_EXPORT(score_block_here);

void score_block(const Call& call, std::int64_t batch, std::int64_t first, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(score_block_here)(call, batch, first, count);
}

}  // namespace fdma::zoh
#endif
