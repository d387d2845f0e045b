// Reading tensors. A dataset may claim any extents, so memory is taken only for bytes that the file
// can hold (dataset_storage.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "fdma/io/tensor_dataset.hpp"
#include "io/arrays/array_file.hpp"
#include "io/hdf5/checked_group.hpp"
#include "io/hdf5/dataset_storage.hpp"
#include "io/hdf5/dataset_values.hpp"
#include "io/hdf5/tensor_type.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

constexpr std::size_t kMaxNamesListed = 12;

struct TensorSource {
  InputFile input;
  DatasetInfo info;
  TensorSpec spec;
  std::string where;
};

// "; '/layer' holds k, query, v" for a dataset that does not exist; empty where that is no help.
std::string neighbours_text(const InputFile& input, const std::string& dataset) {
  const std::size_t slash = dataset.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "/" : dataset.substr(0, slash + 1);
  const Result<Handle> group = open_object(input.file.get(), folder, folder);
  if (!group) return {};
  const Result<std::vector<std::string>> names = link_names(group->get(), folder);
  if (!names) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(names->size(), kMaxNamesListed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", (*names)[i]);
  }
  if (names->size() > kMaxNamesListed) text += ", ..";
  return fmt::format("; '{}' holds {}", folder, text.empty() ? "nothing" : text);
}

Result<DType> dtype_of(const DatasetInfo& info, const std::string& where) {
  FDMA_TRY(const std::optional<std::string> declared,
           read_string_attribute(info.dataset.get(), kDTypeAttribute, where));
  const hid_t type = info.type.get();
  const std::optional<DType> dtype = tensor_dtype(type, declared == kBfloat16Name);
  if (dtype) return *dtype;
  const H5T_class_t type_class = H5Tget_class(type);
  std::string found = type_text(type);
  if ((type_class == H5T_FLOAT || type_class == H5T_INTEGER) &&
      H5Tget_order(type) == H5T_ORDER_BE) {
    found = "big-endian " + found;
  } else if (type_class == H5T_INTEGER && H5Tget_size(type) == 2) {
    found += " without attribute dtype = \"bfloat16\"";
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: type {}, expected little-endian float32, float16 or bfloat16 "
                           "(uint16 with attribute dtype = \"bfloat16\")",
                           where, found)};
}

Result<TensorSource> open_tensor(const std::string& path, const std::string& dataset) {
  TensorSource source;
  source.where = fmt::format("'{}:{}'", path, dataset);
  FDMA_TRY(source.input, open_input(path));
  Result<DatasetInfo> info = open_dataset(source.input.file.get(), dataset, source.where);
  if (!info) {
    Error error = info.error();
    if (error.code == ErrorCode::io) error.message += neighbours_text(source.input, dataset);
    return error;
  }
  source.info = *std::move(info);
  const std::vector<std::int64_t>& extents = source.info.extents;
  FDMA_TRY(source.spec.dtype, dtype_of(source.info, source.where));
  if (extents.size() > static_cast<std::size_t>(kMaxRank)) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: {} dimensions {}, a tensor has {} at most", source.where,
                             extents.size(), extents_text(extents), kMaxRank)};
  }
  source.spec.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), source.spec.extents.begin());
  FDMA_TRY_VOID(check_storage(source.input, source.info, size_bytes(source.spec.dtype), "a tensor",
                              source.where));
  return source;
}

}  // namespace
}  // namespace io

namespace io {
namespace {

Result<TensorSpec> spec_of(const StoredArray& array, const std::string& where) {
  const bool is_tensor = array.dtype == DType::float32 || array.dtype == DType::float16 ||
                         array.dtype == DType::bfloat16;
  if (!is_tensor) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: type {}, expected float32, float16 or bfloat16", where,
                             to_string(array.dtype))};
  }
  if (array.extents.size() > static_cast<std::size_t>(kMaxRank)) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: {} dimensions {}, a tensor has {} at most", where,
                             array.extents.size(), extents_text(array.extents), kMaxRank)};
  }
  TensorSpec spec;
  spec.dtype = array.dtype;
  spec.rank = static_cast<int>(array.extents.size());
  std::copy(array.extents.begin(), array.extents.end(), spec.extents.begin());
  return spec;
}

