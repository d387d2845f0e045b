// Kernels in three versions: portable, AVX2, AVX-512 (BW, VL, DQ). The logic of and / xor / store
// is written once and compiled for each instruction set. Comparisons use the instruction set's own
// way to turn lanes into bits (mask registers, or sign bits gathered by movemask). A row of 8192
// cells is 1 KiB: an AND of two rows takes about 20 ns, a comparison of 8192 16-bit keys about 100
// ns.
#include "boxes/row_bits.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FDMA_BOX_X86 1
#include <immintrin.h>
#endif

namespace fdma::box {
namespace {

inline std::uint64_t load_word(const std::uint8_t* row, std::int64_t word) {
  std::uint64_t value;
  std::memcpy(&value, row + 8 * word, 8);
  return value;
}

// The bodies of kernels that compilers vectorise by themselves.
#define FDMA_BOX_LOGIC_KERNELS(suffix, attribute)                                         \
  attribute void and_rows_##suffix(std::uint64_t* __restrict out, const std::uint8_t* a,  \
                                   std::uint64_t flip_a, const std::uint8_t* b,           \
                                   std::uint64_t flip_b, std::int64_t words) {            \
    for (std::int64_t i = 0; i < words; ++i) {                                            \
      out[i] = (load_word(a, i) ^ flip_a) & (load_word(b, i) ^ flip_b);                   \
    }                                                                                     \
  }                                                                                       \
  attribute void xor_rows_##suffix(std::uint64_t* __restrict out, const std::uint8_t* a,  \
                                   const std::uint8_t* b, std::int64_t words) {           \
    for (std::int64_t i = 0; i < words; ++i) out[i] = load_word(a, i) ^ load_word(b, i);  \
  }                                                                                       \
  attribute void store_row_##suffix(std::uint64_t* __restrict out, const std::uint8_t* a, \
                                    std::uint64_t flip, std::uint64_t* __restrict every,  \
                                    std::uint64_t* __restrict some, std::int64_t words) { \
    for (std::int64_t i = 0; i < words; ++i) {                                            \
      const std::uint64_t word = load_word(a, i) ^ flip;                                  \
      out[i] = word;                                                                      \
      every[i] &= word;                                                                   \
      some[i] |= word;                                                                    \
    }                                                                                     \
  }

FDMA_BOX_LOGIC_KERNELS(portable, )

template <class T, class Test>
void bits_where(std::uint64_t* out, std::int64_t words, const T* values, Test test) {
  for (std::int64_t w = 0; w < words; ++w) {
    std::uint64_t word = 0;
    for (int i = 0; i < 64; ++i) word |= std::uint64_t{test(values[64 * w + i])} << i;
    out[w] = word;
  }
}
template <class T>
void at_most_portable(std::uint64_t* out, const T* values, T bound, std::int64_t words) {
  bits_where(out, words, values, [bound](T value) { return value <= bound; });
}
template <class T>
void equal_portable(std::uint64_t* out, const T* values, T value, std::int64_t words) {
  bits_where(out, words, values, [value](T other) { return other == value; });
}
void less_pairs_portable(std::uint64_t* out, const std::int64_t* a, const std::int64_t* b,
                         std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, a += 64, b += 64) {
    std::uint64_t word = 0;
    for (int i = 0; i < 64; ++i) word |= std::uint64_t{a[i] < b[i]} << i;
    out[w] = word;
  }
}
void equal_pairs_portable(std::uint64_t* out, const std::int64_t* a, const std::int64_t* b,
                          std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, a += 64, b += 64) {
    std::uint64_t word = 0;
    for (int i = 0; i < 64; ++i) word |= std::uint64_t{a[i] == b[i]} << i;
    out[w] = word;
  }
}
void non_zero_bytes_portable(std::uint64_t* out, const std::uint8_t* bytes, std::int64_t words) {
  bits_where(out, words, bytes, [](std::uint8_t byte) { return byte != 0; });
}

