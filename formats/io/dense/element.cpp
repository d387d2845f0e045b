// Values become bits 64 at a time in two steps that compilers vectorise. The first step makes a
// byte 0 or 1 per value and accumulates "neither". The second turns eight bytes into eight bits by
// one multiplication, which moves bit 0 of byte i to bit 56 + i.
#include "io/dense/element.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "io/arrays/narrow_floats.hpp"

namespace fdma::io {
namespace {

constexpr double kDefaultDropBelow = -32752;  // half of float16's lowest
constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kGather = 0x0102040810204080;

static_assert(std::endian::native == std::endian::little);

std::uint64_t bits_of_bytes(const std::uint8_t* bytes, std::uint64_t& seen) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    std::uint64_t eight;
    std::memcpy(&eight, bytes + i * 8, 8);
    seen |= eight;
    word |= ((eight & kOnes) * kGather >> 56) << (i * 8);
  }
  return word;
}

// Puts `count` low bits of `bits` at bit `begin` of `row`.
void put_bits(std::uint64_t* row, std::int64_t begin, std::uint64_t bits, int count) {
  const int shift = static_cast<int>(begin % 64);
  row[begin / 64] |= bits << shift;
  if (shift + count > 64) row[begin / 64 + 1] |= bits >> (64 - shift);
}

// judge(value, &is_bad) returns whether the value sets its bit, and raises is_bad if it is neither.
template <class T, class Judge>
std::int64_t pack_values(const T* values, std::int64_t count, std::uint64_t* row,
                         std::int64_t begin, bool is_inverted, Judge judge) {
  const std::uint64_t flip = is_inverted ? ~std::uint64_t{0} : 0;
  for (std::int64_t done = 0; done < count; done += 64) {
    const int n = static_cast<int>(std::min<std::int64_t>(64, count - done));
    std::uint64_t bits = 0;
    bool is_bad = false;
    if (n == 64) {
      std::uint64_t seen = 0;
      if constexpr (sizeof(T) == 1) {
        bits = bits_of_bytes(reinterpret_cast<const std::uint8_t*>(values + done), seen);
        is_bad = (seen & ~kOnes) != 0;
      } else {
        std::uint8_t bytes[64];
        T any_bad = 0;  // of the values' own width, for the vectoriser
        for (int i = 0; i < 64; ++i) {
          T bad = 0;
          bytes[i] = judge(values[done + i], bad);
          any_bad = static_cast<T>(any_bad + bad);
        }
        is_bad = any_bad != 0;
        bits = bits_of_bytes(bytes, seen);
      }
    } else {
      for (int i = 0; i < n; ++i) {
        T bad = 0;
        bits |= std::uint64_t{judge(values[done + i], bad)} << i;
        is_bad = is_bad || bad != 0;
      }
    }
    if (is_bad) {
      for (int i = 0; i < n; ++i) {
        T bad = 0;
        judge(values[done + i], bad);
        if (bad != 0) return done + i;
      }
    }
    bits ^= flip;
    if (n < 64) bits &= (std::uint64_t{1} << n) - 1;
    put_bits(row, begin + done, bits, n);
  }
  return -1;
}

template <class T>
std::int64_t pack_integers(const void* values, std::int64_t count, std::uint64_t* row,
                           std::int64_t begin, bool is_inverted) {
  return pack_values(static_cast<const T*>(values), count, row, begin, is_inverted,
                     [](T value, T& bad) {
                       bad = static_cast<T>(value > 1);
                       return static_cast<std::uint8_t>(value & 1);
                     });
}

template <class T>
std::int64_t pack_floats(const void* values, std::int64_t count, std::uint64_t* row,
                         std::int64_t begin, T drop_below) {
  return pack_values(static_cast<const T*>(values), count, row, begin, false,
                     [drop_below](T value, T& bad) {
                       const bool keeps = value == T{0};
                       bad = static_cast<T>(!keeps & !(value <= drop_below));  // NaN is bad
                       return static_cast<std::uint8_t>(keeps);
                     });
}

