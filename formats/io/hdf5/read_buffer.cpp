// The speed at which the kernel copies cached pages depends on the destination. There are two
// rules, each found on Zen 4 (docs/performance.md, dense masks in files) and harmless elsewhere:
//
//   size      A destination that stays in the second-level cache is copied to a third slower than
//             one about as large as this cache: in the first case lines of the source and of the
//             destination compete, in the second stores to lines that are not cached stream.
//             Packing goes through the bytes once, front to back, so their place hardly matters to
//             it. Reads smaller than the cache, such as those of chunks, therefore rotate through
//             the memory instead of overwriting one place.
//   distance  A store less than a cache line ahead of the load that follows it, with addresses
//             taken modulo the page size, delays that load as if it read the stored bytes. This
//             leaves two thirds of the speed. Cached pages are page-aligned, so a destination half
//             a page away from the place in the file is never that near.
//
// Example: reads of 256 KiB at file addresses 2048, 264192, ..: places 0, 256, 512 and 768 KiB of
// 1 MiB, each at the begin of a page, then 0 again.
#include "io/hdf5/read_buffer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "io/hdf5/raw_chunks.hpp"

namespace fdma::io {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kPageBytes = 4096;

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

// 0 or -1 where it is not known.
std::int64_t second_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  return sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  return 0;
#endif
}

// The first place from `place` on that is half a page away from `address` in the file, modulo pages
// and to within a cache line.
std::int64_t far_from(std::int64_t address, std::uintptr_t place) {
  const std::int64_t wanted = (address / kAlignment * kAlignment + kPageBytes / 2) % kPageBytes;
  const auto given = static_cast<std::int64_t>(place % kPageBytes);
  return (wanted - given + kPageBytes) % kPageBytes;
}

}  // namespace

void ByteBuffer::Free::operator()(std::byte* bytes) const {
  ::operator delete (bytes, std::align_val_t{kAlignment});
}

std::byte* ByteBuffer::room(std::int64_t size) {
  if (size > capacity_) {
    bytes_.reset();
    capacity_ = 0;
    bytes_.reset(static_cast<std::byte*>(
        ::operator new (static_cast<std::size_t>(size), std::align_val_t{kAlignment})));
    capacity_ = size;
  }
  return bytes_.get();
}

std::int64_t ReadBuffer::bytes_at_once() {
  constexpr std::int64_t kLeast = std::int64_t{256} << 10;
  constexpr std::int64_t kUnknown = std::int64_t{1} << 20;
  constexpr std::int64_t kMost = std::int64_t{2} << 20;
  static const std::int64_t cache_bytes = second_cache_bytes();
  if (cache_bytes <= 0) return kUnknown;
  return std::clamp(cache_bytes / kPageBytes * kPageBytes, kLeast, kMost);
}

std::int64_t ReadBuffer::max_bytes(std::int64_t size) {
  const std::int64_t shifts = bytes_at_once() / 16;  // for a few reads, up to a page each
  return std::max(bytes_at_once() + shifts, round_up(size + kPadding, kAlignment) + kPageBytes);
}

Result<std::byte*> ReadBuffer::read(int descriptor, std::int64_t address, std::int64_t size) {
  const std::int64_t needed = max_bytes(size);
  if (needed > capacity_) {
    bytes_.room(needed);
    capacity_ = needed;
    next_ = 0;
  }
  std::byte* begin = bytes_.room(capacity_);
  std::int64_t place = next_ + far_from(address, reinterpret_cast<std::uintptr_t>(begin + next_));
  if (place + size + kPadding > capacity_) {
    place = far_from(address, reinterpret_cast<std::uintptr_t>(begin));
  }
  FDMA_TRY_VOID(read_exactly(descriptor, address, size, begin + place));
  std::memset(begin + place + size, 0, kPadding);
  next_ = round_up(place + size, kAlignment);
  return begin + place;
}

}  // namespace fdma::io
