#include "io/hdf5/lzf_filter.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fdma::io {
namespace {

// Three stored bytes repeat at most 264 bytes.
constexpr std::int64_t kMaxExpansion = 88;

// H5Z_func_t. The third value of the filter is the size of a decoded chunk.
std::size_t filter_lzf(unsigned flags, std::size_t num_values, const unsigned* values,
                       std::size_t num_bytes, std::size_t* buffer_bytes, void** buffer) {
  if ((flags & H5Z_FLAG_REVERSE) == 0 || num_values < 3) return 0;
  const auto stored_bytes = static_cast<std::int64_t>(num_bytes);
  const std::int64_t capacity =
      std::min<std::int64_t>(values[2], stored_bytes * kMaxExpansion + kMaxExpansion);
  if (capacity == 0) return 0;
  void* decoded = H5allocate_memory(static_cast<std::size_t>(capacity), false);
  if (decoded == nullptr) return 0;
  const std::int64_t made = decode_lzf(static_cast<const std::byte*>(*buffer), stored_bytes,
                                       static_cast<std::byte*>(decoded), capacity);
  if (made <= 0) {
    H5free_memory(decoded);
    return 0;
  }
  H5free_memory(*buffer);
  *buffer = decoded;
  *buffer_bytes = static_cast<std::size_t>(capacity);
  return static_cast<std::size_t>(made);
}

}  // namespace

std::int64_t decode_lzf(const std::byte* stored, std::int64_t size, std::byte* out,
                        std::int64_t capacity) {
  std::int64_t at = 0, made = 0;
  while (at < size) {
    const int control = std::to_integer<int>(stored[at++]);
    if (control < 32) {
      const std::int64_t count = control + 1;
      if (count > size - at || count > capacity - made) return -1;
      std::memcpy(out + made, stored + at, static_cast<std::size_t>(count));
      at += count;
      made += count;
      continue;
    }
    std::int64_t count = control >> 5;
    if (count == 7) {
      if (at == size) return -1;
      count += std::to_integer<std::int64_t>(stored[at++]);
    }
    count += 2;
    if (at == size) return -1;
    const std::int64_t back =
        (std::int64_t{control & 31} << 8 | std::to_integer<std::int64_t>(stored[at++])) + 1;
    if (back > made || count > capacity - made) return -1;
    // The copy may read what it writes, so it goes byte by byte.
    for (std::int64_t i = 0; i < count; ++i, ++made) out[made] = out[made - back];
  }
  return made;
}

void register_lzf_filter() {
  static const bool is_registered = [] {
    const H5Z_class2_t lzf{H5Z_CLASS_T_VERS, kLzfFilter, 0, 1, "lzf", nullptr, nullptr, filter_lzf};
    return H5Zfilter_avail(kLzfFilter) <= 0 && H5Zregister(&lzf) >= 0;
  }();
  static_cast<void>(is_registered);
}

}  // namespace fdma::io
