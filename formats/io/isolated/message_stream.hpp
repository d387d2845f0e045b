// Numbers, texts and arrays as a stream of bytes between two processes on one machine. Neither of
// the two trusts a size that the other one sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// Writes values one after another. It remembers the first failure of the sink and writes nothing
/// after it.
class MessageWriter {
 public:
  /// Takes all of the bytes, or returns false.
  using Sink = std::function<bool(const void* data, std::size_t bytes)>;
  explicit MessageWriter(Sink sink) : sink_(std::move(sink)) {}

  void number(std::uint64_t value);
  void integer(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void flag(bool value) { number(value ? 1 : 0); }
  void real(double value);
  void text(std::string_view value);

  /// Writes the count of bytes, then the bytes.
  void bytes(const void* data, std::size_t count);
  /// As bytes, for memory that is not used again. Pages that were sent go back to the system, so
  /// that a large array is not in memory twice while it moves to the other process.
  void give_bytes(void* data, std::size_t count);

  template <class T>
  void array(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(values.data(), values.size() * sizeof(T));
  }
  template <class T>
  void give_array(std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    give_bytes(values.data(), values.size() * sizeof(T));
    std::vector<T>().swap(values);
  }

  /// Hands the buffered bytes to the sink. False if the sink failed, now or before.
  bool flush();

 private:
  void append(const void* data, std::size_t count);

  Sink sink_;
  std::vector<std::byte> buffer_;
  bool has_failed_ = false;
};

/// Reads what MessageWriter wrote. Every value is checked against the range that the caller gives
/// and against the bytes that a message may still take. Memory grows with the bytes that arrive,
/// not with the announced count.
class MessageReader {
 public:
  /// Fills all of the bytes, or returns false: the other end is gone.
  using Source = std::function<bool(void* data, std::size_t bytes)>;
  explicit MessageReader(Source source) : source_(std::move(source)) {}

  /// Starts a message that may take `max_bytes` in all.
  void begin(std::int64_t max_bytes) { remaining_ = static_cast<std::uint64_t>(max_bytes); }
  /// True once the source said that the other end is gone; every read fails from then on.
  bool has_ended() const { return has_ended_; }

  /// Errors of all reads: io (the other end is gone), corrupt_file (out of range, longer than
  /// allowed).
  Result<std::uint64_t> number(std::uint64_t max);
  Result<std::int64_t> integer(std::int64_t min, std::int64_t max);
  Result<bool> flag();
  Result<double> real();
  Result<std::string> text(std::size_t max_bytes);

  /// Reads the count of an array of bytes, which fits into what the message may still take. The
  /// bytes themselves follow.
  Result<std::uint64_t> bytes_to_come();
  Result<void> bytes(void* data, std::size_t count) { return take(data, count); }

  /// Reads at most max_count values. T is copied bytewise, so any bits must be a value of it.
  template <class T>
  Result<void> array(std::vector<T>& values, std::uint64_t max_count) {
    static_assert(std::is_trivially_copyable_v<T>);
    FDMA_TRY(const std::uint64_t count, array_count(sizeof(T), max_count));
    values.clear();
    values.reserve(static_cast<std::size_t>(count));
    while (values.size() < count) {
      const std::size_t begin = values.size();
      values.resize(begin + elements_at_once(static_cast<std::size_t>(count) - begin, sizeof(T)));
      FDMA_TRY_VOID(take(values.data() + begin, (values.size() - begin) * sizeof(T)));
    }
    return {};
  }

 private:
  Result<void> take(void* data, std::size_t bytes);
  Result<std::uint64_t> array_count(std::size_t element_bytes, std::uint64_t max_count);
  static std::size_t elements_at_once(std::size_t count, std::size_t element_bytes);

  Source source_;
  std::uint64_t remaining_ = 0;
  bool has_ended_ = false;
};

}  // namespace fdma::io
