// Values become bits one vector at a time: one comparison makes a mask of lanes, whose bits are
// those of the row. Whether a value is neither 0 nor 1 is accumulated and checked once per box,
// because such a value is an error that ends the reading.
//
// Floating values are classified by their patterns. x + x == 0 finds both zeros. The patterns of
// negative values grow with their magnitude, so "at or below drop_below" is the range of patterns
// from drop_below's to that of -inf, which excludes every NaN. For the values other than zero, the
// greatest distance from the range's begin is kept.
//
// Highway compiles this file once for each instruction set and picks one at run time.
#include "io/hdf5/dense_kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "io/hdf5/dense_kernels.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace fdma::io::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kBitsPerWord = 64;

/// Integers 0 and 1; the bit is where the file's byte order has it.
template <class T>
class JudgeInteger {
 public:
  using Tag = hn::CappedTag<T, 64>;
  explicit JudgeInteger(const ValueRule& rule)
      : one_(hn::Set(Tag(), static_cast<T>(rule.one))), seen_(hn::Zero(Tag())) {}

  HWY_INLINE auto keeps(hn::Vec<Tag> values) {
    seen_ = hn::Or(seen_, values);
    return hn::Ne(values, hn::Zero(Tag()));
  }
  bool all_fine() const {
    const Tag tag;
    return hn::AllTrue(tag, hn::Eq(hn::AndNot(one_, seen_), hn::Zero(tag)));
  }

 private:
  hn::Vec<Tag> one_;
  hn::Vec<Tag> seen_;
};

/// The bytes of each lane in reverse order.
template <class Tag>
HWY_INLINE hn::Vec<Tag> reverse_bytes(Tag tag, hn::Vec<Tag> values) {
  using T = hn::TFromD<Tag>;
#if HWY_TARGET == HWY_SCALAR
  T value = hn::GetLane(values);
  auto* bytes = reinterpret_cast<std::uint8_t*>(&value);
  std::reverse(bytes, bytes + sizeof(T));
  return hn::Set(tag, value);
#else
  const hn::Repartition<std::uint8_t, Tag> byte_tag;
  alignas(16) std::uint8_t order[16];
  for (std::size_t i = 0; i < 16; ++i) {
    order[i] = static_cast<std::uint8_t>(i / sizeof(T) * sizeof(T) + sizeof(T) - 1 - i % sizeof(T));
  }
  return hn::BitCast(
      tag, hn::TableLookupBytes(hn::BitCast(byte_tag, values), hn::LoadDup128(byte_tag, order)));
#endif
}

/// Floating values by their patterns, as unsigned integers.
template <class T, bool kIsSwapped>
class JudgeFloat {
 public:
  using Tag = hn::CappedTag<T, 64>;
  explicit JudgeFloat(const ValueRule& rule)
      : first_(hn::Set(Tag(), static_cast<T>(rule.first))),
        span_(hn::Set(Tag(), static_cast<T>(rule.last - rule.first))),
        farthest_(hn::Zero(Tag())) {}

  HWY_INLINE auto keeps(hn::Vec<Tag> values) {
    const Tag tag;
    if constexpr (kIsSwapped) values = reverse_bytes(tag, values);
    const auto is_zero = hn::Eq(hn::Add(values, values), hn::Zero(tag));
    // Below `first` the difference wraps to more than the span.
    const auto distance = hn::IfThenZeroElse(is_zero, hn::Sub(values, first_));
    farthest_ = hn::Max(farthest_, distance);
    return is_zero;
  }
  bool all_fine() const {
    const Tag tag;
    return hn::AllTrue(tag, hn::Eq(hn::Max(farthest_, span_), span_));
  }

 private:
  hn::Vec<Tag> first_;
  hn::Vec<Tag> span_;
  hn::Vec<Tag> farthest_;
};

/// The bits of 64 values.
template <class T, class Judge>
HWY_INLINE std::uint64_t pack_word(const T* values, Judge& judge) {
  const typename Judge::Tag tag;
  const std::size_t lanes = hn::Lanes(tag);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 64; i += lanes) {
    const auto mask = judge.keeps(hn::LoadU(tag, values + i));
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(tag, mask, bytes);
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes, 8);
    word |= bits << i;
  }
  return word;
}

/// The bits of up to 64 values. Missing values count as 0, which is always valid.
template <class T, class Judge>
HWY_INLINE std::uint64_t pack_part(const T* values, std::int64_t count, Judge& judge) {
  T padded[64] = {};
  std::memcpy(padded, values, static_cast<std::size_t>(count) * sizeof(T));
  return pack_word(padded, judge);
}

