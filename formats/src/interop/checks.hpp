// Checks that all importers share. The arrays of other libraries are untrusted: every extent is
// compared before it is used; products are formed in 64 bits and cannot overflow.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "fdma/formats/block_mask.hpp"

namespace fdma::interop {

/// Above the number of (batch, head) pairs of any mask in use. It bounds what an empty array can
/// claim.
inline constexpr std::int64_t kMaxPairs = std::int64_t{1} << 24;

inline Error wrong(std::string message) {
  return {ErrorCode::invalid_argument, std::move(message)};
}
inline Error mismatch(std::string message) {
  return {ErrorCode::shape_mismatch, std::move(message)};
}
inline Error unsupported(std::string message) {
  return {ErrorCode::unsupported, std::move(message)};
}

/// Checks that a length is in [0, kMaxLength].
Result<void> check_length(std::string_view name, std::int64_t length);
/// Checks that counts are at least 1 and their product is at most kMaxPairs.
Result<void> check_pairs(std::int64_t num_batches, std::int64_t num_heads);
/// Checks that `size` is rows * width.
Result<void> check_extent(std::string_view array, std::size_t size, std::int64_t rows,
                          std::int64_t width);
/// Checks that every batch element has the same lengths; `peer` names the library that needs it.
Result<void> check_uniform(const MaskShape& shape, std::string_view interop);

}  // namespace fdma::interop
