// Validation of the formats without tiles: columns, dense bits, closed forms. For the first two the
// structure is the canonical form.
#include "fdma/formats/convert.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

// Positions and document borders stay far from overflow; crops move them below 0 or past kv_len.
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 40;

Result<void> check_range(std::string_view name, std::int64_t value, std::int64_t least,
                         std::int64_t most) {
  if (least <= value && value <= most) return {};
  return corrupt(fmt::format("{}: {}, expected {} to {}", name, value, least, most));
}

Result<void> check_structure(const ParametricMask& mask) {
  FDMA_TRY_VOID(check_range("pos_offset", mask.pos_offset, -kMaxPosition, kMaxPosition));
  FDMA_TRY_VOID(check_range("kv_end", mask.kv_end, 0, mask.kv_len));
  FDMA_TRY_VOID(check_range("kv_begin", mask.kv_begin, 0, mask.kv_end));
  FDMA_TRY_VOID(check_range("prefix", mask.prefix, 0, mask.kv_len));
  FDMA_TRY_VOID(check_range("sink", mask.sink, 0, mask.kv_len));
  for (std::size_t i = 0; i < mask.cu_seqlens.size(); ++i) {
    FDMA_TRY_VOID(check_range(fmt::format("cu_seqlens[{}]", i), mask.cu_seqlens[i], -kMaxPosition,
                              kMaxPosition));
  }
  return check_ascending("cu_seqlens", mask.cu_seqlens);
}

}  // namespace

Result<void> validate(const ParametricMask& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_lengths(mask.q_len, mask.kv_len));
  if (mask.cu_seqlens.size() == 1) {
    return corrupt("cu_seqlens: 1 entry, expected none or at least 2");
  }
  if (level == ValidationLevel::sizes) return {};
  // Forms with the same cells at these lengths may mean different masks at other lengths. None of
  // them is the canonical one.
  return check_structure(mask);
}

Result<void> validate(const ColumnIntervals& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_lengths(mask.q_len, mask.kv_len));
  FDMA_TRY_VOID(check_size("offsets", mask.offsets.size(), mask.kv_len + 1, "kv_len + 1"));
  FDMA_TRY_VOID(check_offset_ends("offsets", mask.offsets, mask.intervals.size(), "intervals"));
  if (level == ValidationLevel::sizes) return {};
  FDMA_TRY_VOID(check_ascending("offsets", mask.offsets));
  return check_interval_lists("intervals", mask.offsets, mask.intervals, mask.q_len);
}

Result<void> validate(const DenseBits& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_lengths(mask.q_len, mask.kv_len));
  const std::int64_t words_per_row = mask.words_per_row();
  FDMA_TRY_VOID(check_size("words", mask.words.size(), mask.q_len * words_per_row,
                           "q_len * ceil(kv_len / 64)"));
  if (level == ValidationLevel::sizes || mask.kv_len % 64 == 0) return {};
  const std::uint64_t padding = ~std::uint64_t{0} << (mask.kv_len % 64);
  for (std::int64_t q = 0; q < mask.q_len; ++q) {
    const auto i = static_cast<std::size_t>((q + 1) * words_per_row - 1);
    if ((mask.words[i] & padding) != 0) {
      return corrupt(fmt::format("words[{}]: {:#018x}, expected no bit past key {} in row {}", i,
                                 mask.words[i], mask.kv_len - 1, q));
    }
  }
  return {};
}

}  // namespace fdma
