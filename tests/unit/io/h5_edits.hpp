// Edits HDF5 files so that they are wrong in one place.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fdma::testing {

/// An HDF5 file that is open for editing. Every call aborts the test program if HDF5 refuses.
class FileEdit {
 public:
  explicit FileEdit(const std::string& path);       ///< an existing file
  static FileEdit create(const std::string& path);  ///< a new one
  FileEdit(FileEdit&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  ~FileEdit();
  hid_t id() const { return file_; }

  void remove(const std::string& object);
  void move(const std::string& from, const std::string& to);
  void group(const std::string& name);
  void soft_link(const std::string& name, const std::string& target);
  void external_link(const std::string& name, const std::string& file, const std::string& target);

  void remove_attribute(const std::string& object, const std::string& name);
  void attribute(const std::string& object, const std::string& name, std::int64_t value);
  void attribute(const std::string& object, const std::string& name, const std::string& text,
                 bool is_variable = false);

  /// Makes a contiguous dataset of `type` (in the file and in memory) unless `creation` says
  /// otherwise.
  void dataset(const std::string& name, hid_t file_type, hid_t memory_type,
               const std::vector<hsize_t>& extents, const void* values,
               hid_t creation = H5P_DEFAULT);
  /// Overwrites element `index` (in row-major order) of a dataset of 64-bit or narrower integers.
  void element(const std::string& dataset, std::size_t index, std::int64_t value);

 private:
  FileEdit() = default;
  hid_t file_ = -1;
};

/// Returns the enumeration over 8-bit integers that h5py writes for booleans. The caller closes it.
hid_t make_boolean_type();
/// Returns IEEE float16 in the given byte order. The caller closes it.
hid_t make_half_type(H5T_order_t order);

/// Owns an HDF5 type and closes it.
class Type {
 public:
  explicit Type(hid_t id) : id_(id) {}
  Type(const Type&) = delete;
  Type& operator=(const Type&) = delete;
  ~Type() { H5Tclose(id_); }
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
};

/// The extents and the storage of a dataset.
struct DatasetSpec {
  std::vector<hsize_t> extents;
  std::vector<hsize_t> chunk;  // empty: contiguous
  bool compresses = false;
};

/// Writes `values`, or nothing if it is null, as dataset `name`.
void write_dataset(FileEdit& file, const std::string& name, const DatasetSpec& spec,
                   hid_t file_type, hid_t memory_type, const void* values);

}  // namespace fdma::testing
