// Tables of the language from HDF5 datasets.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "fdma/io/dense_dataset.hpp"
#include "io/arrays/array_file.hpp"
#include "io/arrays/narrow_floats.hpp"
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

// The table of the values that `cast` allows. `table` holds float64 elements.
Result<void> cast_elements(OwnedTable& table, TableCast cast, const std::string& where) {
  const std::size_t count = table.bytes.size() / sizeof(double);
  const bool is_whole = cast == TableCast::numbers;
  std::vector<std::byte> made(count * (is_whole ? sizeof(std::int64_t) : sizeof(float)));
  for (std::size_t i = 0; i < count; ++i) {
    double value = 0;
    std::memcpy(&value, table.bytes.data() + i * sizeof value, sizeof value);
    if (is_whole) {
      constexpr double kLimit = 9007199254740992;  // 2^53: every whole number below is exact
      if (!(std::abs(value) <= kLimit) || value != std::trunc(value)) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{}: element {} is {}, which --cast does not make a whole number",
                                 where, i, value)};
      }
      const auto whole = static_cast<std::int64_t>(value);
      std::memcpy(made.data() + i * sizeof whole, &whole, sizeof whole);
      continue;
    }
    const auto single = static_cast<float>(value);
    if (static_cast<double>(single) != value && !std::isnan(value)) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: element {} is {}, which float32 does not hold exactly; store "
                               "the scores as float32 (.astype(np.float32)) if rounding them is "
                               "right",
                               where, i, value)};
    }
    std::memcpy(made.data() + i * sizeof single, &single, sizeof single);
  }
  table.bytes = std::move(made);
  table.dtype = is_whole ? DType::int64 : DType::float32;
  return {};
}

// Floating values become what `cast` says; booleans must be 0 and 1.
Result<void> finish_table(OwnedTable& table, bool is_cast, TableCast cast,
                          const std::string& where) {
  if (is_cast) FDMA_TRY_VOID(cast_elements(table, cast, where));
  if (table.dtype != DType::boolean) return {};
  for (std::size_t i = 0; i < table.bytes.size(); ++i) {
    if (table.bytes[i] > std::byte{1}) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: element {} is {}, a boolean is 0 or 1", where, i,
                               static_cast<int>(table.bytes[i]))};
    }
  }
  return {};
}

Error wrong_type(const std::string& where, std::string_view type, bool is_floating) {
  return {
      ErrorCode::invalid_argument,
      fmt::format("{}: type {}, a table holds booleans, integers of 1 to 8 bytes, or float32 "
                  "(scores of topk){}",
                  where, type, is_floating ? "; --cast takes values that are exactly such" : "")};
}

// The elements of 16 and 32 bits as float64.
std::vector<std::byte> widened(const std::vector<std::byte>& values, DType dtype) {
  const auto size = static_cast<std::size_t>(size_bytes(dtype));
  const std::size_t count = values.size() / size;
  std::vector<std::byte> wide(count * sizeof(double));
  for (std::size_t i = 0; i < count; ++i) {
    double value = 0;
    if (dtype == DType::float32) {
      float single = 0;
      std::memcpy(&single, values.data() + i * size, size);
      value = static_cast<double>(single);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, values.data() + i * size, size);
      value = dtype == DType::float16 ? half_to_double(bits) : bfloat16_to_double(bits);
    }
    std::memcpy(wide.data() + i * sizeof value, &value, sizeof value);
  }
  return wide;
}

Result<OwnedTable> read_array_table(const std::string& path, const std::string& name,
                                    TableCast cast) {
  FDMA_TRY(const ArrayFile file, ArrayFile::open(path));
  FDMA_TRY(const StoredArray* array, file.find(name));
  const std::string where =
      array->name.empty() ? fmt::format("'{}'", path) : fmt::format("'{}:/{}'", path, array->name);
  OwnedTable table;
  if (array->extents.size() > static_cast<std::size_t>(kMaxRank)) {
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: {} dimensions, a table has {} at most",
                                                        where, array->extents.size(), kMaxRank)};
  }
  table.rank = static_cast<int>(array->extents.size());
  std::copy(array->extents.begin(), array->extents.end(), table.extents);
  table.dtype = array->dtype;
  const bool is_floating = array->dtype >= DType::float16;
  const bool is_cast = is_floating && cast != TableCast::none;
  if (is_floating && !is_cast && array->dtype != DType::float32) {
    return wrong_type(where, to_string(array->dtype), true);
  }
  if (array->size_bytes > kMaxTableBytes) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: {} bytes exceed the {} bytes that a table may take", where,
                             array->size_bytes, kMaxTableBytes)};
  }
  FDMA_TRY(table.bytes, file.read_all(*array));
  if (is_cast && array->dtype != DType::float64) table.bytes = widened(table.bytes, array->dtype);
  FDMA_TRY_VOID(finish_table(table, is_cast, cast, where));
  return table;
}

Result<OwnedTable> read_checked(const std::string& path, const std::string& dataset,
                                TableCast cast) {
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
  bool is_cast = false;
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
  } else if (type_class == H5T_FLOAT && cast != TableCast::none && H5Tget_size(type) <= 8) {
    is_cast = true;
    memory = Handle(H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose);
  } else if (type_class == H5T_FLOAT && H5Tget_size(type) == 4) {
    table.dtype = DType::float32;
    memory = Handle(H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose);
  }
  if (!memory) {
    return wrong_type(where, type_text(type), type_class == H5T_FLOAT);
  }
  const std::int64_t element_bytes =
      is_cast ? std::int64_t{sizeof(double)} : std::int64_t{size_bytes(table.dtype)};
  if (info.num_elements > kMaxTableBytes / element_bytes) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: extents {} of {} bytes each exceed the {} bytes that a table may "
                             "take",
                             where, extents_text(info.extents), element_bytes, kMaxTableBytes)};
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
  FDMA_TRY_VOID(finish_table(table, is_cast, cast, where));
  return table;
}

}  // namespace
}  // namespace io

TensorView OwnedTable::view() const {
  return make_contiguous_view(bytes.data(), dtype, rank, extents);
}

Result<OwnedTable> read_table(const std::string& path, const std::string& dataset, TableCast cast) {
  try {
    const io::Session session;
    if (io::array_file_kind(path)) return io::read_array_table(path, dataset, cast);
    return io::read_checked(path, dataset, cast);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

}  // namespace fdma
