// FlexAttention's arrays: block_mask_from_flex, flex_from_block_mask.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "fdma/formats/interop/flex_block_mask.hpp"
#include "interop/interop_arrays.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Counts = HostArray<std::int32_t, 3>;
using Indices = HostArray<std::int32_t, 4>;
using Table = std::pair<Counts, Indices>;
using Cells = std::pair<HostArray<std::int32_t, 1>, HostArray<std::uint64_t, 2>>;

FlexIndexTable table_of(std::string_view name, const Table& table, const FlexBlockMask& flex,
                        std::int64_t rows) {
  const auto& [counts, indices] = table;
  check_extents(fmt::format("{}_num_blocks", name), counts,
                {flex.num_batches, flex.num_heads, rows});
  check_extents(fmt::format("{}_indices", name), indices, {flex.num_batches, flex.num_heads, rows});
  return {static_cast<std::int64_t>(indices.shape(3)), vector_of(counts), vector_of(indices)};
}

BlockMask from_flex(std::pair<std::int64_t, std::int64_t> seq_lengths,
                    std::pair<std::int64_t, std::int64_t> block, const Table& kv,
                    const std::optional<Table>& full_kv, const std::optional<Table>& q,
                    const std::optional<Table>& full_q, const std::optional<Cells>& own_cells,
                    const BlockMask* cells) {
  FlexBlockMask flex;
  std::tie(flex.q_len, flex.kv_len) = seq_lengths;
  std::tie(flex.block_q, flex.block_kv) = block;
  if (flex.block_q < 1 || flex.block_kv < 1) {
    throw PythonError(
        {ErrorCode::invalid_argument, fmt::format("BLOCK_SIZE: ({}, {}), expected at least 1 each",
                                                  flex.block_q, flex.block_kv)});
  }
  flex.num_batches = static_cast<std::int64_t>(kv.first.shape(0));
  flex.num_heads = static_cast<std::int64_t>(kv.first.shape(1));
  const std::int64_t rows = ceil_div(flex.q_len, flex.block_q);
  const std::int64_t cols = ceil_div(flex.kv_len, flex.block_kv);
  flex.kv = table_of("kv", kv, flex, rows);
  if (full_kv) flex.full_kv = table_of("full_kv", *full_kv, flex, rows);
  if (q) flex.q = table_of("q", *q, flex, cols);
  if (full_q) flex.full_q = table_of("full_q", *full_q, flex, cols);
  if (own_cells) {
    if (flex.block_q * flex.block_kv % 64 == 0) {
      check_extents("fdma_bitmaps", own_cells->second,
                    {static_cast<std::int64_t>(own_cells->second.shape(0)),
                     flex.block_q * flex.block_kv / 64});
    }
    flex.cells = FlexCells{vector_of(own_cells->first), vector_of(own_cells->second)};
  }
  const nb::gil_scoped_release released;
  return value_or_throw(block_mask_from_flex(flex, cells));
}

nb::typed<nb::dict, nb::str, nb::any> to_flex(const BlockMask& mask,
                                              std::pair<std::int32_t, std::int32_t> block,
                                              bool separate_full_blocks, bool with_transpose,
                                              bool with_cells, std::int64_t max_bytes) {
  FlexBlockMask flex;
  {
    const nb::gil_scoped_release released;
    flex = value_or_throw(flex_from_block_mask(mask, {.block = {block.first, block.second},
                                                      .separate_full = separate_full_blocks,
                                                      .with_transpose = with_transpose,
                                                      .with_cells = with_cells,
                                                      .max_bytes = max_bytes}));
  }
  nb::typed<nb::dict, nb::str, nb::any> result;
  result["seq_lengths"] = std::pair(flex.q_len, flex.kv_len);
  result["BLOCK_SIZE"] = std::pair(flex.block_q, flex.block_kv);
  const auto add = [&](const std::string& name, FlexIndexTable table, std::int64_t rows) {
    const std::int64_t b = flex.num_batches, h = flex.num_heads;
    result[nb::str((name + "_num_blocks").c_str())] =
        nb::cast(numpy_of(std::move(table.num_blocks), {b, h, rows}));
    result[nb::str((name + "_indices").c_str())] =
        nb::cast(numpy_of(std::move(table.indices), {b, h, rows, table.width}));
  };
  const std::int64_t rows = ceil_div(flex.q_len, flex.block_q);
  const std::int64_t cols = ceil_div(flex.kv_len, flex.block_kv);
  add("kv", std::move(flex.kv), rows);
  if (flex.full_kv) add("full_kv", *std::move(flex.full_kv), rows);
  if (flex.q) add("q", *std::move(flex.q), cols);
  if (flex.full_q) add("full_q", *std::move(flex.full_q), cols);
  if (flex.cells) {
    const std::int64_t words = flex.block_q * flex.block_kv / 64;
    const auto listed = static_cast<std::int64_t>(flex.cells->bitmap_index.size());
    const auto bitmaps = static_cast<std::int64_t>(flex.cells->bitmaps.size()) / words;
    result["fdma_bitmap_index"] = nb::cast(numpy_of(std::move(flex.cells->bitmap_index), {listed}));
    result["fdma_bitmaps"] = nb::cast(numpy_of(std::move(flex.cells->bitmaps), {bitmaps, words}));
  }
  return result;
}

}  // namespace

void bind_interop_flex(nb::module_& module) {
  module.def("block_mask_from_flex", &from_flex, nb::arg("seq_lengths"), nb::arg("block"),
             nb::arg("kv").noconvert(), nb::arg("full_kv").noconvert() = nb::none(),
             nb::arg("q").noconvert() = nb::none(), nb::arg("full_q").noconvert() = nb::none(),
             nb::arg("own_cells").noconvert() = nb::none(), nb::arg("cells").none() = nb::none(),
             nb::sig("def block_mask_from_flex(seq_lengths: tuple[int, int], block: "
                     "tuple[int, int], kv: tuple[NDArray[numpy.int32], "
                     "NDArray[numpy.int32]], full_kv: tuple[NDArray[numpy.int32], "
                     "NDArray[numpy.int32]] | None = None, q: "
                     "tuple[NDArray[numpy.int32], NDArray[numpy.int32]] | None = "
                     "None, full_q: tuple[NDArray[numpy.int32], "
                     "NDArray[numpy.int32]] | None = None, own_cells: "
                     "tuple[NDArray[numpy.int32], NDArray[numpy.uint64]] | None = "
                     "None, cells: BlockMask | None = None) -> BlockMask"),
             "Returns the mask of FlexAttention's tables.\n\n"
             "kv, full_kv, q and full_q are pairs of int32 arrays (num_blocks, indices).\n"
             "own_cells is the pair (fdma_bitmap_index int32, fdma_bitmaps uint64).");
  module.def("flex_from_block_mask", &to_flex, nb::arg("mask"), nb::arg("block"),
             nb::arg("separate_full_blocks") = true, nb::arg("with_transpose") = true,
             nb::arg("with_cells") = true, nb::arg("max_bytes") = std::int64_t{1} << 34,
             "Returns FlexAttention's fields by name, as NumPy arrays and pairs of\n"
             "integers.\n\n"
             "MemoryError is raised if the result takes more than max_bytes bytes.");
}

}  // namespace fdma::python
