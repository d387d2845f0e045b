// The meaning of a value of a dense dataset: the cell is kept, it is dropped, or it is an error.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/io/dense_dataset.hpp"
#include "io/hdf5/dense_kernels.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// How the values of one dataset are read into memory and classified.
///
/// Example     float16, drop_below -32752: 0 and -0 keep; -inf and -40000 drop; 1, -1e4 and nan are
///             errors
/// Cost        pack: about 0.2 ns a byte of boolean and 8-bit values, 0.3 ns a value of wider ones
///             pack_rows by rule(): 0.01 to 0.025 ns a byte
class DenseElement {
 public:
  /// Errors: corrupt_file, invalid_argument (a type that is no mask, an option that does not fit).
  static Result<DenseElement> of(const DatasetInfo& info, const DenseReadOptions& options,
                                 const std::string& where);

  hid_t memory_type() const { return memory_type_.get(); }
  std::int64_t size_bytes() const { return size_bytes_; }

  /// True iff values can be judged by rule() as they are stored in the file, in either byte order.
  bool is_stored_as_is() const { return is_stored_as_is_; }
  const ValueRule& rule() const { return rule_; }

  /// Sets bits [begin, begin + count) of `row`, which are 0, to 1 where the value attends. Returns
  /// the index of the first value that is neither keep nor drop, or -1.
  std::int64_t pack(const void* values, std::int64_t count, std::uint64_t* row,
                    std::int64_t begin) const;

  /// The fault of the value at `value` and the option that would accept it, as the end of a
  /// sentence: "is 0.5; a floating mask holds ...".
  std::string complaint(const void* value) const;
  /// As above, for a value as it is in the file.
  std::string complaint_of_stored(const std::byte* value) const;

 private:
  enum class Kind : std::uint8_t {
    bits8,
    bits16,
    bits32,
    bits64,
    float16,
    bfloat16,
    float32,
    float64
  };

  double as_double(const void* value) const;
  void make_rule(hid_t stored_type);

  Handle memory_type_;
  Kind kind_ = Kind::bits8;
  bool is_boolean_ = false;
  bool is_signed_ = false;
  bool is_inverted_ = false;  // true means masked
  bool ones_keep_ = false;    // floating: 1 keeps, 0 masks
  std::int64_t size_bytes_ = 1;
  double drop_below_ = 0;
  float drop_below32_ = 0;          // greatest float32 that drop_below_ does not undercut
  std::uint16_t drop16_first_ = 0;  // 16-bit patterns [first, -inf] drop
  std::uint16_t drop16_span_ = 0;
  bool is_stored_as_is_ = false;
  bool is_stored_swapped_ = false;
  ValueRule rule_;
};

}  // namespace fdma::io
