// Hugging Face's four-dimensional masks from and to a mask, boolean and additive.
//
// Each (batch, head) pair passes through one bit per cell. Values are checked as they are packed:
// eight booleans at a time by a multiplication that gathers their lowest bits; floats one by one
// against zero and the numbers that mean minus infinity.
#include "fdma/formats/interop/hf_mask.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

using interop::wrong;

constexpr float kFloat16Lowest = -65504.0F;
constexpr float kBfloat16Lowest = -0x1.FEp127F;
constexpr float kFloat32Lowest = std::numeric_limits<float>::lowest();

// Elements of a type as stored, and their meaning.
struct Float16 {
  using Stored = std::uint16_t;
  static constexpr Stored kLowest = 0xFBFF, kInfinity = 0xFC00;
  static bool attends(Stored value) { return (value & 0x7FFF) == 0; }
  static bool is_masked(Stored value) { return value == kLowest || value == kInfinity; }
  static double number(Stored value) {
    const int exponent = value >> 10 & 31, mantissa = value & 1023;
    double magnitude = exponent == 0
                           ? mantissa * 0x1p-24
                           : (1024 + mantissa) *
                                 std::bit_cast<double>((std::uint64_t(exponent) - 25 + 1023) << 52);
    if (exponent == 31) {
      magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                                : std::numeric_limits<double>::quiet_NaN();
    }
    return value >> 15 ? -magnitude : magnitude;
  }
};
struct Bfloat16 {
  using Stored = std::uint16_t;
  static constexpr Stored kLowest = 0xFF7F, kInfinity = 0xFF80;
  static bool attends(Stored value) { return (value & 0x7FFF) == 0; }
  static bool is_masked(Stored value) { return value == kLowest || value == kInfinity; }
  static double number(Stored value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
  }
};
template <class Float>
struct Wide {
  using Stored = Float;
  static constexpr Float kLowest = std::numeric_limits<Float>::lowest();
  static constexpr Float kInfinity = -std::numeric_limits<Float>::infinity();
  static bool attends(Float value) { return value == 0; }
  static bool is_masked(Float value) {
    return value == kLowest || value == kInfinity || value == kFloat32Lowest ||
           value == kBfloat16Lowest || value == kFloat16Lowest;
  }
  static double number(Float value) { return value; }
};

// The bits of `count` elements at `values`, least significant first, and the first element that
// means neither attend nor mask.
struct Packed {
  std::uint64_t bits = 0;
  int wrong_at = -1;
};

template <class Type>
Packed pack(const std::byte* values, int count) {
  Packed packed;
  for (int i = 0; i < count; ++i) {
    typename Type::Stored value;
    std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    const bool attends = Type::attends(value);
    if (!attends && !Type::is_masked(value)) return {0, i};
    packed.bits |= std::uint64_t{attends} << i;
  }
  return packed;
}

Packed pack_booleans(const std::byte* values, int count) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kGather = 0x0102040810204080;
  Packed packed;
  for (int i = 0; i < count; i += 8) {
    const int bytes = std::min(count - i, 8);
    std::uint64_t eight = 0;
    std::memcpy(&eight, values + i, static_cast<std::size_t>(bytes));
    if ((eight & ~kOnes) != 0) {
      for (int j = 0; j < bytes; ++j) {
        if (values[i + j] > std::byte{1}) return {0, i + j};
      }
    }
    packed.bits |= (eight * kGather >> 56) << i;
  }
  return packed;
}

// The functions for elements of one type.
struct ElementKind {
  Packed (*pack)(const std::byte* values, int count);
  std::string (*text)(const std::byte* value);
};

template <class Type>
std::string float_text(const std::byte* at) {
  typename Type::Stored value;
  std::memcpy(&value, at, sizeof value);
  return fmt::format("{}", Type::number(value));
}
std::string byte_text(const std::byte* value) {
  return fmt::format("{}", static_cast<int>(*value));
}

template <class Type>
constexpr ElementKind kFloatKind{pack<Type>, float_text<Type>};

const ElementKind* kind_of(DType dtype) {
  static constexpr ElementKind kBoolean{pack_booleans, byte_text};
  switch (dtype) {
    case DType::boolean:
    case DType::uint8:
    case DType::int8:
      return &kBoolean;
    case DType::float16:
      return &kFloatKind<Float16>;
    case DType::bfloat16:
      return &kFloatKind<Bfloat16>;
    case DType::float32:
      return &kFloatKind<Wide<float>>;
    case DType::float64:
      return &kFloatKind<Wide<double>>;
    default:
      return nullptr;
  }
}

