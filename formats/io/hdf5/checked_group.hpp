// One HDF5 group of a mask file. Every attribute and dataset in it is expected by name, type and
// extents; anything else in it is an error.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "io/hdf5/untrusted_file.hpp"
#include "stored/mask_schema.hpp"
#include "stored/stored_mask.hpp"

namespace fdma::io {

Error corrupt(const std::string& where, const std::string& text);
/// Where the schema demands an object, its absence is corruption, not a wrong path.
Error as_corrupt(Error error);

/// Names of the links of a group, sorted. Errors: corrupt_file.
Result<std::vector<std::string>> link_names(hid_t group, const std::string& where);

/// The attributes of one object. Each is read once; attributes left over at the end are an error.
class CheckedAttributes {
 public:
  static Result<CheckedAttributes> of(hid_t object, const std::string& where);

  bool has(const std::string& name) const { return names_.contains(name); }
  /// Errors: corrupt_file (absent, no integer, outside [min, max]).
  Result<std::int64_t> integer(const std::string& name, std::int64_t min, std::int64_t max);
  /// Errors: corrupt_file (absent, no string of fixed length, longer than max_bytes).
  Result<std::string> text(const std::string& name, std::size_t max_bytes);
  Result<void> expect_no_more() const;

 private:
  CheckedAttributes(hid_t object, const std::string& where) : object_(object), where_(where) {}
  Result<Handle> open(const std::string& name);

  hid_t object_;
  std::string where_;
  std::set<std::string> names_;
};

/// The datasets of one group. Each is read once; datasets left over at the end are an error. Type
/// and extents are compared with the expected ones, and the bytes with those in the file, before
/// memory is taken.
class CheckedArrays {
 public:
  /// `input` and `group` must outlive it.
  static Result<CheckedArrays> of(const InputFile& input, hid_t group, const std::string& where);

  bool has(const std::string& name) const { return names_.contains(name); }
  /// Declares that the caller handles the object `name` itself.
  void take(const std::string& name) { names_.erase(name); }
  Result<void> expect_no_more() const;

  /// Reads dataset `name` into `array`. The elements are numbers of `type` side by side (TileRun:
  /// five columns). Errors: corrupt_file.
  template <class T>
  Result<void> read(const std::string& name, std::vector<T>& array, ArrayType type,
                    ArrayShape shape) {
    FDMA_TRY(const DatasetInfo info, open_array(name, type, shape));
    const auto numbers = static_cast<std::size_t>(info.num_elements);
    if constexpr (std::is_same_v<T, TileRun>) {
      std::vector<std::int64_t> columns(numbers);
      FDMA_TRY_VOID(read_values(info, type, columns.data(), name));
      Result<std::vector<TileRun>> runs = unpack_runs(columns);
      if (!runs) return corrupt(place(name), runs.error().message);
      array = *std::move(runs);
      return {};
    } else {
      array.resize(numbers * static_cast<std::size_t>(size_bytes(type)) / sizeof(T));
      return read_values(info, type, array.data(), name);
    }
  }

  /// Reads a scalar dataset of one fixed-length string. Errors: corrupt_file.
  Result<std::string> read_text(const std::string& name, std::size_t max_bytes);

 private:
  CheckedArrays(const InputFile& input, hid_t group, const std::string& where)
      : input_(&input), group_(group), where_(where) {}
  std::string place(const std::string& name) const { return where_ + "/" + name; }
  Result<DatasetInfo> open(const std::string& name);
  Result<DatasetInfo> open_array(const std::string& name, ArrayType type, ArrayShape shape);
  Result<void> check_bytes(const DatasetInfo& info, std::int64_t element_bytes,
                           const std::string& where) const;
  Result<void> read_values(const DatasetInfo& info, ArrayType type, void* out,
                           const std::string& name) const;

  const InputFile* input_;
  hid_t group_;
  std::string where_;
  std::set<std::string> names_;
};

}  // namespace fdma::io
