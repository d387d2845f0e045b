// What the fuzz programs share: bytes taken one after another, and requirements that end the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace fdma::fuzz {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

/// The names in the environment variable `variable`, or all of them if it is not set: so that a
/// process can spend its time on one of several targets. An unknown name ends the process.
template <std::size_t N>
std::vector<std::size_t> chosen_targets(const char* variable, const char* const (&names)[N]) {
  std::vector<std::size_t> chosen;
  const char* wanted = std::getenv(variable);
  for (std::size_t i = 0; i < N; ++i) {
    if (wanted == nullptr || std::strcmp(wanted, names[i]) == 0) chosen.push_back(i);
  }
  if (chosen.empty()) {
    std::fprintf(stderr, "%s=%s, expected one of:", variable, wanted);
    for (const char* name : names) std::fprintf(stderr, " %s", name);
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
  return chosen;
}

/// Bytes read one after another; zeros behind the last one.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return at_ >= size_; }
  std::uint8_t next() { return at_ < size_ ? data_[at_++] : 0; }
  bool flag() { return (next() & 1) != 0; }
  std::int64_t below(std::int64_t bound) { return next() % bound; }

  /// Mostly small numbers, sometimes any.
  std::int32_t number() {
    const std::uint8_t byte = next();
    return byte < 250 ? byte : static_cast<std::int32_t>(word32());
  }
  /// Mostly small numbers of either sign, sometimes any.
  std::int64_t wide_number() {
    const std::uint8_t byte = next();
    if (byte < 240) return byte;
    if (byte < 250) return -std::int64_t{next()};
    return static_cast<std::int64_t>(std::uint64_t{word32()} << 32 | word32());
  }

  std::vector<std::int32_t> numbers(std::int64_t count) {
    if (next() == 255) count += static_cast<std::int64_t>(next()) - 128;
    std::vector<std::int32_t> values(static_cast<std::size_t>(count > 0 ? count : 0));
    for (std::int32_t& value : values) value = number();
    return values;
  }

 private:
  std::uint32_t word32() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | next();
    return value;
  }

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace fdma::fuzz
