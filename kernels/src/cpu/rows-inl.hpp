// Converts rows of tensors to float32 and back, for the instruction set being compiled. Included
// once per instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_ROWS_INL
#undef FDMA_CPU_ROWS_INL
#else
#define FDMA_CPU_ROWS_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/float16.hpp"
#include "cpu/microkernels-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

/// 16-bit numbers as float32. Without instructions for float16 Highway takes infinity and NaN for
/// numbers from 65536 on; they get their exponent back here.
template <class HalfVec>
HWY_INLINE FloatVec widened(HalfVec half) {
  const FloatTag tag;
  const FloatVec wide = hn::PromoteTo(tag, half);
#if HWY_TARGET >= HWY_SSE4
  if constexpr (std::is_same_v<hn::TFromV<HalfVec>, hwy::float16_t>) {
    const hn::RebindToUnsigned<FloatTag> bits_tag;
    const auto infinite = hn::BitCast(tag, hn::Set(bits_tag, 0x7F800000U));
    const auto is_finite = hn::Lt(hn::Abs(wide), hn::Set(tag, 65536.0F));
    return hn::IfThenElse(is_finite, wide, hn::Or(wide, infinite));
  }
#endif
  return wide;
}

/// 16-bit elements [0, length), as float32.
template <class Half>
HWY_INLINE void widen_row(const void* row, std::size_t length, float* to) {
  const FloatTag tag;
  const hn::Rebind<Half, FloatTag> half_tag;
  const auto* from = static_cast<const Half*>(row);
  std::size_t i = 0;
  for (; i + kLanes <= length; i += kLanes) {
    hn::StoreU(widened(hn::LoadU(half_tag, from + i)), tag, to + i);
  }
  if (i < length) {
    Half rest[kLanes] = {};
    float wide[kLanes];
    std::memcpy(rest, from + i, (length - i) * sizeof(Half));
    hn::StoreU(widened(hn::LoadU(half_tag, rest)), tag, wide);
    std::copy_n(wide, length - i, to + i);
  }
}

/// Elements [0, length) of a row, as float32.
inline void load_row(const void* row, DType dtype, std::size_t length, float* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, row, length * sizeof(float));
  } else if (dtype == DType::bfloat16) {
    widen_row<hwy::bfloat16_t>(row, length, to);
  } else {
    widen_row<hwy::float16_t>(row, length, to);
  }
}

inline void store_row(const float* row, DType dtype, std::size_t length, void* to) {
  if (dtype == DType::float32) {
    std::memcpy(to, row, length * sizeof(float));
  } else if (dtype == DType::bfloat16) {
    auto* out = static_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < length; ++i) out[i] = bfloat16_from_float(row[i]);
  } else {
    auto* out = static_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < length; ++i) out[i] = float16_from_float(row[i]);
  }
}

/// Stores the rounding error of `row` with respect to `stored`, which store_row wrote. `row` holds
/// the error afterwards.
inline void store_out_low(float* row, DType dtype, std::size_t length, const void* stored,
                          void* to) {
  float rounded[kMaxHeadDim];
  load_row(stored, dtype, length, rounded);
  for (std::size_t i = 0; i < length; ++i) row[i] -= rounded[i];
  store_row(row, dtype, length, to);
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
