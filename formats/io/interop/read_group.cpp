// Reading an interop group. Links are followed one by one and storage is inspected before anything
// is read (untrusted_file.hpp). Memory is taken only for bytes that the file can hold
// (dataset_storage.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "fdma/io/interop_group.hpp"
#include "io/hdf5/checked_group.hpp"
#include "io/hdf5/dataset_storage.hpp"
#include "io/hdf5/dataset_values.hpp"
#include "io/hdf5/tensor_type.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

constexpr std::int64_t kMaxAttributeElements = 8192;  // an object header holds 64 KiB in all
constexpr std::size_t kMaxFields = 64;

// The element type of a field, and the type that it is read as.
struct ElementType {
  DType dtype = DType::int64;
  Handle memory;
};

Result<ElementType> element_type(hid_t type, const std::string& where) {
  ElementType element;
  const std::size_t stored_bytes = H5Tget_size(type);
  element.memory = Handle(H5Tget_native_type(type, H5T_DIR_ASCEND), H5Tclose);
  const std::size_t bytes = element.memory ? H5Tget_size(element.memory.get()) : 0;
  const H5T_class_t type_class = H5Tget_class(type);
  constexpr DType kSigned[] = {DType::int8, DType::int16, DType::int32, DType::int64};
  constexpr DType kUnsigned[] = {DType::uint8, DType::uint16, DType::uint32, DType::uint64};
  if (is_boolean_enum(type) && bytes == 1) {
    element.dtype = DType::boolean;
    return element;
  }
  if (type_class == H5T_INTEGER) {
    for (std::size_t i = 0; i < 4; ++i) {
      if (bytes != (std::size_t{1} << i)) continue;
      element.dtype = H5Tget_sign(type) == H5T_SGN_2 ? kSigned[i] : kUnsigned[i];
      return element;
    }
  }
  if (type_class == H5T_FLOAT && (stored_bytes == 2 || stored_bytes == 4 || stored_bytes == 8)) {
    if (const std::optional<DType> dtype = tensor_dtype(type, false)) {
      element.dtype = *dtype;
      // bfloat16 is read bit by bit, not converted by value.
      element.memory =
          *dtype == DType::bfloat16 ? Handle(H5Tcopy(type), H5Tclose) : tensor_type(*dtype);
      return element;
    }
    if (stored_bytes == 8) {
      element.dtype = DType::float64;
      element.memory = Handle(H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose);
      return element;
    }
  }
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("{}: type {}, expected booleans, integers or floats", where, type_text(type))};
}

Result<OwnedTable> allocate(DType dtype, const std::vector<std::int64_t>& extents,
                            std::int64_t num_elements, const std::string& where) {
  if (extents.size() > static_cast<std::size_t>(kMaxRank)) {
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: {} dimensions, a field has {} at most",
                                                        where, extents.size(), kMaxRank)};
  }
  OwnedTable array;
  array.dtype = dtype;
  array.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), array.extents);
  array.bytes.resize(static_cast<std::size_t>(num_elements * size_bytes(dtype)));
  return array;
}

Result<void> check_booleans(const OwnedTable& array, const std::string& where) {
  if (array.dtype != DType::boolean) return {};
  for (std::size_t i = 0; i < array.bytes.size(); ++i) {
    if (array.bytes[i] <= std::byte{1}) continue;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: element {} is {}, a boolean is 0 or 1", where, i,
                             static_cast<int>(array.bytes[i]))};
  }
  return {};
}

Result<OwnedTable> read_dataset(const InputFile& input, hid_t group, const std::string& name,
                                const std::string& where) {
  FDMA_TRY(const DatasetInfo info, open_dataset(group, name, where));
  FDMA_TRY(ElementType element, element_type(info.type.get(), where));
  if (element.dtype == DType::uint16) {
    FDMA_TRY(const std::optional<std::string> declared,
             read_string_attribute(info.dataset.get(), kDTypeAttribute, where));
    if (declared == kBfloat16Name) element.dtype = DType::bfloat16;
  }
  FDMA_TRY_VOID(
      check_storage(input, info,
                    std::max<std::int64_t>(size_bytes(element.dtype),
                                           static_cast<std::int64_t>(H5Tget_size(info.type.get()))),
                    "a field", where));
  FDMA_TRY(OwnedTable array, allocate(element.dtype, info.extents, info.num_elements, where));
  FDMA_TRY_VOID(
      read_values(input, info, element.memory.get(), array.bytes.data(), Gaps::filled, where));
  FDMA_TRY_VOID(check_booleans(array, where));
  return array;
}