bool is_additive(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 ||
         dtype == DType::float64;
}

Error wrong_value(const HfMask& mask, const ElementKind& kind, std::int64_t element) {
  const std::int64_t k = element % mask.kv_len, q = element / mask.kv_len % mask.q_len;
  const std::int64_t pair = element / mask.kv_len / mask.q_len;
  return wrong(fmt::format(
      "attention_mask[{}, {}, {}, {}]: {}, expected {}", pair / mask.num_heads,
      pair % mask.num_heads, q, k, kind.text(mask.values.data() + element * size_bytes(mask.dtype)),
      is_additive(mask.dtype) ? "0 (attends), -inf or finfo(dtype).min (masked); a mask of ones "
                                "and zeros is boolean"
                              : "1 (attends) or 0 (masked)"));
}

Result<DenseBits> bits_of(const HfMask& mask, const ElementKind& kind, std::int64_t pair) {
  DenseBits dense;
  dense.q_len = mask.q_len;
  dense.kv_len = mask.kv_len;
  if (mask.kv_len == 0) return dense;
  dense.words.reserve(static_cast<std::size_t>(mask.q_len * dense.words_per_row()));
  const std::int64_t bytes = size_bytes(mask.dtype);
  for (std::int64_t q = 0; q < mask.q_len; ++q) {
    const std::int64_t row = (pair * mask.q_len + q) * mask.kv_len;
    for (std::int64_t k = 0; k < mask.kv_len; k += 64) {
      const auto count = static_cast<int>(std::min<std::int64_t>(mask.kv_len - k, 64));
      const Packed packed = kind.pack(mask.values.data() + (row + k) * bytes, count);
      if (packed.wrong_at >= 0) return wrong_value(mask, kind, row + k + packed.wrong_at);
      dense.words.push_back(packed.bits);
    }
  }
  return dense;
}

// Writes the cells of one pair; true cells become `attends`, the others `masked`.
template <class Stored>
void unpack(const DenseBits& dense, Stored attends, Stored masked, std::byte* out) {
  for (std::int64_t q = 0; q < dense.q_len; ++q) {
    const std::uint64_t* words = dense.words.data() + q * dense.words_per_row();
    for (std::int64_t k = 0; k < dense.kv_len; ++k, out += sizeof(Stored)) {
      const Stored value = (words[k / 64] >> (k % 64) & 1) != 0 ? attends : masked;
      std::memcpy(out, &value, sizeof value);
    }
  }
}

template <class Type>
void unpack_floats(const DenseBits& dense, bool use_infinity, std::byte* out) {
  unpack<typename Type::Stored>(dense, {}, use_infinity ? Type::kInfinity : Type::kLowest, out);
}

void unpack(const DenseBits& dense, const HfMaskExportOptions& options, std::byte* out) {
  switch (options.dtype) {
    case DType::float16:
      return unpack_floats<Float16>(dense, options.use_infinity, out);
    case DType::bfloat16:
      return unpack_floats<Bfloat16>(dense, options.use_infinity, out);
    case DType::float32:
      return unpack_floats<Wide<float>>(dense, options.use_infinity, out);
    case DType::float64:
      return unpack_floats<Wide<double>>(dense, options.use_infinity, out);
    default:
      return unpack<std::uint8_t>(dense, 1, 0, out);
  }
}

// a * b, or nothing if that exceeds `limit`; a and b are not negative.
std::optional<std::int64_t> product(std::int64_t a, std::int64_t b, std::int64_t limit) {
  if (b != 0 && a > limit / b) return std::nullopt;
  return a * b;
}

// Bytes of the array, or nothing if there are more than `limit`.
std::optional<std::int64_t> array_bytes(const HfMask& mask, std::int64_t limit) {
  std::optional<std::int64_t> bytes = size_bytes(mask.dtype);
  for (const std::int64_t extent : {mask.num_batches, mask.num_heads, mask.q_len, mask.kv_len}) {
    if (extent == 0) return 0;
    if (bytes) bytes = product(*bytes, extent, limit);
  }
  return bytes;
}