constexpr RowKernels kPortable{
    and_rows_portable,
    xor_rows_portable,
    store_row_portable,
    at_most_portable<std::int8_t>,
    at_most_portable<std::int16_t>,
    at_most_portable<std::int32_t>,
    at_most_portable<std::int64_t>,
    equal_portable<std::int8_t>,
    equal_portable<std::int16_t>,
    equal_portable<std::int32_t>,
    equal_portable<std::int64_t>,
    less_pairs_portable,
    equal_pairs_portable,
    non_zero_bytes_portable,
    "portable",
};

#ifdef FDMA_BOX_X86
#define FDMA_BOX_AVX2 __attribute__((target("avx2")))
#define FDMA_BOX_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2")))

FDMA_BOX_LOGIC_KERNELS(avx2, FDMA_BOX_AVX2)
FDMA_BOX_LOGIC_KERNELS(avx512, FDMA_BOX_AVX512)

FDMA_BOX_AVX2 inline __m256i load_256(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
FDMA_BOX_AVX2 inline std::uint64_t bytes_to_bits(__m256i lanes) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(lanes));
}
FDMA_BOX_AVX2 inline std::uint64_t halves_to_bits(__m256i low, __m256i high) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(packed));
}
FDMA_BOX_AVX2 inline std::uint64_t ints_to_bits(__m256i lanes) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
}
FDMA_BOX_AVX2 inline std::uint64_t longs_to_bits(__m256i lanes) {
  return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(lanes)));
}

// One kernel per lane width. `lanes(at)` compares one vector of values, `flip` inverts the result.
#define FDMA_BOX_AVX2_SCALAR(name, T, broadcast, compare, flip)                                \
  FDMA_BOX_AVX2 void name(std::uint64_t* out, const T* values, T scalar, std::int64_t words) { \
    const __m256i other = broadcast(scalar);                                                   \
    for (std::int64_t w = 0; w < words; ++w, values += 64) {                                   \
      std::uint64_t word = 0;                                                                  \
      constexpr int kLanes = 32 / static_cast<int>(sizeof(T));                                 \
      if constexpr (sizeof(T) == 1) {                                                          \
        word = bytes_to_bits(compare(load_256(values), other)) |                               \
               bytes_to_bits(compare(load_256(values + 32), other)) << 32;                     \
      } else if constexpr (sizeof(T) == 2) {                                                   \
        for (int i = 0; i < 2; ++i) {                                                          \
          word |= halves_to_bits(compare(load_256(values + 32 * i), other),                    \
                                 compare(load_256(values + 32 * i + 16), other))               \
                  << (32 * i);                                                                 \
        }                                                                                      \
      } else if constexpr (sizeof(T) == 4) {                                                   \
        for (int i = 0; i < 64; i += kLanes) {                                                 \
          word |= ints_to_bits(compare(load_256(values + i), other)) << i;                     \
        }                                                                                      \
      } else {                                                                                 \
        for (int i = 0; i < 64; i += kLanes) {                                                 \
          word |= longs_to_bits(compare(load_256(values + i), other)) << i;                    \
        }                                                                                      \
      }                                                                                        \
      out[w] = word ^ (flip);                                                                  \
    }                                                                                          \
  }
constexpr std::uint64_t kFlip = ~std::uint64_t{0};
FDMA_BOX_AVX2_SCALAR(at_most_8_avx2, std::int8_t, _mm256_set1_epi8, _mm256_cmpgt_epi8, kFlip)
FDMA_BOX_AVX2_SCALAR(at_most_16_avx2, std::int16_t, _mm256_set1_epi16, _mm256_cmpgt_epi16, kFlip)
FDMA_BOX_AVX2_SCALAR(at_most_32_avx2, std::int32_t, _mm256_set1_epi32, _mm256_cmpgt_epi32, kFlip)
FDMA_BOX_AVX2_SCALAR(at_most_64_avx2, std::int64_t, _mm256_set1_epi64x, _mm256_cmpgt_epi64, kFlip)
FDMA_BOX_AVX2_SCALAR(equal_8_avx2, std::int8_t, _mm256_set1_epi8, _mm256_cmpeq_epi8, 0)
FDMA_BOX_AVX2_SCALAR(equal_16_avx2, std::int16_t, _mm256_set1_epi16, _mm256_cmpeq_epi16, 0)
FDMA_BOX_AVX2_SCALAR(equal_32_avx2, std::int32_t, _mm256_set1_epi32, _mm256_cmpeq_epi32, 0)
FDMA_BOX_AVX2_SCALAR(equal_64_avx2, std::int64_t, _mm256_set1_epi64x, _mm256_cmpeq_epi64, 0)

