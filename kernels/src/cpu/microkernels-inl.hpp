// The inner loops of the CPU backend, for the instruction set being compiled. There is no include
// guard of the usual kind, because Highway includes this file once per instruction set.
//
// Query rows lie in vector lanes; everything else is broadcast: scores S^T[key, row] = sum over d
// of K[key, d] Q^T[d, row] and O^T[dv, row] += sum over keys of V[key, dv] P^T[key, row]. K and V
// are therefore read in place, row by row and in any permutation of keys, and a gathered key costs
// no more than a contiguous one. Only Q and O are transposed, once per work tile. Maxima and sums
// of a row are vertical operations. Each loop keeps kUnroll x kNv vectors of sums in registers: 6 x
// 4 of 32, or 6 x 2 of 16.
#if defined(FDMA_CPU_MICROKERNELS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_MICROKERNELS_INL
#undef FDMA_CPU_MICROKERNELS_INL
#else
#define FDMA_CPU_MICROKERNELS_INL
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__clang__)
#define FDMA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FDMA_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr std::size_t kLanes = hn::MaxLanes(FloatTag());
inline constexpr int kMaxNv = kLanes == 16 ? 4 : 2;
inline constexpr int kUnroll = 6;
inline constexpr float kLog2E = 1.44269504088896340736F;

/// scores[i * width + r] = sum over d of k_rows[i][d] * q[d * width + r], for kKeys keys.
template <int kNv, int kKeys>
HWY_INLINE void scores_of_keys(const float* HWY_RESTRICT q, std::size_t head_dim,
                               const float* const* k_rows, float* HWY_RESTRICT scores) {
  const FloatTag tag;
  constexpr std::size_t kWidth = kNv * kLanes;
  FloatVec sum[kKeys][kNv];
  const float* k[kKeys];
  FDMA_UNROLL for (int i = 0; i < kKeys; ++i) {
    k[i] = k_rows[i];
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) sum[i][v] = hn::Zero(tag);
  }
  for (std::size_t d = 0; d < head_dim; ++d) {
    FloatVec row[kNv];
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      row[v] = hn::LoadU(tag, q + d * kWidth + static_cast<std::size_t>(v) * kLanes);
    }
    FDMA_UNROLL for (int i = 0; i < kKeys; ++i) {
      const FloatVec key = hn::Set(tag, k[i][d]);
      FDMA_UNROLL for (int v = 0; v < kNv; ++v) sum[i][v] = hn::MulAdd(key, row[v], sum[i][v]);
    }
  }
  FDMA_UNROLL for (int i = 0; i < kKeys; ++i) {
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      hn::StoreU(
          sum[i][v], tag,
          scores + static_cast<std::size_t>(i) * kWidth + static_cast<std::size_t>(v) * kLanes);
    }
  }
}

/// out[j * width + r] = out * alpha[r] + sum over keys of v_rows[key][j] * p[key * width + r], for
/// kColumns columns j of V from `column` on.
template <int kNv, int kColumns>
HWY_INLINE void add_columns(const float* HWY_RESTRICT p, const float* const* v_rows,
                            std::size_t num_keys, std::size_t column,
                            const float* HWY_RESTRICT alpha, float* HWY_RESTRICT out) {
  const FloatTag tag;
  constexpr std::size_t kWidth = kNv * kLanes;
  FloatVec sum[kColumns][kNv];
  float* base = out + column * kWidth;
  FDMA_UNROLL for (int j = 0; j < kColumns; ++j) {
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      const auto at = static_cast<std::size_t>(j) * kWidth + static_cast<std::size_t>(v) * kLanes;
      sum[j][v] = hn::LoadU(tag, base + at);
      if (alpha != nullptr) {
        sum[j][v] =
            hn::Mul(sum[j][v], hn::LoadU(tag, alpha + static_cast<std::size_t>(v) * kLanes));
      }
    }
  }
  for (std::size_t key = 0; key < num_keys; ++key) {
    const float* value = v_rows[key] + column;
    FloatVec weight[kNv];
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      weight[v] = hn::LoadU(tag, p + key * kWidth + static_cast<std::size_t>(v) * kLanes);
    }
    FDMA_UNROLL for (int j = 0; j < kColumns; ++j) {
      const FloatVec element = hn::Set(tag, value[j]);
      FDMA_UNROLL for (int v = 0; v < kNv; ++v) sum[j][v] =
          hn::MulAdd(element, weight[v], sum[j][v]);
    }
  }
  FDMA_UNROLL for (int j = 0; j < kColumns; ++j) {
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      hn::StoreU(
          sum[j][v], tag,
          base + static_cast<std::size_t>(j) * kWidth + static_cast<std::size_t>(v) * kLanes);
    }
  }
}

/// All scores of a chunk for one panel.
template <int kNv>
HWY_NOINLINE void scores_of_chunk(const float* q, std::size_t head_dim, const float* const* k_rows,
                                  std::size_t num_keys, float* scores) {
  constexpr std::size_t kWidth = kNv * kLanes;
  std::size_t key = 0;
  for (; key + kUnroll <= num_keys; key += kUnroll) {
    scores_of_keys<kNv, kUnroll>(q, head_dim, k_rows + key, scores + key * kWidth);
  }
  const float* const* rest = k_rows + key;
  float* to = scores + key * kWidth;
  switch (num_keys - key) {
    case 5:
      return scores_of_keys<kNv, 5>(q, head_dim, rest, to);
    case 4:
      return scores_of_keys<kNv, 4>(q, head_dim, rest, to);
    case 3:
      return scores_of_keys<kNv, 3>(q, head_dim, rest, to);
    case 2:
      return scores_of_keys<kNv, 2>(q, head_dim, rest, to);
    case 1:
      return scores_of_keys<kNv, 1>(q, head_dim, rest, to);
    default:
      return;
  }
}

