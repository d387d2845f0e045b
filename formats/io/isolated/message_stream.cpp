#include "io/isolated/message_stream.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace fdma::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kBytesAtOnce = std::size_t{8} << 20;

Error wrong(std::string message) { return {ErrorCode::corrupt_file, std::move(message)}; }

// Returns whole pages inside [data, data + count) to the system; their contents are lost.
void release_pages(void* data, std::size_t count) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (first + page - 1) / page * page;
  const std::uintptr_t end = (first + count) / page * page;
  if (begin < end) {
    madvise(static_cast<std::byte*>(data) + (begin - first), end - begin, MADV_DONTNEED);
  }
}

}  // namespace

void MessageWriter::number(std::uint64_t value) { append(&value, sizeof value); }

void MessageWriter::real(double value) { number(std::bit_cast<std::uint64_t>(value)); }

void MessageWriter::text(std::string_view value) { bytes(value.data(), value.size()); }

void MessageWriter::bytes(const void* data, std::size_t count) {
  number(count);
  if (count == 0) return;
  if (count < kBufferBytes) {
    append(data, count);
  } else if (flush() && !sink_(data, count)) {
    has_failed_ = true;
  }
}

void MessageWriter::give_bytes(void* data, std::size_t count) {
  if (count < kBytesAtOnce) return bytes(data, count);
  number(count);
  auto* at = static_cast<std::byte*>(data);
  for (std::size_t sent = 0; sent < count && flush();) {
    const std::size_t size = std::min(kBytesAtOnce, count - sent);
    has_failed_ = !sink_(at + sent, size);
    release_pages(at + sent, size);
    sent += size;
  }
}

void MessageWriter::append(const void* data, std::size_t count) {
  if (buffer_.size() + count > kBufferBytes) flush();
  const auto* first = static_cast<const std::byte*>(data);
  buffer_.insert(buffer_.end(), first, first + count);
}

bool MessageWriter::flush() {
  if (!has_failed_ && !buffer_.empty()) has_failed_ = !sink_(buffer_.data(), buffer_.size());
  buffer_.clear();
  return !has_failed_;
}

Result<void> MessageReader::take(void* data, std::size_t bytes) {
  if (bytes > remaining_) return wrong("a message is longer than it may be");
  remaining_ -= bytes;
  if (has_ended_ || !source_(data, bytes)) {
    has_ended_ = true;
    return Error{ErrorCode::io, "a message ends early"};
  }
  return {};
}

Result<std::uint64_t> MessageReader::number(std::uint64_t max) {
  std::uint64_t value = 0;
  FDMA_TRY_VOID(take(&value, sizeof value));
  if (value > max) return wrong(fmt::format("a message holds {}, expected at most {}", value, max));
  return value;
}

Result<std::int64_t> MessageReader::integer(std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  FDMA_TRY_VOID(take(&value, sizeof value));
  if (value < min || value > max) {
    return wrong(fmt::format("a message holds {}, expected [{}, {}]", value, min, max));
  }
  return value;
}

Result<bool> MessageReader::flag() {
  FDMA_TRY(const std::uint64_t value, number(1));
  return value == 1;
}

Result<double> MessageReader::real() {
  FDMA_TRY(const std::uint64_t value, number(std::numeric_limits<std::uint64_t>::max()));
  return std::bit_cast<double>(value);
}

Result<std::string> MessageReader::text(std::size_t max_bytes) {
  std::vector<char> characters;
  FDMA_TRY_VOID(array(characters, max_bytes));
  return std::string(characters.begin(), characters.end());
}

Result<std::uint64_t> MessageReader::bytes_to_come() {
  FDMA_TRY(const std::uint64_t bytes, number(std::numeric_limits<std::uint64_t>::max()));
  if (bytes > remaining_) return wrong("an array in a message is longer than the message may be");
  return bytes;
}

Result<std::uint64_t> MessageReader::array_count(std::size_t element_bytes,
                                                 std::uint64_t max_count) {
  FDMA_TRY(const std::uint64_t bytes, bytes_to_come());
  if (bytes % element_bytes != 0) {
    return wrong(
        fmt::format("an array in a message has {} bytes, no multiple of {}", bytes, element_bytes));
  }
  const std::uint64_t count = bytes / element_bytes;
  if (count > max_count) {
    return wrong(fmt::format("an array in a message has {} elements, expected at most {}", count,
                             max_count));
  }
  return count;
}

std::size_t MessageReader::elements_at_once(std::size_t count, std::size_t element_bytes) {
  return std::min(count, std::max<std::size_t>(kBytesAtOnce / element_bytes, 1));
}

}  // namespace fdma::io
