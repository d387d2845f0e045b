// Writing an interop group: datasets with the element types of the other library, small ones plain,
// others chunked, shuffled and deflated.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "fdma/io/interop_group.hpp"
#include "io/hdf5/output_file.hpp"
#include "io/hdf5/tensor_type.hpp"

namespace fdma {
namespace io {
namespace {

constexpr std::int64_t kMinCompressedBytes = 4096;
constexpr std::int64_t kChunkBytes = 256 * 1024;
constexpr unsigned kDeflateLevel = 1;

// The enumeration that h5py reads as numpy.bool_.
Handle boolean_type() {
  Handle type(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
  const signed char no = 0, yes = 1;
  need(type && H5Tenum_insert(type.get(), "FALSE", &no) >= 0 &&
           H5Tenum_insert(type.get(), "TRUE", &yes) >= 0,
       "boolean type");
  return type;
}

// The same in the file and in memory: little-endian.
Handle stored_type(DType dtype) {
  const auto copy = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose); };
  switch (dtype) {
    case DType::boolean:
      return boolean_type();
    case DType::int8:
      return copy(H5T_STD_I8LE);
    case DType::int16:
      return copy(H5T_STD_I16LE);
    case DType::int32:
      return copy(H5T_STD_I32LE);
    case DType::int64:
      return copy(H5T_STD_I64LE);
    case DType::uint8:
      return copy(H5T_STD_U8LE);
    case DType::uint16:
      return copy(H5T_STD_U16LE);
    case DType::uint32:
      return copy(H5T_STD_U32LE);
    case DType::uint64:
      return copy(H5T_STD_U64LE);
    case DType::float64:
      return copy(H5T_IEEE_F64LE);
    case DType::float16:
    case DType::bfloat16:
    case DType::float32:
      return tensor_type(dtype);
  }
  return {};
}

// The chunk's sides: as many whole trailing dimensions as fit into a chunk.
std::vector<hsize_t> chunk_of(const OwnedTable& array) {
  std::vector<hsize_t> chunk(static_cast<std::size_t>(array.rank), 1);
  std::int64_t bytes = size_bytes(array.dtype);
  for (int d = array.rank; d-- > 0;) {
    const std::int64_t side =
        std::min(array.extents[d], std::max<std::int64_t>(kChunkBytes / bytes, 1));
    chunk[static_cast<std::size_t>(d)] = static_cast<hsize_t>(side);
    bytes *= side;
  }
  return chunk;
}

void write_array(hid_t group, const std::string& name, const OwnedTable& array) {
  const Handle type = stored_type(array.dtype);
  hsize_t dims[kMaxRank] = {};
  for (int d = 0; d < array.rank; ++d) dims[d] = static_cast<hsize_t>(array.extents[d]);
  const Handle space(
      array.rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(array.rank, dims, nullptr),
      H5Sclose);
  need(type && space, "array");
  if (array.rank == 0) {
    const Handle attribute(
        H5Acreate2(group, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    need(attribute && H5Awrite(attribute.get(), type.get(), array.bytes.data()) >= 0, "attribute");
    return;
  }
  const Handle creation = dataset_creation();
  need(static_cast<bool>(creation), "array");
  if (static_cast<std::int64_t>(array.bytes.size()) > kMinCompressedBytes) {
    const std::vector<hsize_t> chunk = chunk_of(array);
    need(H5Pset_chunk(creation.get(), array.rank, chunk.data()) >= 0 &&
             H5Pset_shuffle(creation.get()) >= 0 &&
             H5Pset_deflate(creation.get(), kDeflateLevel) >= 0,
         "array");
  }
  const Handle dataset(H5Dcreate2(group, name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                  creation.get(), H5P_DEFAULT),
                       H5Dclose);
  need(static_cast<bool>(dataset), "array");
  if (array.dtype == DType::bfloat16) {
    write_attribute(dataset.get(), kDTypeAttribute, std::string(kBfloat16Name));
  }
  if (array.bytes.empty()) return;
  need(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, array.bytes.data()) >= 0,
       "array");
}

// "/a/b" as {"a", "b"}.
Result<std::vector<std::string>> group_names(const std::string& group) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= group.size();) {
    const std::size_t slash = std::min(group.find('/', at), group.size());
    if (slash > at) names.push_back(group.substr(at, slash - at));
    at = slash + 1;
  }
  const bool are_names = std::all_of(names.begin(), names.end(), is_link_name);
  if (names.empty() || !are_names) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("group '{}': expected names of 1 to 255 bytes, '/' between", group)};
  }
  return names;
}

}  // namespace
}  // namespace io

Result<void> write_interop_group(const std::string& path, const std::string& group,
                                 const InteropGroup& arrays) {
  try {
    FDMA_TRY(const std::vector<std::string> names, io::group_names(group));
    return io::write_file(path, [&](hid_t file, const io::WriteTarget& target) {
      std::vector<io::Handle> open;
      for (const std::string& name : names) {
        open.push_back(io::create_group(open.empty() ? file : open.back().get(), name.c_str()));
      }
      for (const auto& [name, array] : arrays.arrays) {
        io::write_array(open.back().get(), name, array);
        io::need(target.error_number == 0, name.c_str());
      }
    });
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

}  // namespace fdma
