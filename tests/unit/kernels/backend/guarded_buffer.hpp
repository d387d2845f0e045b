// Memory between pages that fault. A read or write one byte past its end ends the test at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fdma::testing {

/// The end of the storage that touches the page that faults. The rest of the first or last page is
/// filled with a canary.
enum class GuardSide : std::uint8_t { end, begin };

/// Owns its pages. Data that ends at the guard has no particular alignment.
class GuardedBuffer {
 public:
  GuardedBuffer(std::int64_t num_bytes, GuardSide side);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  unsigned char* data() { return data_; }
  const unsigned char* data() const { return data_; }
  std::int64_t num_bytes() const { return num_bytes_; }
  /// Sets every byte.
  void fill(unsigned char value);
  /// True iff nothing outside the data was written.
  bool has_canaries() const;
  /// Makes the data read-only: a write ends the test.
  void make_read_only();

 private:
  unsigned char* mapping_ = nullptr;  ///< guard page, pages, guard page
  std::size_t mapped_bytes_ = 0;
  unsigned char* pages_ = nullptr;
  std::size_t page_bytes_ = 0;  ///< bytes of the pages between the guards
  unsigned char* data_ = nullptr;
  std::int64_t num_bytes_ = 0;
};

}  // namespace fdma::testing