HWY_INLINE std::uint64_t low_bits(std::int64_t count) {
  return count >= kBitsPerWord ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

void or_shared(std::uint64_t& word, std::uint64_t bits) {
  std::atomic_ref<std::uint64_t>(word).fetch_or(bits, std::memory_order_relaxed);
}

template <class T, class Judge>
HWY_INLINE void pack_aligned_row(const T* values, std::int64_t count, std::uint64_t* out,
                                 bool ends_row, std::uint64_t flip, Judge& judge) {
  const std::int64_t num_words = count / kBitsPerWord;
  for (std::int64_t i = 0; i < num_words; ++i) {
    out[i] = pack_word(values + i * kBitsPerWord, judge) ^ flip;
  }
  const std::int64_t rest = count % kBitsPerWord;
  if (rest == 0) return;
  const std::uint64_t bits =
      (pack_part(values + num_words * kBitsPerWord, rest, judge) ^ flip) & low_bits(rest);
  if (ends_row) {
    out[num_words] = bits;
  } else {
    or_shared(out[num_words], bits);
  }
}

/// A row that begins inside a word.
template <class T, class Judge>
HWY_INLINE void pack_shifted_row(const T* values, std::int64_t count, std::uint64_t* out,
                                 std::int64_t shift, std::uint64_t flip, Judge& judge) {
  std::uint64_t carry = 0;  // bits of the current word; the lowest `shift` ones belong to others
  bool is_first = true;
  const auto store = [&](std::uint64_t& word, std::uint64_t bits, bool is_whole) {
    if (is_whole) {
      word = bits;
    } else {
      or_shared(word, bits);
    }
  };
  std::int64_t done = 0;
  for (; done < count; done += kBitsPerWord) {
    const std::int64_t n = std::min(kBitsPerWord, count - done);
    const std::uint64_t bits = ((n == kBitsPerWord ? pack_word(values + done, judge)
                                                   : pack_part(values + done, n, judge)) ^
                                flip) &
                               low_bits(n);
    carry |= bits << shift;
    if (shift + n < kBitsPerWord) break;
    store(*out++, carry, !is_first);
    is_first = false;
    carry = bits >> (kBitsPerWord - shift);
  }
  if ((shift + count) % kBitsPerWord != 0) or_shared(*out, carry);
}

template <class T, class Judge>
bool pack_with(const ValueRule& rule, const PackBox& box) {
  Judge judge(rule);
  const std::uint64_t flip = rule.is_inverted ? ~std::uint64_t{0} : 0;
  const std::int64_t shift = box.bit_begin % kBitsPerWord;
  const std::byte* values = box.values;
  std::uint64_t* out = box.bits + box.bit_begin / kBitsPerWord;
  for (std::int64_t row = 0; row < box.num_rows; ++row) {
    const auto* typed = reinterpret_cast<const T*>(values);
    if (shift == 0) {
      pack_aligned_row(typed, box.num_cols, out, box.ends_row, flip, judge);
    } else {
      pack_shifted_row(typed, box.num_cols, out, shift, flip, judge);
    }
    values += box.value_stride;
    out += box.bit_stride;
  }
  return judge.all_fine();
}

template <class T>
bool pack_floats(const ValueRule& rule, const PackBox& box) {
  return rule.is_swapped ? pack_with<T, JudgeFloat<T, true>>(rule, box)
                         : pack_with<T, JudgeFloat<T, false>>(rule, box);
}

bool pack_rows_here(const ValueRule& rule, const PackBox& box) {
  switch (rule.size_bytes) {
    case 1:
      return pack_with<std::uint8_t, JudgeInteger<std::uint8_t>>(rule, box);
    case 2:
      return rule.is_floating ? pack_floats<std::uint16_t>(rule, box)
                              : pack_with<std::uint16_t, JudgeInteger<std::uint16_t>>(rule, box);
    case 4:
      return rule.is_floating ? pack_floats<std::uint32_t>(rule, box)
                              : pack_with<std::uint32_t, JudgeInteger<std::uint32_t>>(rule, box);
    default:
      return rule.is_floating ? pack_floats<std::uint64_t>(rule, box)
                              : pack_with<std::uint64_t, JudgeInteger<std::uint64_t>>(rule, box);
  }
}

void merge_rows_here(const std::uint64_t* rows, std::int64_t stride, std::int64_t num_rows,
                     std::int64_t num_words, std::uint64_t* any, std::uint64_t* all) {
  const hn::ScalableTag<std::uint64_t> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  std::int64_t i = 0;
  // Goes down the rows for a few words at a time, which stay in registers.
  for (; i + 2 * lanes <= num_words; i += 2 * lanes) {
    auto any0 = hn::LoadU(tag, any + i), any1 = hn::LoadU(tag, any + i + lanes);
    auto all0 = hn::LoadU(tag, all + i), all1 = hn::LoadU(tag, all + i + lanes);
    const std::uint64_t* row = rows + i;
    for (std::int64_t r = 0; r < num_rows; ++r, row += stride) {
      const auto words0 = hn::LoadU(tag, row), words1 = hn::LoadU(tag, row + lanes);
      any0 = hn::Or(any0, words0);
      any1 = hn::Or(any1, words1);
      all0 = hn::And(all0, words0);
      all1 = hn::And(all1, words1);
    }
    hn::StoreU(any0, tag, any + i);
    hn::StoreU(any1, tag, any + i + lanes);
    hn::StoreU(all0, tag, all + i);
    hn::StoreU(all1, tag, all + i + lanes);
  }
  for (; i < num_words; ++i) {
    for (std::int64_t r = 0; r < num_rows; ++r) {
      any[i] |= rows[r * stride + i];
      all[i] &= rows[r * stride + i];
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
using Bytes16 = hn::FixedTag<std::uint8_t, 16>;

/// Interleaves kPlanes vectors bytewise: byte b of element i, from planes[b], goes to
/// i * kPlanes + b. Halves are interleaved first: a, c to ac and b, d to bd, then these to abcd.
template <int kPlanes>
HWY_INLINE void interleave(const hn::Vec<Bytes16>* planes, std::uint8_t* out) {
  const Bytes16 tag;
  if constexpr (kPlanes == 1) {
    hn::StoreU(planes[0], tag, out);
  } else {
    constexpr int kHalf = kPlanes / 2;
    hn::Vec<Bytes16> lower[kHalf], upper[kHalf];
    for (int p = 0; p < kHalf; ++p) {
      lower[p] = hn::InterleaveLower(tag, planes[p], planes[p + kHalf]);
      upper[p] = hn::InterleaveUpper(tag, planes[p], planes[p + kHalf]);
    }
    interleave<kHalf>(lower, out);
    interleave<kHalf>(upper, out + kHalf * 16);
  }
}

template <int kPlanes>
std::int64_t unshuffle_vectors(const std::uint8_t* planes, std::int64_t count, std::uint8_t* out) {
  const Bytes16 tag;
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    hn::Vec<Bytes16> vectors[kPlanes];
    for (int p = 0; p < kPlanes; ++p) vectors[p] = hn::LoadU(tag, planes + p * count + i);
    interleave<kPlanes>(vectors, out + i * kPlanes);
  }
  return i;
}
#else
template <int kPlanes>
std::int64_t unshuffle_vectors(const std::uint8_t*, std::int64_t, std::uint8_t*) {
  return 0;
}
#endif

void unshuffle_here(const std::byte* planes, std::int64_t num_bytes, std::int64_t element_bytes,
                    std::byte* values) {
  const std::int64_t count = num_bytes / element_bytes;
  const auto* from = reinterpret_cast<const std::uint8_t*>(planes);
  auto* to = reinterpret_cast<std::uint8_t*>(values);
  std::int64_t done = 0;
  if (element_bytes == 2) done = unshuffle_vectors<2>(from, count, to);
  if (element_bytes == 4) done = unshuffle_vectors<4>(from, count, to);
  if (element_bytes == 8) done = unshuffle_vectors<8>(from, count, to);
  for (std::int64_t b = 0; b < element_bytes; ++b) {
    for (std::int64_t i = done; i < count; ++i) to[i * element_bytes + b] = from[b * count + i];
  }
  const std::int64_t whole = count * element_bytes;
  std::copy(from + whole, from + num_bytes, to + whole);
}

/// Sums modulo 65535 with end-around carry. The result is 0 only if all words are 0; a plain
/// remainder of 0 would not say that.
std::uint64_t fold(std::uint64_t sum) {
  return sum == 0 ? 0 : (sum % 65535 == 0 ? 65535 : sum % 65535);
}

// With N words w_0 .. w_(N-1), sum1 = sum of w_i and sum2 = sum of (N - i) * w_i. Each of the 2L
// words of a vector has its own lane. For the word at p, the running sum s1 of the lane and the sum
// s2 of all its running sums give its share, 2L * s2 - p * s1. Words are read little-endian: modulo
// 65535 both sums of swapped words are 256 times those, so only the results are swapped.
std::uint32_t fletcher32_here(const std::byte* bytes, std::int64_t count) {
  const hn::ScalableTag<std::uint32_t> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  // Running sums of 16-bit words stay below 2^32 for 360 additions of running sums.
  constexpr std::int64_t kVectorsPerBlock = 360;
  constexpr int kMaxLanes = HWY_MAX_BYTES / 4;
  HWY_ALIGN std::uint32_t lane_sums[4][kMaxLanes];  // s1, s2 of even words, s1, s2 of odd ones
  const auto* words = reinterpret_cast<const std::uint8_t*>(bytes);
  const auto low_half = hn::Set(tag, 0xffff);
  std::uint64_t sum1 = 0, sum2 = 0;
  std::int64_t left = count / 2;
  while (left >= 2 * lanes) {
    const std::int64_t vectors = std::min(kVectorsPerBlock, left / (2 * lanes));
    auto even1 = hn::Zero(tag), even2 = hn::Zero(tag), odd1 = even1, odd2 = even1;
    for (std::int64_t v = 0; v < vectors; ++v) {
      const auto pairs =
          hn::LoadU(tag, reinterpret_cast<const std::uint32_t*>(words + v * lanes * 4));
      even1 = hn::Add(even1, hn::And(pairs, low_half));
      even2 = hn::Add(even2, even1);
      odd1 = hn::Add(odd1, hn::ShiftRight<16>(pairs));
      odd2 = hn::Add(odd2, odd1);
    }
    hn::Store(even1, tag, lane_sums[0]);
    hn::Store(even2, tag, lane_sums[1]);
    hn::Store(odd1, tag, lane_sums[2]);
    hn::Store(odd2, tag, lane_sums[3]);
    sum2 += static_cast<std::uint64_t>(vectors * 2 * lanes) * sum1;
    for (std::int64_t p = 0; p < 2 * lanes; ++p) {
      const std::uint64_t s1 = lane_sums[p % 2 * 2][p / 2], s2 = lane_sums[p % 2 * 2 + 1][p / 2];
      sum1 += s1;
      sum2 += static_cast<std::uint64_t>(2 * lanes) * s2 - static_cast<std::uint64_t>(p) * s1;
    }
    sum1 = fold(sum1);
    sum2 = fold(sum2);
    words += vectors * lanes * 4;
    left -= vectors * 2 * lanes;
  }
  sum1 = fold(256 * sum1);
  sum2 = fold(256 * sum2);
  for (; left > 0; --left, words += 2) {
    sum1 = fold(sum1 + (std::uint64_t{words[0]} << 8 | words[1]));
    sum2 = fold(sum2 + sum1);
  }
  if (count % 2 != 0) {
    sum1 = fold(sum1 + (std::uint64_t{words[0]} << 8));
    sum2 = fold(sum2 + sum1);
  }
  return static_cast<std::uint32_t>(sum2 << 16 | sum1);
}

}  // namespace fdma::io::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::io {

HWY_EXPORT(pack_rows_here);
HWY_EXPORT(merge_rows_here);
HWY_EXPORT(unshuffle_here);
HWY_EXPORT(fletcher32_here);

bool pack_rows(const ValueRule& rule, const PackBox& box) {
  return HWY_DYNAMIC_DISPATCH(pack_rows_here)(rule, box);
}

void merge_rows(const std::uint64_t* rows, std::int64_t stride, std::int64_t num_rows,
                std::int64_t num_words, std::uint64_t* any, std::uint64_t* all) {
  HWY_DYNAMIC_DISPATCH(merge_rows_here)(rows, stride, num_rows, num_words, any, all);
}

void unshuffle(const std::byte* planes, std::int64_t num_bytes, std::int64_t element_bytes,
               std::byte* values) {
  HWY_DYNAMIC_DISPATCH(unshuffle_here)(planes, num_bytes, element_bytes, values);
}

std::uint32_t fletcher32(const std::byte* bytes, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(fletcher32_here)(bytes, count);
}

int judge_value(const ValueRule& rule, const std::byte* value) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t bits = 0;
  if (rule.is_floating && rule.is_swapped) {
    for (int i = 0; i < rule.size_bytes; ++i) {
      bits = bits << 8 | std::to_integer<std::uint64_t>(value[i]);
    }
  } else {
    std::memcpy(&bits, value, static_cast<std::size_t>(rule.size_bytes));
  }
  if (rule.is_floating) {
    const std::uint64_t sign = std::uint64_t{1} << (rule.size_bytes * 8 - 1);
    if ((bits & ~sign) == 0) return 1;
    return bits >= rule.first && bits <= rule.last ? 0 : -1;
  }
  if (bits != 0 && bits != rule.one) return -1;
  return (bits != 0) != rule.is_inverted ? 1 : 0;
}

}  // namespace fdma::io
#endif  // HWY_ONCE
