// The gradients of a block of keys, in three steps:
//
//   dt        as in zoh_kernel.cpp, for keys with a dscore other than 0 in any head; other keys are
//             not read
//   ddt       softplus, sigmoid and exp on vectors of keys; ddt is 0 where a key adds nothing
//   dvalues,  per-head dt_proj: a row of values is widened once more, from the cache, and used for
//   ddt_proj  both; wide dt_proj: two small matrix products with ddt, each by the same loop over 4
//             rows x 2 vectors of sums in registers
//
// ddt_proj and da_coef are added to the sums of the caller, key after key, so their order is that
// of keys. Highway compiles this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "selection/host/zoh_backward_kernel.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <algorithm>
#include <cstring>
#include <vector>

#include "selection/host/zoh_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::zoh::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

HWY_INLINE WordVec words(std::uint32_t value) { return hn::Set(WordTag(), value); }

/// The upper bits of float32, rounded to nearest even. NaN stays NaN.
HWY_INLINE WordVec bfloat16_of(FloatVec x) {
  const WordVec bits = hn::BitCast(WordTag(), x), upper = hn::ShiftRight<16>(bits);
  const WordVec odd = hn::And(upper, words(1));
  const WordVec rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, words(0x7FFF))));
  const auto is_nan = hn::RebindMask(WordTag(), hn::IsNaN(x));
  return hn::IfThenElse(is_nan, hn::Or(upper, words(0x40)), rounded);
}

/// IEEE binary16 with subnormals, rounded to nearest even. NaN stays NaN.
HWY_INLINE WordVec float16_of(FloatVec x) {
  const FloatTag tag;
  const WordVec bits = hn::BitCast(WordTag(), x);
  const WordVec sign = hn::And(hn::ShiftRight<16>(bits), words(0x8000));
  const WordVec size = hn::And(bits, words(0x7FFFFFFF));
  const FloatVec magnitude = hn::BitCast(tag, size);
  const WordVec odd = hn::And(hn::ShiftRight<13>(size), words(1));
  const WordVec rounded = hn::Add(size, hn::Add(odd, words(0xFFF)));
  const WordVec normal = hn::ShiftRight<13>(hn::Sub(rounded, words(0x38000000)));
  // The last bit of 0.5 is the smallest subnormal of binary16, so the sum is rounded there.
  const WordVec small =
      hn::Sub(hn::BitCast(WordTag(), hn::Add(magnitude, hn::Set(tag, 0.5F))), words(0x3F000000));
  const auto is_below = [&](float bound) {
    return hn::RebindMask(WordTag(), hn::Lt(magnitude, hn::Set(tag, bound)));
  };
  WordVec half = hn::IfThenElse(is_below(0x1p-14F), small, normal);
  half = hn::IfThenElse(is_below(65520.0F), half, words(0x7C00));
  half = hn::IfThenElse(hn::RebindMask(WordTag(), hn::IsNaN(x)), words(0x7E00), half);
  return hn::Or(half, sign);
}

