#include "io/hdf5/checked_group.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/hdf5/dataset_storage.hpp"
#include "io/hdf5/dataset_values.hpp"

namespace fdma::io {
namespace {

constexpr std::int64_t kMaxChunkBytes = std::int64_t{64} << 20;
constexpr std::size_t kMaxNames = std::size_t{1} << 20;

herr_t collect_link(hid_t, const char* name, const H5L_info_t*, void* out) {
  auto& names = *static_cast<std::vector<std::string>*>(out);
  if (names.size() >= kMaxNames) return -1;
  names.emplace_back(name);
  return 0;
}

herr_t collect_attribute(hid_t, const char* name, const H5A_info_t*, void* out) {
  return collect_link(0, name, nullptr, out);
}

Result<void> check_type(const DatasetInfo& info, ArrayType type, const std::string& where) {
  const hid_t stored = info.type.get();
  const bool is_signed = type != ArrayType::uint64;
  const auto bytes = static_cast<std::size_t>(size_bytes(type));
  if (H5Tget_class(stored) != H5T_INTEGER || H5Tget_size(stored) != bytes ||
      H5Tget_precision(stored) != bytes * 8 || (H5Tget_sign(stored) == H5T_SGN_2) != is_signed) {
    return corrupt(where, fmt::format("type {}, expected {}int{}", type_text(stored),
                                      is_signed ? "" : "u", bytes * 8));
  }
  return {};
}

}  // namespace

Error corrupt(const std::string& where, const std::string& text) {
  return {ErrorCode::corrupt_file, fmt::format("{}: {}", where, text)};
}

Error as_corrupt(Error error) {
  if (error.code == ErrorCode::io) error.code = ErrorCode::corrupt_file;
  return error;
}

Result<std::vector<std::string>> link_names(hid_t group, const std::string& where) {
  std::vector<std::string> names;
  if (H5Iget_type(group) != H5I_GROUP) return corrupt(where, "not a group");
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &names) < 0) {
    return hdf5_error(where, "cannot list the group");
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<CheckedAttributes> CheckedAttributes::of(hid_t object, const std::string& where) {
  CheckedAttributes attributes(object, where);
  std::vector<std::string> names;
  // H5Aiterate2 of HDF5 1.10 crashes if an attribute is damaged. A look-up of an attribute that
  // does not exist decodes all of them first, and fails cleanly.
  if (H5Aexists(object, "fdma: none of this name") < 0) {
    return hdf5_error(where, "cannot read its attributes");
  }
  if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_attribute, &names) < 0) {
    return hdf5_error(where, "cannot list its attributes");
  }
  attributes.names_.insert(names.begin(), names.end());
  return attributes;
}

Result<Handle> CheckedAttributes::open(const std::string& name) {
  if (names_.erase(name) == 0) {
    return corrupt(where_, fmt::format("attribute {} is missing", name));
  }
  Handle attribute(H5Aopen(object_, name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute) return hdf5_error(where_, fmt::format("attribute {}", name));
  const Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!space || H5Sget_simple_extent_npoints(space.get()) != 1) {
    return corrupt(where_, fmt::format("attribute {}: expected one value", name));
  }
  return attribute;
}

Result<std::int64_t> CheckedAttributes::integer(const std::string& name, std::int64_t min,
                                                std::int64_t max) {
  FDMA_TRY(const Handle attribute, open(name));
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_size(type.get()) > 8) {
    return corrupt(where_, fmt::format("attribute {}: expected an integer", name));
  }
  FDMA_TRY_VOID(check_bits(type.get(), fmt::format("{}: attribute {}", where_, name)));
  std::int64_t value = 0;
  if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) {
    return hdf5_error(where_, fmt::format("attribute {}", name));
  }
  if (value < min || value > max) {
    return corrupt(where_,
                   fmt::format("attribute {}: {} is outside [{}, {}]", name, value, min, max));
  }
  return value;
}

Result<std::string> CheckedAttributes::text(const std::string& name, std::size_t max_bytes) {
  FDMA_TRY(const Handle attribute, open(name));
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) {
    return corrupt(where_, fmt::format("attribute {}: expected a string of fixed length "
                                       "(numpy.bytes_ in h5py)",
                                       name));
  }
  const std::size_t size = H5Tget_size(type.get());
  if (size > max_bytes) {
    return corrupt(
        where_, fmt::format("attribute {}: {} bytes, expected {} at most", name, size, max_bytes));
  }
  std::string value(size, '\0');
  if (H5Aread(attribute.get(), type.get(), value.data()) < 0) {
    return hdf5_error(where_, fmt::format("attribute {}", name));
  }
  value.resize(std::min(value.find('\0'), size));
  return value;
}

Result<void> CheckedAttributes::expect_no_more() const {
  if (names_.empty()) return {};
  return corrupt(where_, fmt::format("unknown attribute {}", *names_.begin()));
}