Result<OwnedTable> read_attribute(hid_t group, const std::string& name, const std::string& where) {
  const Handle attribute(H5Aopen(group, name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute) return hdf5_error(where, "cannot open it");
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!type || !space) return hdf5_error(where, "cannot read its type");
  FDMA_TRY_VOID(check_bits(type.get(), where));
  FDMA_TRY(const ElementType element, element_type(type.get(), where));
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0 || rank > kMaxRank || H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
    return corrupt(where, "no array of at most 4 dimensions");
  }
  hsize_t dims[kMaxRank] = {};
  H5Sget_simple_extent_dims(space.get(), dims, nullptr);
  std::vector<std::int64_t> extents;
  std::int64_t num_elements = 1;
  for (int d = 0; d < rank; ++d) {
    if (dims[d] > static_cast<hsize_t>(kMaxAttributeElements)) {
      return corrupt(where, "larger than an attribute can be");
    }
    extents.push_back(static_cast<std::int64_t>(dims[d]));
    num_elements *= extents.back();
    if (num_elements > kMaxAttributeElements) {
      return corrupt(where, "larger than an attribute can be");
    }
  }
  FDMA_TRY(OwnedTable array, allocate(element.dtype, extents, num_elements, where));
  if (num_elements > 0 && H5Aread(attribute.get(), element.memory.get(), array.bytes.data()) < 0) {
    return hdf5_error(where, "cannot read its values");
  }
  FDMA_TRY_VOID(check_booleans(array, where));
  return array;
}

herr_t collect_name(hid_t, const char* name, const H5A_info_t*, void* out) {
  auto& names = *static_cast<std::vector<std::string>*>(out);
  if (names.size() >= kMaxFields) return -1;
  names.emplace_back(name);
  return 0;
}

Result<std::vector<std::string>> attribute_names(hid_t object, const std::string& where) {
  std::vector<std::string> names;
  // A look-up of an attribute that does not exist decodes all of them first and fails cleanly;
  // iterating over a damaged one crashes HDF5 1.10.
  if (H5Aexists(object, "fdma: none of this name") < 0) {
    return hdf5_error(where, "cannot read its attributes");
  }
  if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_name, &names) < 0) {
    return hdf5_error(where, "cannot list its attributes");
  }
  return names;
}

Result<InteropGroup> read_checked(const std::string& path, const std::string& name) {
  const std::string where = fmt::format("'{}:{}'", path, name);
  FDMA_TRY(const InputFile input, open_input(path));
  FDMA_TRY(const Handle group, open_object(input.file.get(), name, where));
  if (H5Iget_type(group.get()) != H5I_GROUP) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: expected a group with one dataset per field", where)};
  }
  InteropGroup result;
  FDMA_TRY(const std::vector<std::string> links, link_names(group.get(), where));
  if (links.size() > kMaxFields) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{}: {} objects, more than any format has fields", where, links.size())};
  }
  for (const std::string& link : links) {
    FDMA_TRY(OwnedTable array,
             read_dataset(input, group.get(), link, fmt::format("'{}:{}/{}'", path, name, link)));
    result.arrays.emplace(link, std::move(array));
  }
  FDMA_TRY(const std::vector<std::string> attributes, attribute_names(group.get(), where));
  for (const std::string& attribute : attributes) {
    const std::string place = fmt::format("{}: attribute {}", where, attribute);
    FDMA_TRY(OwnedTable array, read_attribute(group.get(), attribute, place));
    if (!result.arrays.emplace(attribute, std::move(array)).second) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: there is a dataset of that name too", place)};
    }
  }
  return result;
}

}  // namespace
}  // namespace io

Result<InteropGroup> read_interop_group(const std::string& path, const std::string& group) {
  try {
    const io::Session session;
    return io::read_checked(path, group);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

}  // namespace fdma