// Floating values of which 1, with the bits `one`, keeps and 0 masks.
template <class Bits>
std::int64_t pack_ones(const void* values, std::int64_t count, std::uint64_t* row,
                       std::int64_t begin, Bits one) {
  return pack_values(static_cast<const Bits*>(values), count, row, begin, false,
                     [one](Bits value, Bits& bad) {
                       const bool keeps = value == one;
                       const bool drops = static_cast<Bits>(value << 1) == 0;
                       bad = static_cast<Bits>(!keeps & !drops);
                       return static_cast<std::uint8_t>(keeps);
                     });
}

std::int64_t pack_16bit_floats(const void* values, std::int64_t count, std::uint64_t* row,
                               std::int64_t begin, std::uint16_t first, std::uint16_t span) {
  return pack_values(static_cast<const std::uint16_t*>(values), count, row, begin, false,
                     [first, span](std::uint16_t value, std::uint16_t& bad) {
                       const bool keeps = static_cast<std::uint16_t>(value << 1) == 0;
                       const bool drops = static_cast<std::uint16_t>(value - first) <= span;
                       bad = static_cast<std::uint16_t>(!keeps & !drops);
                       return static_cast<std::uint8_t>(keeps);
                     });
}

struct FloatLayout {
  std::size_t size, sign, exponent, exponent_size, mantissa, mantissa_size, bias;
};

bool has_layout(hid_t type, const FloatLayout& layout) {
  std::size_t sign = 0, exponent = 0, exponent_size = 0, mantissa = 0, mantissa_size = 0;
  return H5Tget_size(type) == layout.size && H5Tget_precision(type) == layout.size * 8 &&
         H5Tget_offset(type) == 0 &&
         H5Tget_fields(type, &sign, &exponent, &exponent_size, &mantissa, &mantissa_size) >= 0 &&
         sign == layout.sign && exponent == layout.exponent &&
         exponent_size == layout.exponent_size && mantissa == layout.mantissa &&
         mantissa_size == layout.mantissa_size && H5Tget_ebias(type) == layout.bias &&
         H5Tget_norm(type) == H5T_NORM_IMPLIED;
}
constexpr FloatLayout kHalf{2, 15, 10, 5, 0, 10, 15};
constexpr FloatLayout kBfloat16{2, 15, 7, 8, 0, 7, 127};

Handle in_native_order(hid_t type) {
  Handle copy(H5Tcopy(type), H5Tclose);
  if (copy && H5Tset_order(copy.get(), H5T_ORDER_LE) < 0) return {};
  return copy;
}

}  // namespace

