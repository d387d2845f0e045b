// Tables of the language from HDF5 datasets.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "fdma/io/dense_dataset.hpp"
#include "io/hdf5/dataset_storage.hpp"
#include "io/hdf5/dataset_values.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

// A dataset can claim any extents (unwritten chunks read as zeros); tables are far below this.
constexpr std::int64_t kMaxTableBytes = std::int64_t{1} << 33;
// Up to this size memory is taken unchecked, beyond it only for what the file can hold.
constexpr std::int64_t kMaxUnwrittenBytes = std::int64_t{64} << 20;

Result<OwnedTable> read_checked(const std::string& path, const std::string& dataset) {
  const std::string where = fmt::format("'{}:{}'", path, dataset);
  FDMA_TRY(const InputFile input, open_input(path));
  FDMA_TRY(const DatasetInfo info, open_dataset(input.file.get(), dataset, where));
  OwnedTable table;
  if (info.extents.size() > static_cast<std::size_t>(kMaxRank)) {
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: {} dimensions, a table has {} at most",
                                                        where, info.extents.size(), kMaxRank)};
  }
  table.rank = static_cast<int>(info.extents.size());
  for (std::size_t i = 0; i < info.extents.size(); ++i) table.extents[i] = info.extents[i];

  const hid_t type = info.type.get();
  const H5T_class_t type_class = H5Tget_class(type);
  Handle memory;
  if (is_boolean_enum(type)) {
    table.dtype = DType::boolean;
    memory = Handle(H5Tget_native_type(type, H5T_DIR_ASCEND), H5Tclose);
    if (memory && H5Tget_size(memory.get()) != 1) memory = {};
  } else if (type_class == H5T_INTEGER) {
    memory = Handle(H5Tget_native_type(type, H5T_DIR_ASCEND), H5Tclose);
    const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
    switch (memory ? H5Tget_size(memory.get()) : 0) {
      case 1:
        table.dtype = is_signed ? DType::int8 : DType::uint8;
        break;
      case 2:
        table.dtype = is_signed ? DType::int16 : DType::uint16;
        break;
      case 4:
        table.dtype = is_signed ? DType::int32 : DType::uint32;
        break;
      case 8:
        table.dtype = is_signed ? DType::int64 : DType::uint64;
        break;
      default:
        memory = {};
    }
  } else if (type_class == H5T_FLOAT && H5Tget_size(type) == 4) {
    table.dtype = DType::float32;
    memory = Handle(H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose);
  }
  if (!memory) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: type {}, a table holds booleans, integers of 1 to 8 bytes, or "
                             "float32 (scores of topk)",
                             where, type_text(type))};
  }
  const std::int64_t element_bytes = size_bytes(table.dtype);
  if (info.num_elements > kMaxTableBytes / element_bytes) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: extents {} exceed the {} bytes that a table may take", where,
                             extents_text(info.extents), kMaxTableBytes)};
  }
  const std::int64_t bytes = info.num_elements * element_bytes;
  const std::int64_t stored = std::min(info.storage_bytes, input.size_bytes);
  if (bytes > kMaxUnwrittenBytes && stored < bytes / kMaxCompression) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("{}: extents {} need {} bytes, but the file holds only {} bytes of it "
                             "(values never written, or cut off)",
                             where, extents_text(info.extents), bytes, stored)};
  }
  table.bytes.resize(static_cast<std::size_t>(bytes));
  FDMA_TRY_VOID(read_values(input, info, memory.get(), table.bytes.data(), Gaps::filled, where));
  if (table.dtype == DType::boolean) {
    for (std::size_t i = 0; i < table.bytes.size(); ++i) {
      if (table.bytes[i] > std::byte{1}) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{}: element {} is {}, a boolean is 0 or 1", where, i,
                                 static_cast<int>(table.bytes[i]))};
      }
    }
  }
  return table;
}

}  // namespace
}  // namespace io

TensorView OwnedTable::view() const {
  return make_contiguous_view(bytes.data(), dtype, rank, extents);
}

Result<OwnedTable> read_table(const std::string& path, const std::string& dataset) {
  try {
    const io::Session session;
    return io::read_checked(path, dataset);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

}  // namespace fdma