Result<CheckedArrays> CheckedArrays::of(const InputFile& input, hid_t group,
                                        const std::string& where) {
  CheckedArrays arrays(input, group, where);
  FDMA_TRY(const std::vector<std::string> names, link_names(group, where));
  arrays.names_.insert(names.begin(), names.end());
  return arrays;
}

Result<void> CheckedArrays::expect_no_more() const {
  if (names_.empty()) return {};
  return corrupt(where_, fmt::format("unknown object {}", *names_.begin()));
}

Result<DatasetInfo> CheckedArrays::open(const std::string& name) {
  if (names_.erase(name) == 0) return corrupt(where_, fmt::format("dataset {} is missing", name));
  Result<DatasetInfo> info = open_dataset(group_, name, place(name));
  if (!info) return as_corrupt(info.error());
  return info;
}

Result<DatasetInfo> CheckedArrays::open_array(const std::string& name, ArrayType type,
                                              ArrayShape shape) {
  FDMA_TRY(DatasetInfo info, open(name));
  const std::string where = place(name);
  FDMA_TRY_VOID(check_type(info, type, where));
  const std::size_t rank = shape.width == kOneDimensional ? 1 : 2;
  const bool is_expected =
      info.extents.size() == rank && (rank == 1 || info.extents[1] == shape.width) &&
      (shape.rows == kAnyRows ? info.extents[0] <= shape.max_rows : info.extents[0] == shape.rows);
  if (!is_expected) {
    const std::string rows = shape.rows == kAnyRows ? fmt::format("at most {}", shape.max_rows)
                                                    : fmt::format("{}", shape.rows);
    return corrupt(where, fmt::format("extents {}, expected [{}{}]", extents_text(info.extents),
                                      rows, rank == 1 ? "" : fmt::format(", {}", shape.width)));
  }
  FDMA_TRY_VOID(check_bytes(info, size_bytes(type), where));
  return info;
}

// Allows only the two filters of the schema, once each, so that the bytes in the file bound the
// bytes in memory.
Result<void> CheckedArrays::check_bytes(const DatasetInfo& info, std::int64_t element_bytes,
                                        const std::string& where) const {
  const int num_filters = H5Pget_nfilters(info.creation.get());
  int num_deflate = 0, num_shuffle = 0;
  for (int i = 0; i < num_filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t num_values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(info.creation.get(), static_cast<unsigned>(i),
                                               &flags, &num_values, nullptr, 0, nullptr, &config);
    num_deflate += filter == H5Z_FILTER_DEFLATE ? 1 : 0;
    num_shuffle += filter == H5Z_FILTER_SHUFFLE ? 1 : 0;
  }
  if (num_filters != num_deflate + num_shuffle || num_deflate > 1 || num_shuffle > 1) {
    return corrupt(where, "its filters are not shuffle and deflate, once each");
  }
  if (info.num_elements > most_bytes(*input_, info, num_deflate > 0) / element_bytes) {
    return corrupt(where, fmt::format("extents {} need {} bytes each, but the file holds only {} "
                                      "bytes of it",
                                      extents_text(info.extents), element_bytes,
                                      std::min(info.storage_bytes, input_->size_bytes)));
  }
  if (chunk_bytes(info, element_bytes, kMaxChunkBytes) > kMaxChunkBytes) {
    return corrupt(where, fmt::format("chunks {} are larger than {} bytes",
                                      extents_text(info.chunk), kMaxChunkBytes));
  }
  return {};
}

Result<void> CheckedArrays::read_values(const DatasetInfo& info, ArrayType type, void* out,
                                        const std::string& name) const {
  const hid_t memory = type == ArrayType::int32   ? H5T_NATIVE_INT32
                       : type == ArrayType::int64 ? H5T_NATIVE_INT64
                                                  : H5T_NATIVE_UINT64;
  return io::read_values(*input_, info, memory, out, Gaps::refused, place(name));
}

Result<std::string> CheckedArrays::read_text(const std::string& name, std::size_t max_bytes) {
  FDMA_TRY(const DatasetInfo info, open(name));
  const std::string where = place(name);
  const std::size_t size = H5Tget_size(info.type.get());
  if (H5Tget_class(info.type.get()) != H5T_STRING || H5Tis_variable_str(info.type.get()) != 0 ||
      info.num_elements != 1 || size > max_bytes) {
    return corrupt(where, "expected one string of fixed length");
  }
  FDMA_TRY_VOID(check_bytes(info, static_cast<std::int64_t>(size), where));
  std::string value(size, '\0');
  if (H5Dread(info.dataset.get(), info.type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value.data()) <
      0) {
    return hdf5_error(where, "cannot read its values");
  }
  value.resize(std::min(value.find('\0'), size));
  return value;
}

}  // namespace fdma::io