Result<DenseElement> DenseElement::of(const DatasetInfo& info, const DenseReadOptions& options,
                                      const std::string& where) {
  DenseElement element;
  const hid_t type = info.type.get();
  const auto wrong = [&](const std::string& text) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}: {}", where, text)};
  };
  const H5T_class_t type_class = H5Tget_class(type);
  bool is_floating = false;
  if (type_class == H5T_FLOAT) {
    is_floating = true;
    if (has_layout(type, kHalf) || has_layout(type, kBfloat16)) {
      element.kind_ = has_layout(type, kHalf) ? Kind::float16 : Kind::bfloat16;
      element.memory_type_ = in_native_order(type);
    } else if (H5Tget_size(type) <= 4) {
      element.kind_ = Kind::float32;
      element.memory_type_ = Handle(H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose);
    } else {
      element.kind_ = Kind::float64;
      element.memory_type_ = Handle(H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose);
    }
  } else if (type_class == H5T_INTEGER || type_class == H5T_ENUM || type_class == H5T_BITFIELD) {
    if (type_class == H5T_ENUM && !is_boolean_enum(type)) {
      return wrong(
          "an enumeration other than FALSE = 0, TRUE = 1; expected booleans, integers or "
          "floating values");
    }
    element.is_boolean_ = type_class == H5T_ENUM;
    std::optional<std::string> declared;
    if (info.dataset) {
      FDMA_TRY(declared, read_string_attribute(info.dataset.get(), "dtype", where));
    }
    const bool is_bfloat16 =
        type_class == H5T_INTEGER && H5Tget_size(type) == 2 && declared == "bfloat16";
    element.memory_type_ = Handle(H5Tget_native_type(type, H5T_DIR_ASCEND), H5Tclose);
    const std::size_t size = element.memory_type_ ? H5Tget_size(element.memory_type_.get()) : 0;
    if (is_bfloat16) {
      is_floating = true;
      element.kind_ = Kind::bfloat16;
    } else if (size == 1 || size == 2 || size == 4 || size == 8) {
      element.kind_ = size == 1   ? Kind::bits8
                      : size == 2 ? Kind::bits16
                      : size == 4 ? Kind::bits32
                                  : Kind::bits64;
      element.is_signed_ = type_class == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_2;
    } else {
      return wrong(fmt::format("integers of {} bytes; expected 1, 2, 4 or 8", H5Tget_size(type)));
    }
  } else {
    return wrong(
        fmt::format("type {}; expected booleans, integers or floating values", type_text(type)));
  }
  if (!element.memory_type_) return hdf5_error(where, "cannot read its type");
  element.size_bytes_ = static_cast<std::int64_t>(H5Tget_size(element.memory_type_.get()));

  element.is_inverted_ = !options.true_means_attend;
  element.drop_below_ = options.drop_below.value_or(kDefaultDropBelow);
  if (is_floating && element.is_inverted_) {
    return wrong(
        "true_means (--true-means masked) is for boolean and integer masks, but the "
        "values are floating: 0 keeps, large negative ones mask");
  }
  if (!is_floating && options.drop_below.has_value()) {
    return wrong(fmt::format("drop_below (--drop-below) is for floating masks, but the type is {}",
                             element.is_boolean_ ? "boolean" : type_text(type)));
  }
  element.ones_keep_ = options.ones_keep;
  if (options.ones_keep && !is_floating) {
    return wrong(
        fmt::format("ones_keep (--ones-keep) is for floating masks, but the type is {}, "
                    "where 1 keeps in any case",
                    element.is_boolean_ ? "boolean" : type_text(type)));
  }
  if (options.ones_keep && options.drop_below.has_value()) {
    return wrong("ones_keep (--ones-keep) and drop_below (--drop-below): give one of the two");
  }
  if (!(element.drop_below_ < 0)) {
    return wrong(fmt::format("drop_below (--drop-below): {} is not below 0", element.drop_below_));
  }
  auto below32 = static_cast<float>(element.drop_below_);
  if (static_cast<double>(below32) > element.drop_below_) {
    below32 = std::nextafter(below32, -std::numeric_limits<float>::infinity());
  }
  element.drop_below32_ = below32;
  if (element.kind_ == Kind::float16 || element.kind_ == Kind::bfloat16) {
    const bool is_half = element.kind_ == Kind::float16;
    const std::uint16_t minus_infinity = is_half ? 0xfc00 : 0xff80;
    std::uint16_t first = minus_infinity;  // patterns of negative values grow with the magnitude
    const auto value_of = [&](std::uint16_t bits) {
      return is_half ? half_to_double(bits) : bfloat16_to_double(bits);
    };
    while (first > 0x8001 &&
           value_of(static_cast<std::uint16_t>(first - 1)) <= element.drop_below_) {
      --first;
    }
    element.drop16_first_ = first;
    element.drop16_span_ = static_cast<std::uint16_t>(minus_infinity - first);
  }
  element.make_rule(type);
  return element;
}

// The stored type is the type in memory, except perhaps for its byte order.
void DenseElement::make_rule(hid_t stored_type) {
  is_stored_as_is_ = H5Tequal(stored_type, memory_type_.get()) > 0;
  if (!is_stored_as_is_ && H5Tget_class(stored_type) != H5T_ENUM &&
      H5Tget_order(stored_type) == H5T_ORDER_BE) {
    const Handle native = in_native_order(stored_type);
    is_stored_swapped_ = native && H5Tequal(native.get(), memory_type_.get()) > 0;
    is_stored_as_is_ = is_stored_swapped_;
  }
  // The rule's vector code tells additive values and single bits, not the bits of 1.
  if (ones_keep_) is_stored_as_is_ = false;
  rule_.size_bytes = static_cast<int>(size_bytes_);
  rule_.is_swapped = is_stored_swapped_;
  rule_.is_inverted = is_inverted_;
  rule_.is_floating = kind_ >= Kind::float16;
  rule_.one = is_stored_swapped_ ? std::uint64_t{1} << (8 * (size_bytes_ - 1)) : 1;
  switch (kind_) {
    case Kind::float16:
    case Kind::bfloat16:
      rule_.first = drop16_first_;
      rule_.last = static_cast<std::uint64_t>(drop16_first_) + drop16_span_;
      break;
    case Kind::float32:
      rule_.first = std::bit_cast<std::uint32_t>(drop_below32_);
      rule_.last = std::bit_cast<std::uint32_t>(-std::numeric_limits<float>::infinity());
      break;
    case Kind::float64:
      rule_.first = std::bit_cast<std::uint64_t>(drop_below_);
      rule_.last = std::bit_cast<std::uint64_t>(-std::numeric_limits<double>::infinity());
      break;
    default:
      break;
  }
}