Result<void> check(const HfMask& mask) {
  FDMA_TRY_VOID(interop::check_length("q_len", mask.q_len));
  FDMA_TRY_VOID(interop::check_length("kv_len", mask.kv_len));
  FDMA_TRY_VOID(interop::check_pairs(mask.num_batches, mask.num_heads));
  if (kind_of(mask.dtype) == nullptr) {
    return wrong(fmt::format("attention_mask: {}, expected boolean, uint8, int8 or a float",
                             to_string(mask.dtype)));
  }
  const std::optional<std::int64_t> bytes =
      array_bytes(mask, std::numeric_limits<std::int64_t>::max());
  if (bytes && *bytes == static_cast<std::int64_t>(mask.values.size())) return {};
  return interop::mismatch(fmt::format(
      "attention_mask: {} bytes, expected {} x {} x {} x {} of {} bytes each", mask.values.size(),
      mask.num_batches, mask.num_heads, mask.q_len, mask.kv_len, size_bytes(mask.dtype)));
}

}  // namespace

Result<HfMask> hf_mask_from_block_mask(const BlockMask& mask, const HfMaskExportOptions& options) {
  FDMA_TRY_VOID(interop::check_pairs(mask.shape.num_batches, mask.shape.num_heads));
  FDMA_TRY_VOID(interop::check_uniform(mask.shape, "a mask [batch, heads, q, kv]"));
  if (options.dtype != DType::boolean && !is_additive(options.dtype)) {
    return wrong(fmt::format("dtype: {}, expected boolean or a float", to_string(options.dtype)));
  }
  HfMask array;
  array.num_batches = mask.shape.num_batches;
  array.num_heads = mask.shape.num_heads;
  array.q_len = mask.shape.q_lens.front();
  array.kv_len = mask.shape.kv_lens.front();
  array.dtype = options.dtype;
  const std::optional<std::int64_t> bytes = array_bytes(array, options.max_bytes);
  if (!bytes) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("attention_mask: {} x {} x {} x {} of {} bytes each, more than {} "
                             "bytes in all",
                             array.num_batches, array.num_heads, array.q_len, array.kv_len,
                             size_bytes(array.dtype), options.max_bytes)};
  }
  FDMA_TRY_VOID(
      check_memory(*bytes + array.q_len * ceil_div(array.kv_len, 64) * 8, "attention_mask"));
  array.values.resize(static_cast<std::size_t>(*bytes));
  const std::int64_t pair_bytes = *bytes / (array.num_batches * array.num_heads);
  std::vector<std::int64_t> first_pair(static_cast<std::size_t>(mask.num_groups()), -1);
  for (std::size_t pair = 0; pair < mask.group_of.size(); ++pair) {
    std::byte* out = array.values.data() + static_cast<std::int64_t>(pair) * pair_bytes;
    std::int64_t& first = first_pair[static_cast<std::size_t>(mask.group_of[pair])];
    if (first >= 0) {
      std::copy_n(array.values.data() + first * pair_bytes, pair_bytes, out);
      continue;
    }
    first = static_cast<std::int64_t>(pair);
    FDMA_TRY(const DenseBits dense,
             dense_from_segment(segment_of_group(mask, mask.group_of[pair], mask.block),
                                options.max_bytes));
    unpack(dense, options, out);
  }
  return array;
}

Result<BlockMask> block_mask_from_hf_mask(const HfMask& mask, BlockShape block,
                                          std::int64_t num_heads) {
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY_VOID(check(mask));
  if (num_heads == 0) num_heads = mask.num_heads;
  FDMA_TRY_VOID(interop::check_pairs(mask.num_batches, num_heads));
  if (mask.num_heads != 1 && mask.num_heads != num_heads) {
    return interop::mismatch(
        fmt::format("num_heads: {}, but attention_mask has {} heads, expected "
                    "as many or 1",
                    num_heads, mask.num_heads));
  }
  const ElementKind& kind = *kind_of(mask.dtype);
  const bool is_empty = mask.q_len == 0 || mask.kv_len == 0;
  const std::int64_t pairs = is_empty ? 1 : mask.num_batches * mask.num_heads;
  std::vector<SegmentMask> masks;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    FDMA_TRY(const DenseBits dense, bits_of(mask, kind, pair));
    masks.push_back(segment_from_dense(dense, block));
  }
  std::vector<std::int32_t> mask_of;
  for (std::int64_t b = 0; b < mask.num_batches; ++b) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const std::int64_t pair = b * mask.num_heads + (mask.num_heads == 1 ? 0 : h);
      mask_of.push_back(is_empty ? 0 : static_cast<std::int32_t>(pair));
    }
  }
  return make_block_mask({mask.num_batches, num_heads, {mask.q_len}, {mask.kv_len}}, block,
                         std::move(masks), mask_of);
}

}  // namespace fdma
