#include "oracle_tables.hpp"

#include <limits>

namespace fdma::reference {
namespace {

bool is_floating(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 ||
         dtype == DType::float64;
}

Value read_offset(const TensorView& table, std::int64_t offset) {
  switch (table.dtype) {
    case DType::boolean:
      return condition(static_cast<const std::uint8_t*>(table.data)[offset] != 0);
    case DType::int8:
      return integer(static_cast<const std::int8_t*>(table.data)[offset]);
    case DType::int16:
      return integer(static_cast<const std::int16_t*>(table.data)[offset]);
    case DType::int32:
      return integer(static_cast<const std::int32_t*>(table.data)[offset]);
    case DType::int64:
      return integer(static_cast<const std::int64_t*>(table.data)[offset]);
    case DType::uint8:
      return integer(static_cast<const std::uint8_t*>(table.data)[offset]);
    case DType::uint16:
      return integer(static_cast<const std::uint16_t*>(table.data)[offset]);
    case DType::uint32:
      return integer(static_cast<const std::uint32_t*>(table.data)[offset]);
    case DType::uint64: {
      const std::uint64_t x = static_cast<const std::uint64_t*>(table.data)[offset];
      if (x > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return kUndefined;
      return integer(static_cast<std::int64_t>(x));
    }
    default:
      return kUndefined;
  }
}

}  // namespace

Result<TensorView> find_table(const Tables& tables, const std::string& name) {
  const auto found = tables.find(name);
  if (found == tables.end())
    return Error{ErrorCode::invalid_argument, "oracle: table @" + name + " is not bound"};
  if (found->second.device != Device::cpu || is_floating(found->second.dtype))
    return Error{ErrorCode::invalid_argument,
                 "oracle: table @" + name + " is not a boolean or integer array of the host"};
  return found->second;
}

Value read(const TensorView& table, const Value* indices, std::size_t num_indices) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < num_indices; ++i) {
    const Value index = indices[i];
    if (!index.is_defined || index.value < 0 || index.value >= table.extents[i]) return kUndefined;
    offset += index.value * table.strides[i];
  }
  return read_offset(table, offset);
}

Value read(const TensorView& table, std::initializer_list<Value> indices) {
  return read(table, indices.begin(), indices.size());
}

TensorView drop_front(const TensorView& table, std::int64_t i) {
  TensorView rest = table;
  const auto rank = static_cast<std::size_t>(table.rank);
  const std::int64_t offset = i * table.strides[0];
  rest.data = static_cast<const char*>(table.data) + offset * size_bytes(table.dtype);
  for (std::size_t d = 0; d + 1 < rank; ++d) {
    rest.extents[d] = table.extents[d + 1];
    rest.strides[d] = table.strides[d + 1];
  }
  rest.extents[rank - 1] = 1;
  rest.strides[rank - 1] = 0;
  --rest.rank;
  return rest;
}

Result<TensorView> table_of_element(const Tables& tables, const TableRequest& request,
                                    const MaskShape& shape, std::int64_t b) {
  FDMA_TRY(TensorView table, find_table(tables, request.name));
  const auto mismatch = [&](const std::string& what) {
    return Error{ErrorCode::shape_mismatch,
                 "oracle: " + request.purpose + ": table @" + request.name + ": " + what};
  };
  if ((table.dtype == DType::boolean) != request.is_boolean)
    return Error{ErrorCode::invalid_argument, "oracle: " + request.purpose + ": table @" +
                                                  request.name + " has the wrong element type"};
  if (table.rank == request.rank + 1) {
    if (table.extents[0] != shape.num_batches) return mismatch("batch extent");
    table = drop_front(table, b);
  }
  if (table.rank != request.rank) return mismatch("rank");
  if (request.rank == 0) return table;
  const auto last = static_cast<std::size_t>(request.rank - 1);
  if (request.last_extent >= 0 && table.extents[last] != request.last_extent)
    return mismatch("extent");
  if (request.own_extent >= 0) table.extents[last] = request.own_extent;
  return table;
}

std::vector<std::int64_t> read_all(const TensorView& table) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < table.extents[0]; ++i)
    values.push_back(read(table, {integer(i)}).value);
  return values;
}

}  // namespace fdma::reference