std::int64_t DenseElement::pack(const void* values, std::int64_t count, std::uint64_t* row,
                                std::int64_t begin) const {
  if (ones_keep_) {
    switch (kind_) {
      case Kind::float16:
        return pack_ones<std::uint16_t>(values, count, row, begin, 0x3c00);
      case Kind::bfloat16:
        return pack_ones<std::uint16_t>(values, count, row, begin, 0x3f80);
      case Kind::float32:
        return pack_ones(values, count, row, begin, std::bit_cast<std::uint32_t>(1.0F));
      default:
        return pack_ones(values, count, row, begin, std::bit_cast<std::uint64_t>(1.0));
    }
  }
  switch (kind_) {
    case Kind::bits8:
      return pack_integers<std::uint8_t>(values, count, row, begin, is_inverted_);
    case Kind::bits16:
      return pack_integers<std::uint16_t>(values, count, row, begin, is_inverted_);
    case Kind::bits32:
      return pack_integers<std::uint32_t>(values, count, row, begin, is_inverted_);
    case Kind::bits64:
      return pack_integers<std::uint64_t>(values, count, row, begin, is_inverted_);
    case Kind::float16:
    case Kind::bfloat16:
      return pack_16bit_floats(values, count, row, begin, drop16_first_, drop16_span_);
    case Kind::float32:
      return pack_floats<float>(values, count, row, begin, drop_below32_);
    case Kind::float64:
      return pack_floats<double>(values, count, row, begin, drop_below_);
  }
  return -1;
}

std::string DenseElement::complaint_of_stored(const std::byte* value) const {
  std::byte bytes[8];
  std::copy_n(value, size_bytes_, bytes);
  if (is_stored_swapped_) std::reverse(bytes, bytes + size_bytes_);
  return complaint(bytes);
}

double DenseElement::as_double(const void* value) const {
  std::uint16_t bits = 0;
  float single = 0;
  double wide = 0;
  switch (kind_) {
    case Kind::float16:
      std::memcpy(&bits, value, 2);
      return half_to_double(bits);
    case Kind::bfloat16:
      std::memcpy(&bits, value, 2);
      return bfloat16_to_double(bits);
    case Kind::float32:
      std::memcpy(&single, value, 4);
      return static_cast<double>(single);
    default:
      std::memcpy(&wide, value, 8);
      return wide;
  }
}

std::string DenseElement::complaint(const void* value) const {
  if (kind_ <= Kind::bits64) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, value, static_cast<std::size_t>(size_bytes_));
    const int unused = 64 - static_cast<int>(size_bytes_) * 8;
    const std::string text =
        is_signed_ ? fmt::format("{}", static_cast<std::int64_t>(bits << unused) >> unused)
                   : fmt::format("{}", bits);
    return fmt::format(
        "is {}; {} holds 0 and 1 only (store `mask != 0`, and say --true-means masked if 1 hides a "
        "key)",
        text, is_boolean_ ? "a boolean mask" : "an integer mask");
  }
  const double x = as_double(value);
  if (ones_keep_) {
    return fmt::format(
        "is {}; with ones_keep (--ones-keep) a floating mask holds 1, which keeps, "
        "and 0, which masks",
        x);
  }
  const std::string rule = fmt::format(
      "a floating mask is additive: 0 keeps, -inf and values at or below drop_below = {} mask",
      drop_below_);
  if (std::isnan(x)) return fmt::format("is nan; {}", rule);
  if (x < 0 && x > drop_below_) {
    return fmt::format("is {}; {}: pass --drop-below {} if it means masked", x, rule, x);
  }
  if (x == 1) {
    return fmt::format("is 1; {}: pass --ones-keep if 1 keeps and 0 masks", rule);
  }
  return fmt::format("is {}; {}: no option accepts it, a bias is not a mask", x, rule);
}

}  // namespace fdma::io
