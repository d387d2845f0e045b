// The fields of an interop group. Each is taken once by name, type and extents; fields left over at
// the end are an error, so that a misspelt optional field is not silently ignored.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/io/interop_group.hpp"

namespace fdma::io {

/// "int32 [2, 3]"
std::string array_text(const OwnedTable& array);

class InteropFields {
 public:
  explicit InteropFields(const InteropGroup& group) : group_(group) {}

  bool has(std::string_view name) const { return group_.arrays.find(name) != group_.arrays.end(); }
  /// The same for an optional field, which is known from then on.
  bool may_have(const std::string& name) {
    known_.insert(name);
    return has(name);
  }
  /// Errors: invalid_argument (missing).
  Result<const OwnedTable*> array(const std::string& name);
  /// An array of `rank` dimensions. Errors: also shape_mismatch.
  Result<const OwnedTable*> array(const std::string& name, int rank);
  /// The values of an integer or boolean array. Errors: invalid_argument (type, a value that does
  /// not fit).
  Result<std::vector<std::uint8_t>> uint8_values(const std::string& name, int rank);
  Result<std::vector<std::int32_t>> int32_values(const std::string& name, int rank);
  Result<std::vector<std::int64_t>> int64_values(const std::string& name, int rank);
  Result<std::vector<std::uint64_t>> uint64_values(const std::string& name, int rank);
  /// A single number (rank 0, or one element), or `fallback` if the field is absent.
  Result<std::int64_t> integer(const std::string& name);
  Result<std::int64_t> integer(const std::string& name, std::int64_t fallback);
  /// Errors: invalid_argument (a field that was not asked for).
  Result<void> expect_no_more() const;

 private:
  const InteropGroup& group_;
  std::set<std::string, std::less<>> known_;
};

OwnedTable array_of(const std::vector<std::int32_t>& values,
                    const std::vector<std::int64_t>& extents);
OwnedTable array_of(const std::vector<std::int64_t>& values,
                    const std::vector<std::int64_t>& extents);
OwnedTable array_of(const std::vector<std::uint64_t>& values,
                    const std::vector<std::int64_t>& extents);
/// Bytes as elements of `dtype`.
OwnedTable array_of(const std::vector<std::uint8_t>& bytes, DType dtype,
                    const std::vector<std::int64_t>& extents);
OwnedTable scalar_of(std::int64_t value);
OwnedTable scalar_of(bool value);

}  // namespace fdma::io
