// The scores of a block of keys.
//
//   dt        per-head dt_proj: one dot product of head_dim terms per score, straight from memory,
//             or four side by side so that the weights come from the cache once for all of them
//             wide dt_proj: a small matrix product; a head's values of all keys of the block are
//             widened to float32 once, then 4 keys x 4 scores are held in registers
//   score     softplus and exp on vectors of keys
//
// Sums run over the lanes of a vector and are added up at the end. Highway compiles this file once
// for each instruction set and picks one at run time. A score depends on its own key only, so its
// bits do not depend on threads or blocks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "selection/host/zoh_kernel.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <algorithm>
#include <vector>

#include "selection/host/zoh_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::zoh::HWY_NAMESPACE {

constexpr std::int64_t kLongRowBytes = 8192;

/// The same for four keys side by side, with additions in the same order; weights are read once.
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

/// dt[head * kBlockKeys + key], where each head sees its own values.
template <class T>
void project_per_head(const HostScoresCall& call, std::int64_t batch, std::int64_t first,
                      std::int64_t count, float* dt) {
  const auto length = static_cast<std::size_t>(call.shape.head_dim);
  // Memory is read fastest in one sweep, or in few long ones. Keys are therefore taken side by side
  // only where their rows are long; there the weights would fill the first cache as well.
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

/// softplus(dt) times a, and its exponential where asked for.
template <ZohMode kMode>
HWY_INLINE FloatVec score_of(FloatVec dt, FloatVec a) {
  const FloatVec log = hn::Mul(a, softplus_of(dt, decay_of(dt)));
  return kMode == ZohMode::log ? log : exp_of(log);
}

template <ZohMode kMode>
void finish(const HostScoresCall& call, std::int64_t batch, std::int64_t first, std::int64_t count,
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
void project(const HostScoresCall& call, std::int64_t batch, std::int64_t first, std::int64_t count,
             float* dt) {
  if (call.shape.is_per_head) {
    project_per_head<T>(call, batch, first, count, dt);
  } else {
    BlockKeys keys;
    for (std::int64_t key = 0; key < count; ++key) keys.add(first + key);
    project_wide<T>(call, batch, keys, dt);
  }
}

void score_block_here(const HostScoresCall& call, std::int64_t batch, std::int64_t first,
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

void score_block(const HostScoresCall& call, std::int64_t batch, std::int64_t first,
                 std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(score_block_here)(call, batch, first, count);
}

}  // namespace fdma::zoh
#endif