FDMA_BOX_AVX2 void less_pairs_avx2(std::uint64_t* out, const std::int64_t* a, const std::int64_t* b,
                                   std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, a += 64, b += 64) {
    std::uint64_t word = 0;
    for (int i = 0; i < 64; i += 4) {
      word |= longs_to_bits(_mm256_cmpgt_epi64(load_256(b + i), load_256(a + i))) << i;
    }
    out[w] = word;
  }
}
FDMA_BOX_AVX2 void equal_pairs_avx2(std::uint64_t* out, const std::int64_t* a,
                                    const std::int64_t* b, std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, a += 64, b += 64) {
    std::uint64_t word = 0;
    for (int i = 0; i < 64; i += 4) {
      word |= longs_to_bits(_mm256_cmpeq_epi64(load_256(b + i), load_256(a + i))) << i;
    }
    out[w] = word;
  }
}
FDMA_BOX_AVX2 void non_zero_bytes_avx2(std::uint64_t* out, const std::uint8_t* bytes,
                                       std::int64_t words) {
  const __m256i zero = _mm256_setzero_si256();
  for (std::int64_t w = 0; w < words; ++w, bytes += 64) {
    out[w] = ~(bytes_to_bits(_mm256_cmpeq_epi8(load_256(bytes), zero)) |
               bytes_to_bits(_mm256_cmpeq_epi8(load_256(bytes + 32), zero)) << 32);
  }
}

constexpr RowKernels kAvx2{
    and_rows_avx2,   xor_rows_avx2,   store_row_avx2,   at_most_8_avx2,      at_most_16_avx2,
    at_most_32_avx2, at_most_64_avx2, equal_8_avx2,     equal_16_avx2,       equal_32_avx2,
    equal_64_avx2,   less_pairs_avx2, equal_pairs_avx2, non_zero_bytes_avx2, "avx2",
};

FDMA_BOX_AVX512 inline __m512i load_512(const void* at) { return _mm512_loadu_si512(at); }

// Masks are stored separately, each as a part of the word. If they were widened to 64 bits and
// combined in registers, GCC 12 could spill one as 32 bits and read it back as 64 (seen under
// ThreadSanitizer).
template <class Mask>
FDMA_BOX_AVX512 inline void store_lanes(std::uint64_t* word, int lane, Mask mask) {
  std::memcpy(reinterpret_cast<unsigned char*>(word) + lane / 8, &mask, sizeof mask);
}

#define FDMA_BOX_AVX512_SCALAR(name, T, broadcast, compare)                                      \
  FDMA_BOX_AVX512 void name(std::uint64_t* out, const T* values, T scalar, std::int64_t words) { \
    const __m512i other = broadcast(scalar);                                                     \
    constexpr int kLanes = 64 / static_cast<int>(sizeof(T));                                     \
    for (std::int64_t w = 0; w < words; ++w, values += 64) {                                     \
      for (int i = 0; i < 64; i += kLanes) {                                                     \
        store_lanes(out + w, i, compare(load_512(values + i), other));                           \
      }                                                                                          \
    }                                                                                            \
  }
