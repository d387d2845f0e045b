// A BSR matrix as a group, by the names of scipy.sparse.bsr_matrix.
#include <fmt/format.h>

#include "io/interop/fields.hpp"

namespace fdma {

Result<BsrMatrix> bsr_from_group(const InteropGroup& group) {
  io::InteropFields fields(group);
  BsrMatrix matrix;
  FDMA_TRY(const OwnedTable* data, fields.array("data", 3));
  matrix.block_q = data->extents[1];
  matrix.block_kv = data->extents[2];
  if (data->dtype != DType::boolean && data->dtype != DType::uint8 && data->dtype != DType::int8) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("data: {}, expected boolean, uint8 or int8", io::array_text(*data))};
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data->bytes.data());
  matrix.data.assign(bytes, bytes + data->bytes.size());
  FDMA_TRY(matrix.indices, fields.int64_values("indices", 1));
  FDMA_TRY(matrix.indptr, fields.int64_values("indptr", 1));
  FDMA_TRY(const std::vector<std::int64_t> shape, fields.int64_values("shape", 1));
  if (shape.size() != 2) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("shape: {} entries, expected 2 (query rows, keys)", shape.size())};
  }
  // SciPy's shape is a multiple of the blocks; lengths that are no multiples are stored beside it.
  FDMA_TRY(matrix.q_len, fields.integer("q_len", shape[0]));
  FDMA_TRY(matrix.kv_len, fields.integer("kv_len", shape[1]));
  for (const auto& [name, length, extent, side] :
       {std::tuple{"q_len", matrix.q_len, shape[0], matrix.block_q},
        std::tuple{"kv_len", matrix.kv_len, shape[1], matrix.block_kv}}) {
    if (side >= 1 && length >= 0 && length <= kMaxLength &&
        extent == ceil_div(length, side) * side) {
      continue;
    }
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: {} in blocks of {}, but shape has {}",
                                                        name, length, side, extent)};
  }
  FDMA_TRY(matrix.index_base, fields.integer("index_base", 0));
  FDMA_TRY(const std::int64_t order, fields.integer("block_order", 2));
  if (order != 1 && order != 2) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("block_order: {}, expected 1 (column) or 2 (row)", order)};
  }
  matrix.block_order = static_cast<BsrBlockOrder>(order);
  FDMA_TRY_VOID(fields.expect_no_more());
  return matrix;
}

InteropGroup group_from_bsr(const BsrMatrix& matrix) {
  InteropGroup group;
  const auto num_blocks = static_cast<std::int64_t>(matrix.indices.size());
  const std::vector<std::int64_t> shape{ceil_div(matrix.q_len, matrix.block_q) * matrix.block_q,
                                        ceil_div(matrix.kv_len, matrix.block_kv) * matrix.block_kv};
  group.arrays["data"] =
      io::array_of(matrix.data, DType::boolean, {num_blocks, matrix.block_q, matrix.block_kv});
  group.arrays["indices"] = io::array_of(matrix.indices, {num_blocks});
  group.arrays["indptr"] =
      io::array_of(matrix.indptr, {static_cast<std::int64_t>(matrix.indptr.size())});
  group.arrays["shape"] = io::array_of(shape, {2});
  group.arrays["q_len"] = io::scalar_of(matrix.q_len);
  group.arrays["kv_len"] = io::scalar_of(matrix.kv_len);
  return group;
}

}  // namespace fdma