template <class Round>
HWY_INLINE void narrow_with(const float* from, std::size_t count, std::uint16_t* to,
                            const Round& round) {
  const hn::RebindToSigned<WordTag> signed_tag;
  const hn::Rebind<std::uint16_t, FloatTag> half_tag;
  const auto halves = [&](const float* at) {
    return hn::DemoteTo(half_tag, hn::BitCast(signed_tag, round(load_wide(at))));
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(halves(from + i), half_tag, to + i);
  if (i < count) {
    float rest[kLanes] = {};
    std::uint16_t narrowed[kLanes];
    std::memcpy(rest, from + i, (count - i) * sizeof(float));
    hn::StoreU(halves(rest), half_tag, narrowed);
    std::memcpy(to + i, narrowed, (count - i) * sizeof(std::uint16_t));
  }
}

void narrow_here(const float* from, std::size_t count, DType dtype, void* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (dtype == DType::bfloat16) {
    narrow_with(from, count, static_cast<std::uint16_t*>(to),
                [](FloatVec x) { return bfloat16_of(x); });
  } else {
    narrow_with(from, count, static_cast<std::uint16_t*>(to),
                [](FloatVec x) { return float16_of(x); });
  }
}

/// A row of any dtype as float32.
HWY_INLINE void widen_any(const void* from, DType dtype, std::size_t length, float* to) {
  if (dtype == DType::float32) {
    widen(static_cast<const float*>(from), length, to);
  } else if (dtype == DType::bfloat16) {
    widen(static_cast<const hwy::bfloat16_t*>(from), length, to);
  } else {
    widen(static_cast<const hwy::float16_t*>(from), length, to);
  }
}

template <class Data>
std::int64_t row_bytes(const BasicTensorView<Data>& rows, std::int64_t batch, std::int64_t key,
                       std::int64_t head) {
  return (batch * rows.strides[0] + key * rows.strides[1] + head * rows.strides[2]) *
         size_bytes(rows.dtype);
}

/// Stores a row of dvalues plus other_dvalues; `row` is overwritten.
void store_row(const HostBackwardCall& call, std::int64_t batch, std::int64_t key,
               std::int64_t head, float* row) {
  const auto length = static_cast<std::size_t>(call.forward.shape.head_dim);
  if (call.other_dvalues.data != nullptr) {
    thread_local std::vector<float> other;
    other.resize(static_cast<std::size_t>(call.forward.padded_dim));
    widen_any(static_cast<const char*>(call.other_dvalues.data) +
                  row_bytes(call.other_dvalues, batch, key, head),
              call.other_dvalues.dtype, length, other.data());
    for (std::size_t d = 0; d < length; ++d) row[d] += other[d];
  }
  narrow_here(row, length, call.dvalues.dtype,
              static_cast<char*>(call.dvalues.data) + row_bytes(call.dvalues, batch, key, head));
}

/// Stores a row of dvalues that scores add nothing to.
void store_nothing(const HostBackwardCall& call, std::int64_t batch, std::int64_t key,
                   std::int64_t head) {
  if (call.dvalues.data == nullptr || call.is_in_place) return;
  thread_local std::vector<float> row;
  row.assign(static_cast<std::size_t>(call.forward.padded_dim), 0.0F);
  store_row(call, batch, key, head, row.data());
}

/// ddt and p s of a vector of scores.
template <ZohMode kMode>
HWY_INLINE void slopes(FloatVec dt, FloatVec a, FloatVec dscore, FloatVec& ddt, FloatVec& da) {
  const FloatTag tag;
  const FloatVec zero = hn::Zero(tag), one = hn::Set(tag, 1.0F);
  const FloatVec decay = decay_of(dt), softplus = softplus_of(dt, decay);
  const FloatVec sigmoid =
      hn::Div(hn::IfThenElse(hn::Ge(dt, zero), one, decay), hn::Add(one, decay));
  FloatVec slope = dscore;
  auto is_nothing = hn::Eq(dscore, zero);
  if constexpr (kMode == ZohMode::exp) {
    const FloatVec score = exp_of(hn::Mul(a, softplus));
    slope = hn::Mul(slope, score);
    is_nothing = hn::Or(is_nothing, hn::Eq(score, zero));
  }
  const FloatVec by_dt = hn::Mul(slope, hn::Mul(a, sigmoid));
  ddt = hn::IfThenElse(is_nothing, zero, hn::IfThenElse(hn::IsNaN(dt), dt, by_dt));
  da = hn::IfThenElse(is_nothing, zero, hn::Mul(slope, softplus));
}

/// Replaces dscores by ddt, [heads, kBlockKeys] each, and adds to da_coef.
template <ZohMode kMode>
void differentiate(const HostScoresCall& call, const BlockKeys& keys, const float* dt,
                   float* dscores, float* da_coef) {
  const FloatTag tag;
  for (std::int64_t head = 0; head < call.shape.num_heads_kv; ++head) {
    const FloatVec a = hn::Set(tag, call.a_coef[static_cast<std::size_t>(head)]);
    FloatVec sum = hn::Zero(tag);
    for (std::size_t i = 0; i < keys.count; i += kLanes) {
      const std::size_t at = static_cast<std::size_t>(head * kBlockKeys) + i;
      FloatVec ddt, da;
      slopes<kMode>(hn::LoadU(tag, dt + at), a, hn::LoadU(tag, dscores + at), ddt, da);
      hn::StoreU(ddt, tag, dscores + at);
      sum = hn::Add(sum, da);
    }
    da_coef[head] += hn::GetLane(hn::SumOfLanes(tag, sum));
  }
}

/// Gradients where each head sees its own values, one row of them at a time.
template <class T>
void spread_per_head(const HostBackwardCall& call, std::int64_t batch, const BlockKeys& keys,
                     const float* ddt, Sums& sums) {
  const FloatTag tag;
  const HostScoresCall& forward = call.forward;
  const auto length = static_cast<std::size_t>(forward.shape.head_dim);
  const auto padded = static_cast<std::size_t>(forward.padded_dim);
  thread_local std::vector<float> row;
  row.resize(padded);
  for (std::size_t i = 0; i < keys.count; ++i) {
    for (std::int64_t head = 0; head < forward.shape.num_heads_kv; ++head) {
      const float slope = ddt[head * kBlockKeys + static_cast<std::int64_t>(i)];
      if (slope == 0) {
        store_nothing(call, batch, keys.at[i], head);
        continue;
      }
      const FloatVec slopes = hn::Set(tag, slope);
      if (call.wants_sums) {
        widen(row_of<T>(forward, batch, keys.at[i], head), length, row.data());
        float* to = sums.weights.data() + static_cast<std::size_t>(head) * padded;
        for (std::size_t d = 0; d < padded; d += kLanes) {
          hn::StoreU(hn::MulAdd(slopes, load_wide(row.data() + d), load_wide(to + d)), tag, to + d);
        }
      }
      if (call.dvalues.data != nullptr) {
        const float* weights = forward.weights.data() + static_cast<std::size_t>(head) * padded;
        for (std::size_t d = 0; d < padded; d += kLanes) {
          hn::StoreU(hn::Mul(slopes, load_wide(weights + d)), tag, row.data() + d);
        }
        store_row(call, batch, keys.at[i], head, row.data());
      }
    }
  }
}

/// Rows of floats, a multiple of kLanes long.
struct Rows {
  const float* data;
  std::size_t stride;
};

/// to[i][..] += sum over terms j of factors[i, j] * from[j][..], for kRows rows of `to`.
template <std::size_t kRows>
HWY_INLINE void add_rows(float* to, std::size_t to_stride, const float* factors,
                         std::size_t row_step, std::size_t term_step, const Rows& from,
                         std::size_t num_terms, std::size_t length) {
  const FloatTag tag;
  for (std::size_t d = 0; d < length; d += kLanes) {
    FloatVec sum[kRows];
    FDMA_UNROLL for (std::size_t i = 0; i < kRows; ++i) sum[i] = load_wide(to + i * to_stride + d);
    for (std::size_t j = 0; j < num_terms; ++j) {
      const FloatVec term = load_wide(from.data + j * from.stride + d);
      FDMA_UNROLL for (std::size_t i = 0; i < kRows; ++i) {
        const FloatVec factor = hn::Set(tag, factors[i * row_step + j * term_step]);
        sum[i] = hn::MulAdd(factor, term, sum[i]);
      }
    }
    FDMA_UNROLL for (std::size_t i = 0; i < kRows; ++i) {
      hn::StoreU(sum[i], tag, to + i * to_stride + d);
    }
  }
}

void add_products_to_rows(float* to, std::size_t to_stride, std::size_t num_rows,
                          const float* factors, std::size_t row_step, std::size_t term_step,
                          const Rows& from, std::size_t num_terms, std::size_t length) {
  std::size_t i = 0;
  for (; i + 4 <= num_rows; i += 4) {
    add_rows<4>(to + i * to_stride, to_stride, factors + i * row_step, row_step, term_step, from,
                num_terms, length);
  }
  for (; i < num_rows; ++i) {
    add_rows<1>(to + i * to_stride, to_stride, factors + i * row_step, row_step, term_step, from,
                num_terms, length);
  }
}

/// Gradients where each head sees the values of all heads: two products for each head's values.
template <class T>
void spread_wide(const HostBackwardCall& call, std::int64_t batch, const BlockKeys& keys,
                 float* ddt, Sums& sums) {
  const HostScoresCall& forward = call.forward;
  const auto heads = static_cast<std::size_t>(forward.shape.num_heads_kv);
  const auto length = static_cast<std::size_t>(forward.shape.head_dim);
  const auto padded = static_cast<std::size_t>(forward.padded_dim);
  constexpr auto kStride = static_cast<std::size_t>(kBlockKeys);
  BlockKeys used;  // keys with a ddt other than 0; their ddt move up
  for (std::size_t i = 0; i < keys.count; ++i) {
    bool is_used = false;
    for (std::size_t head = 0; head < heads; ++head) {
      is_used = is_used || ddt[head * kStride + i] != 0;
      ddt[head * kStride + used.count] = ddt[head * kStride + i];
    }
    if (is_used) {
      used.add(keys.at[i]);
      continue;
    }
    for (std::size_t head = 0; head < heads; ++head) {
      store_nothing(call, batch, keys.at[i], static_cast<std::int64_t>(head));
    }
  }
  thread_local std::vector<float> rows;
  for (std::size_t source = 0; source < heads; ++source) {
    const auto head = static_cast<std::int64_t>(source);
    if (call.wants_sums) {
      rows.resize(used.count * padded);
      for (std::size_t i = 0; i < used.count; ++i) {
        widen(row_of<T>(forward, batch, used.at[i], head), length, rows.data() + i * padded);
      }
      add_products_to_rows(sums.weights.data() + source * padded, heads * padded, heads, ddt,
                           kStride, 1, {rows.data(), padded}, used.count, padded);
    }
    if (call.dvalues.data != nullptr) {
      rows.assign(used.count * padded, 0.0F);
      add_products_to_rows(rows.data(), padded, used.count, ddt, 1, kStride,
                           {forward.weights.data() + source * padded, heads * padded}, heads,
                           padded);
      for (std::size_t i = 0; i < used.count; ++i) {
        store_row(call, batch, used.at[i], head, rows.data() + i * padded);
      }
    }
  }
}

template <class T>
void backward_of(const HostBackwardCall& call, std::int64_t batch, const BlockKeys& keys,
                 float* dscores, Sums& sums) {
  const HostScoresCall& forward = call.forward;
  const std::int64_t heads = forward.shape.num_heads_kv;
  thread_local std::vector<float> dt;
  dt.assign(static_cast<std::size_t>(heads * kBlockKeys), 0.0F);
  if (forward.shape.is_per_head) {
    const auto length = static_cast<std::size_t>(forward.shape.head_dim);
    for (std::size_t i = 0; i < keys.count; ++i) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::size_t at = static_cast<std::size_t>(head * kBlockKeys) + i;
        if (dscores[at] == 0) continue;
        dt[at] = dot(row_of<T>(forward, batch, keys.at[i], head),
                     forward.weights.data() + head * forward.padded_dim, length);
      }
    }
  } else {
    project_wide<T>(forward, batch, keys, dt.data());
  }
  if (forward.mode == ZohMode::exp) {
    differentiate<ZohMode::exp>(forward, keys, dt.data(), dscores, sums.a_coef.data());
  } else {
    differentiate<ZohMode::log>(forward, keys, dt.data(), dscores, sums.a_coef.data());
  }
  if (forward.shape.is_per_head) {
    spread_per_head<T>(call, batch, keys, dscores, sums);
  } else {
    spread_wide<T>(call, batch, keys, dscores, sums);
  }
}