// find, with the names of the other arrays if there is none of that name.
Result<const StoredArray*> find_tensor(const ArrayFile& file, const std::string& dataset) {
  Result<const StoredArray*> found = file.find(dataset);
  if (found || found.error().code != ErrorCode::io) return found;
  std::string names;
  for (const StoredArray& array : file.arrays()) {
    constexpr std::size_t kLongest = 200;
    if (names.size() > kLongest) {
      names += ", ..";
      break;
    }
    names += (names.empty() ? "" : ", ") + array.name;
  }
  Error error = found.error();
  error.message += fmt::format("; it holds {}", names.empty() ? "nothing" : names);
  return error;
}

Result<TensorSpec> describe_array(const std::string& path, const std::string& dataset) {
  FDMA_TRY(const ArrayFile file, ArrayFile::open(path));
  FDMA_TRY(const StoredArray* array, find_tensor(file, dataset));
  return spec_of(*array, fmt::format("'{}:{}'", path, dataset));
}

Result<OwnedTensor> read_array(const std::string& path, const std::string& dataset,
                               const TensorSpec& expected) {
  const std::string where = fmt::format("'{}:{}'", path, dataset);
  FDMA_TRY(const ArrayFile file, ArrayFile::open(path));
  FDMA_TRY(const StoredArray* array, find_tensor(file, dataset));
  FDMA_TRY(const TensorSpec spec, spec_of(*array, where));
  if (!(spec == expected)) {
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: expected {}, got {}", where,
                                                        to_string(expected), to_string(spec))};
  }
  FDMA_TRY(OwnedTensor tensor, OwnedTensor::zeros(expected));
  if (!array->is_deflated) {
    FDMA_TRY_VOID(file.read(*array, 0, array->size_bytes, tensor.data()));
    return tensor;
  }
  FDMA_TRY(const std::vector<std::byte> values, file.read_all(*array));
  std::copy(values.begin(), values.end(), static_cast<std::byte*>(tensor.data()));
  return tensor;
}

}  // namespace
}  // namespace io

Result<TensorSpec> describe_tensor(const std::string& path, const std::string& dataset) {
  if (io::array_file_kind(path)) return io::describe_array(path, dataset);
  const io::Session session;
  FDMA_TRY(const io::TensorSource source, io::open_tensor(path, dataset));
  return source.spec;
}

Result<bool> has_object(const std::string& path, const std::string& object) {
  if (io::array_file_kind(path)) {
    FDMA_TRY(const io::ArrayFile file, io::ArrayFile::open(path));
    const Result<const io::StoredArray*> found = file.find(object);
    return found || found.error().code != ErrorCode::io;
  }
  const io::Session session;
  FDMA_TRY(const io::InputFile input, io::open_input(path));
  const Result<io::Handle> found =
      io::open_object(input.file.get(), object, fmt::format("'{}:{}'", path, object));
  if (!found && found.error().code != ErrorCode::io) return found.error();
  return found.has_value();
}

Result<OwnedTensor> read_tensor(const std::string& path, const std::string& dataset,
                                const TensorSpec& expected) {
  if (io::array_file_kind(path)) return io::read_array(path, dataset, expected);
  const io::Session session;
  FDMA_TRY(const io::TensorSource source, io::open_tensor(path, dataset));
  if (!(source.spec == expected)) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: expected {}, got {}", source.where, to_string(expected),
                             to_string(source.spec))};
  }
  Result<OwnedTensor> tensor = OwnedTensor::zeros(expected);
  if (!tensor) {
    return Error{tensor.error().code, fmt::format("{}: {}", source.where, tensor.error().message)};
  }
  FDMA_TRY_VOID(io::read_values(source.input, source.info, source.info.type.get(), tensor->data(),
                                io::Gaps::filled, source.where));
  return tensor;
}

}  // namespace fdma