FDMA_BOX_AVX512_SCALAR(at_most_8_avx512, std::int8_t, _mm512_set1_epi8, _mm512_cmple_epi8_mask)
FDMA_BOX_AVX512_SCALAR(at_most_16_avx512, std::int16_t, _mm512_set1_epi16, _mm512_cmple_epi16_mask)
FDMA_BOX_AVX512_SCALAR(at_most_32_avx512, std::int32_t, _mm512_set1_epi32, _mm512_cmple_epi32_mask)
FDMA_BOX_AVX512_SCALAR(at_most_64_avx512, std::int64_t, _mm512_set1_epi64, _mm512_cmple_epi64_mask)
FDMA_BOX_AVX512_SCALAR(equal_8_avx512, std::int8_t, _mm512_set1_epi8, _mm512_cmpeq_epi8_mask)
FDMA_BOX_AVX512_SCALAR(equal_16_avx512, std::int16_t, _mm512_set1_epi16, _mm512_cmpeq_epi16_mask)
FDMA_BOX_AVX512_SCALAR(equal_32_avx512, std::int32_t, _mm512_set1_epi32, _mm512_cmpeq_epi32_mask)
FDMA_BOX_AVX512_SCALAR(equal_64_avx512, std::int64_t, _mm512_set1_epi64, _mm512_cmpeq_epi64_mask)

FDMA_BOX_AVX512 void less_pairs_avx512(std::uint64_t* out, const std::int64_t* a,
                                       const std::int64_t* b, std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, a += 64, b += 64) {
    for (int i = 0; i < 64; i += 8) {
      store_lanes(out + w, i, _mm512_cmplt_epi64_mask(load_512(a + i), load_512(b + i)));
    }
  }
}
FDMA_BOX_AVX512 void equal_pairs_avx512(std::uint64_t* out, const std::int64_t* a,
                                        const std::int64_t* b, std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, a += 64, b += 64) {
    for (int i = 0; i < 64; i += 8) {
      store_lanes(out + w, i, _mm512_cmpeq_epi64_mask(load_512(a + i), load_512(b + i)));
    }
  }
}
FDMA_BOX_AVX512 void non_zero_bytes_avx512(std::uint64_t* out, const std::uint8_t* bytes,
                                           std::int64_t words) {
  for (std::int64_t w = 0; w < words; ++w, bytes += 64) {
    const __m512i lanes = load_512(bytes);
    out[w] = _mm512_test_epi8_mask(lanes, lanes);
  }
}

constexpr RowKernels kAvx512{
    and_rows_avx512,    xor_rows_avx512,       store_row_avx512,  at_most_8_avx512,
    at_most_16_avx512,  at_most_32_avx512,     at_most_64_avx512, equal_8_avx512,
    equal_16_avx512,    equal_32_avx512,       equal_64_avx512,   less_pairs_avx512,
    equal_pairs_avx512, non_zero_bytes_avx512, "avx512",
};
#endif  // FDMA_BOX_X86

std::vector<const RowKernels*> supported_kernels() {
  std::vector<const RowKernels*> sets{&kPortable};
#ifdef FDMA_BOX_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) sets.push_back(&kAvx2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    sets.push_back(&kAvx512);
  }
#endif
  return sets;
}

}  // namespace

std::span<const RowKernels* const> all_row_kernels() {
  static const std::vector<const RowKernels*> sets = supported_kernels();
  return sets;
}

const RowKernels& row_kernels() {
  static const RowKernels& fastest = *all_row_kernels().back();
  return fastest;
}

bool any_bit(const std::uint64_t* words, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t count = std::min(end - at, 64 - at % 64);
    if (((words[at / 64] >> (at % 64)) & low_bits(count)) != 0) return true;
    at += count;
  }
  return false;
}

bool all_bits(const std::uint64_t* words, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t count = std::min(end - at, 64 - at % 64);
    if ((~(words[at / 64] >> (at % 64)) & low_bits(count)) != 0) return false;
    at += count;
  }
  return true;
}

void copy_bits(std::uint64_t* out, const std::uint64_t* words, std::int64_t begin,
               std::int64_t num_bits) {
  const std::uint64_t* from = words + begin / 64;
  const int shift = static_cast<int>(begin % 64);
  const std::int64_t num_words = (num_bits + 63) / 64;
  for (std::int64_t w = 0; w < num_words; ++w) {
    out[w] = shift == 0 ? from[w] : (from[w] >> shift) | (from[w + 1] << (64 - shift));
  }
  if (num_bits % 64 != 0) out[num_words - 1] &= low_bits(num_bits % 64);
}

}  // namespace fdma::box