void backward_block_here(const HostBackwardCall& call, std::int64_t batch, std::int64_t first,
                         std::int64_t count, Sums& sums) {
  const std::int64_t heads = call.forward.shape.num_heads_kv;
  thread_local std::vector<float> dscores;
  dscores.assign(static_cast<std::size_t>(heads * kBlockKeys), 0.0F);
  BlockKeys keys;  // those with a dscore other than 0; `dscores` are theirs
  for (std::int64_t key = first; key < first + count; ++key) {
    bool is_used = false;
    for (std::int64_t head = 0; head < heads; ++head) {
      const float dscore =
          call.dscores[batch * call.dscore_batch_stride + head * call.dscore_head_stride +
                       key * call.dscore_key_stride];
      dscores[static_cast<std::size_t>(head * kBlockKeys) + keys.count] = dscore;
      is_used = is_used || dscore != 0;
    }
    if (is_used) {
      keys.add(key);
      continue;
    }
    for (std::int64_t head = 0; head < heads; ++head) store_nothing(call, batch, key, head);
  }
  if (keys.count == 0) return;
  const DType dtype = call.forward.dtype;
  if (dtype == DType::float32) {
    backward_of<float>(call, batch, keys, dscores.data(), sums);
  } else if (dtype == DType::bfloat16) {
    backward_of<hwy::bfloat16_t>(call, batch, keys, dscores.data(), sums);
  } else {
    backward_of<hwy::float16_t>(call, batch, keys, dscores.data(), sums);
  }
}

}  // namespace fdma::zoh::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::zoh {

HWY_EXPORT(backward_block_here);
HWY_EXPORT(narrow_here);

void backward_block(const HostBackwardCall& call, std::int64_t batch, std::int64_t first,
                    std::int64_t count, Sums& sums) {
  HWY_DYNAMIC_DISPATCH(backward_block_here)(call, batch, first, count, sums);
}

void narrow(const float* from, std::size_t count, DType dtype, void* to) {
  HWY_DYNAMIC_DISPATCH(narrow_here)(from, count, dtype, to);
}

}  // namespace fdma::zoh
#endif