/// Adds the weighted values of a chunk to the panel's accumulators; alpha may be null (all ones).
template <int kNv>
HWY_NOINLINE void add_chunk(const float* p, const float* const* v_rows, std::size_t num_keys,
                            std::size_t head_dim_v, const float* alpha, float* out) {
  std::size_t column = 0;
  for (; column + kUnroll <= head_dim_v; column += kUnroll) {
    add_columns<kNv, kUnroll>(p, v_rows, num_keys, column, alpha, out);
  }
  switch (head_dim_v - column) {
    case 5:
      return add_columns<kNv, 5>(p, v_rows, num_keys, column, alpha, out);
    case 4:
      return add_columns<kNv, 4>(p, v_rows, num_keys, column, alpha, out);
    case 3:
      return add_columns<kNv, 3>(p, v_rows, num_keys, column, alpha, out);
    case 2:
      return add_columns<kNv, 2>(p, v_rows, num_keys, column, alpha, out);
    case 1:
      return add_columns<kNv, 1>(p, v_rows, num_keys, column, alpha, out);
    default:
      return;
  }
}

/// Mask of the lanes whose rows see a key: bits `row`, row + 1, .. of the key's words.
HWY_INLINE hn::Mask<FloatTag> rows_that_see(const std::uint64_t* words, std::size_t row) {
  const std::uint64_t bits = words[row / 64] >> (row % 64);
  std::uint8_t bytes[8];
  std::memcpy(bytes, &bits, sizeof bits);
  return hn::LoadMaskBits(FloatTag(), bytes);
}

/// The same as add_chunk, for V with NaN or infinity at keys that some rows do not see: 0 * NaN
/// must not reach those rows.
template <int kNv>
HWY_NOINLINE void add_seen_only(const float* p, const float* const* v_rows, std::size_t num_keys,
                                std::size_t head_dim_v, const float* alpha, float* out,
                                const std::uint64_t* row_bits, std::size_t words_per_key,
                                std::size_t first_row) {
  const FloatTag tag;
  constexpr std::size_t kWidth = kNv * kLanes;
  for (std::size_t v = 0; v < kNv; ++v) {
    for (std::size_t column = 0; column < head_dim_v; ++column) {
      float* at = out + column * kWidth + v * kLanes;
      FloatVec sum = hn::LoadU(tag, at);
      if (alpha != nullptr) sum = hn::Mul(sum, hn::LoadU(tag, alpha + v * kLanes));
      for (std::size_t key = 0; key < num_keys; ++key) {
        const auto seen = rows_that_see(row_bits + key * words_per_key, first_row + v * kLanes);
        const FloatVec weight = hn::LoadU(tag, p + key * kWidth + v * kLanes);
        sum = hn::IfThenElse(seen, hn::MulAdd(hn::Set(tag, v_rows[key][column]), weight, sum), sum);
      }
      hn::StoreU(sum, tag, at);
    }
  }
}

/// True iff every element of the rows is finite: x * 0 is 0 for finite x only.
HWY_INLINE bool all_finite(const float* const* rows, std::size_t num_rows, std::size_t length) {
  const FloatTag tag;
  const FloatVec zero = hn::Zero(tag);
  FloatVec sum = zero;
  float rest = 0;
  for (std::size_t r = 0; r < num_rows; ++r) {
    std::size_t i = 0;
    for (; i + kLanes <= length; i += kLanes) {
      sum = hn::MulAdd(hn::LoadU(tag, rows[r] + i), zero, sum);
    }
    for (; i < length; ++i) rest += rows[r][i] * 0.0F;
  }
  return hn::AllTrue(tag, hn::Eq(sum, zero)) && rest == 0.0F;
}

/// 2^x for x <= 0, with relative error below 1.5e-7; 0 below -126 (where results are subnormal);
/// NaN stays NaN. x is rounded to the nearest integer n. A polynomial of degree 6 in x - n on
/// [-0.5, 0.5] (minimax relative error 2e-9) is multiplied by 2^n. It is a product, because adding
/// n to the exponent bits of a NaN can give a number.
HWY_INLINE FloatVec exp2_of(FloatVec x) {
  const FloatTag tag;
  const hn::RebindToSigned<FloatTag> int_tag;
  const FloatVec n = hn::Round(x);
  const FloatVec f = hn::Sub(x, n);
  FloatVec y = hn::Set(tag, 1.5345810878958458e-4F);
  y = hn::MulAdd(y, f, hn::Set(tag, 1.3399931210494832e-3F));
  y = hn::MulAdd(y, f, hn::Set(tag, 9.618488961298473e-3F));
  y = hn::MulAdd(y, f, hn::Set(tag, 5.5503287769924047e-2F));
  y = hn::MulAdd(y, f, hn::Set(tag, 2.402264689059539e-1F));
  y = hn::MulAdd(y, f, hn::Set(tag, 6.931472057372505e-1F));
  y = hn::MulAdd(y, f, hn::Set(tag, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(int_tag, hn::Add(n, hn::Set(tag, 127.0F))));
  const FloatVec scaled = hn::Mul(y, hn::BitCast(tag, exponent));
  return hn::IfThenElse(hn::Lt(x, hn::Set(tag, -126.0F)), hn::Zero(tag), scaled);
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
