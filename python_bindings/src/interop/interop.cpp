// Conversions between masks and the arrays of other systems. Each layout has a pair of functions,
// which have the same names in C++. Those of FlexAttention are in interop/flex.cpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "fdma/formats/interop/bsr_matrix.hpp"
#include "fdma/formats/interop/cu_seqlens.hpp"
#include "fdma/formats/interop/flash_mask.hpp"
#include "fdma/formats/interop/hf_mask.hpp"
#include "fdma/formats/interop/hf_padding.hpp"
#include "interop/interop_arrays.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Pair = std::pair<std::int64_t, std::int64_t>;
using Block = std::pair<std::int32_t, std::int32_t>;

BlockShape block_of(Block block) { return {block.first, block.second}; }

BlockMask from_flash_mask(const HostArray<std::int32_t, 4>& indices, bool is_causal,
                          std::int64_t q_len, Block block, std::int64_t heads) {
  const FlashMask mask{.q_len = q_len,
                       .kv_len = static_cast<std::int64_t>(indices.shape(2)),
                       .num_batches = static_cast<std::int64_t>(indices.shape(0)),
                       .num_heads = static_cast<std::int64_t>(indices.shape(1)),
                       .is_causal = is_causal,
                       .num_columns = static_cast<std::int64_t>(indices.shape(3)),
                       .indices = vector_of(indices)};
  const nb::gil_scoped_release released;
  return value_or_throw(block_mask_from_flash_mask(mask, block_of(block), heads));
}

std::pair<NumpyArray<std::int32_t>, bool> to_flash_mask(const BlockMask& mask,
                                                        std::optional<bool> is_causal,
                                                        std::optional<std::int64_t> num_columns) {
  FlashMask flash;
  {
    const nb::gil_scoped_release released;
    flash = value_or_throw(
        flash_mask_from_block_mask(mask, {.is_causal = is_causal, .num_columns = num_columns}));
  }
  return {numpy_of(std::move(flash.indices),
                   {flash.num_batches, flash.num_heads, flash.kv_len, flash.num_columns}),
          flash.is_causal};
}

BlockMask from_bsr(const HostArray<std::uint8_t, 3>& data,
                   const HostArray<std::int64_t, 1>& indices,
                   const HostArray<std::int64_t, 1>& indptr, Pair lengths, Block block,
                   std::int64_t index_base, bool by_columns) {
  const BsrMatrix matrix{.q_len = lengths.first,
                         .kv_len = lengths.second,
                         .block_q = static_cast<std::int64_t>(data.shape(1)),
                         .block_kv = static_cast<std::int64_t>(data.shape(2)),
                         .indptr = vector_of(indptr),
                         .indices = vector_of(indices),
                         .data = vector_of(data),
                         .index_base = index_base,
                         .block_order = by_columns ? BsrBlockOrder::column : BsrBlockOrder::row};
  const nb::gil_scoped_release released;
  return value_or_throw(block_mask_from_bsr(matrix, block_of(block)));
}

std::tuple<NumpyArray<bool>, NumpyArray<std::int64_t>, NumpyArray<std::int64_t>> to_bsr(
    const BlockMask& mask, Block block, std::int64_t max_bytes) {
  BsrMatrix matrix;
  {
    const nb::gil_scoped_release released;
    matrix = value_or_throw(
        bsr_from_block_mask(mask, {.block = block_of(block), .max_bytes = max_bytes}));
  }
  const auto count = static_cast<std::int64_t>(matrix.indices.size());
  const auto rows = static_cast<std::int64_t>(matrix.indptr.size());
  return {numpy_of<std::uint8_t, bool>(std::move(matrix.data),
                                       {count, matrix.block_q, matrix.block_kv}),
          numpy_of(std::move(matrix.indices), {count}), numpy_of(std::move(matrix.indptr), {rows})};
}

using Offsets = HostArray<std::int32_t, 1>;

BlockMask from_cu_seqlens(const Offsets& cu_seqlens_q, const Offsets& cu_seqlens_k, bool is_causal,
                          Pair window_size, const std::optional<Offsets>& seqused_q,
                          const std::optional<Offsets>& seqused_k, bool is_packed,
                          std::int64_t heads, Block block) {
  CuSeqlens sequences{.cu_seqlens_q = vector_of(cu_seqlens_q),
                      .cu_seqlens_k = vector_of(cu_seqlens_k),
                      .is_causal = is_causal,
                      .window_left = window_size.first,
                      .window_right = window_size.second,
                      .seqused_q = std::nullopt,
                      .seqused_k = std::nullopt,
                      .is_packed = is_packed,
                      .num_heads = heads};
  if (seqused_q) sequences.seqused_q = vector_of(*seqused_q);
  if (seqused_k) sequences.seqused_k = vector_of(*seqused_k);
  const nb::gil_scoped_release released;
  return value_or_throw(block_mask_from_cu_seqlens(sequences, block_of(block)));
}

nb::typed<nb::dict, nb::str, nb::any> to_cu_seqlens(const BlockMask& mask) {
  CuSeqlens sequences;
  {
    const nb::gil_scoped_release released;
    sequences = value_or_throw(cu_seqlens_from_block_mask(mask));
  }
  const auto array = [](std::vector<std::int32_t> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    return nb::cast(numpy_of(std::move(values), {count}));
  };
  const auto optional_array = [&](std::optional<std::vector<std::int32_t>> values) {
    return values ? array(*std::move(values)) : nb::object(nb::none());
  };
  nb::typed<nb::dict, nb::str, nb::any> result;
  result["cu_seqlens_q"] = array(std::move(sequences.cu_seqlens_q));
  result["cu_seqlens_k"] = array(std::move(sequences.cu_seqlens_k));
  result["causal"] = sequences.is_causal;
  result["window_size"] = std::pair(sequences.window_left, sequences.window_right);
  result["seqused_q"] = optional_array(std::move(sequences.seqused_q));
  result["seqused_k"] = optional_array(std::move(sequences.seqused_k));
  result["packed"] = sequences.is_packed;
  return result;
}

// The parameter is any DLPack array, not a NumPy array, so that bfloat16 needs no conversion.
BlockMask from_hf_mask(nb::handle attention_mask, Block block, std::int64_t heads) {
  const InputArray array = input_array("attention_mask", attention_mask);
  check_on_host("attention_mask", array.place);
  const bool is_contiguous = array.view.num_elements() == 0 || array.view.is_contiguous();
  if (array.view.rank != 4 || !is_contiguous) {
    throw PythonError({ErrorCode::shape_mismatch,
                       fmt::format("attention_mask: expected 4 dimensions, contiguous, got {}{}",
                                   array.view.rank, is_contiguous ? "" : ", not contiguous")});
  }
  const nb::gil_scoped_release released;
  HfMask mask{.num_batches = array.view.extents[0],
              .num_heads = array.view.extents[1],
              .q_len = array.view.extents[2],
              .kv_len = array.view.extents[3],
              .dtype = array.view.dtype,
              .values = {}};
  mask.values.resize(static_cast<std::size_t>(array.view.num_elements() * size_bytes(mask.dtype)));
  if (!mask.values.empty()) {
    std::memcpy(mask.values.data(), array.view.data, mask.values.size());
  }
  return value_or_throw(block_mask_from_hf_mask(mask, block_of(block), heads));
}

nb::object to_hf_mask(const BlockMask& mask, const std::string& dtype, bool use_infinity,
                      std::int64_t max_bytes) {
  HfMask array;
  const DType chosen = dtype == "bool" ? DType::boolean : parse_dtype("dtype", dtype);
  {
    const nb::gil_scoped_release released;
    array = value_or_throw(hf_mask_from_block_mask(
        mask, {.dtype = chosen, .use_infinity = use_infinity, .max_bytes = max_bytes}));
  }
  OutputArray out = new_array("attention_mask", array.dtype, 4,
                              {array.num_batches, array.num_heads, array.q_len, array.kv_len});
  if (!array.values.empty()) {
    std::memcpy(out.view.data, array.values.data(), array.values.size());
  }
  return std::move(out.object);
}

BlockMask from_hf_padding(const HostArray<std::uint8_t, 2>& attention_mask, bool is_causal,
                          std::int64_t q_len, std::int64_t heads, Block block) {
  const HfPadding padding{.num_batches = static_cast<std::int64_t>(attention_mask.shape(0)),
                          .num_heads = heads,
                          .q_len = q_len,
                          .kv_len = static_cast<std::int64_t>(attention_mask.shape(1)),
                          .is_causal = is_causal,
                          .attention_mask = vector_of(attention_mask)};
  const nb::gil_scoped_release released;
  return value_or_throw(block_mask_from_hf_padding(padding, block_of(block)));
}

std::pair<NumpyArray<std::uint8_t>, bool> to_hf_padding(const BlockMask& mask,
                                                        std::optional<bool> is_causal) {
  HfPadding padding;
  {
    const nb::gil_scoped_release released;
    padding = value_or_throw(hf_padding_from_block_mask(mask, is_causal));
  }
  return {numpy_of(std::move(padding.attention_mask), {padding.num_batches, padding.kv_len}),
          padding.is_causal};
}

void bind_sequences(nb::module_& module) {
  module.def("block_mask_from_cu_seqlens", &from_cu_seqlens, nb::arg("cu_seqlens_q").noconvert(),
             nb::arg("cu_seqlens_k").noconvert(), nb::arg("causal"), nb::arg("window_size"),
             nb::arg("seqused_q").noconvert().none(), nb::arg("seqused_k").noconvert().none(),
             nb::arg("packed"), nb::arg("heads"), nb::arg("block"),
             nb::sig("def block_mask_from_cu_seqlens(cu_seqlens_q: "
                     "NDArray[numpy.int32], cu_seqlens_k: NDArray[numpy.int32], "
                     "causal: bool, window_size: tuple[int, int], seqused_q: "
                     "NDArray[numpy.int32] | None, seqused_k: NDArray[numpy.int32] | "
                     "None, packed: bool, heads: int, block: tuple[int, int]) -> "
                     "BlockMask"),
             "Returns the mask of FlashAttention's varlen arguments. The arrays are int32.");
  module.def("cu_seqlens_from_block_mask", &to_cu_seqlens, nb::arg("mask"),
             "Returns cu_seqlens_q, cu_seqlens_k, causal, window_size, seqused_q,\n"
             "seqused_k and packed by name.");
}

void bind_hugging_face(nb::module_& module) {
  module.def("block_mask_from_hf_mask", &from_hf_mask, nb::arg("attention_mask"), nb::arg("block"),
             nb::arg("heads") = 0,
             nb::sig("def block_mask_from_hf_mask(attention_mask: Array, block: tuple[int, int], "
                     "heads: int = 0) -> BlockMask"),
             "Returns the mask of booleans or additive floats [batch, heads, q_len,\n"
             "kv_len].");
  module.def("hf_mask_from_block_mask", &to_hf_mask, nb::arg("mask"), nb::arg("dtype") = "bool",
             nb::arg("use_infinity") = false, nb::arg("max_bytes") = std::int64_t{1} << 34,
             nb::sig("def hf_mask_from_block_mask(mask: BlockMask, dtype: str = 'bool', "
                     "use_infinity: bool = False, max_bytes: int = 1 << 34) -> NewArray"),
             "Returns the mask as an object with __dlpack__, [batch, heads, q_len,\n"
             "kv_len].\n\n"
             "MemoryError is raised if the result takes more than max_bytes bytes.");
  module.def("block_mask_from_hf_padding", &from_hf_padding, nb::arg("attention_mask").noconvert(),
             nb::arg("causal"), nb::arg("q_len"), nb::arg("heads"), nb::arg("block"),
             nb::sig("def block_mask_from_hf_padding(attention_mask: "
                     "NDArray[numpy.uint8], causal: bool, q_len: int, heads: int, "
                     "block: tuple[int, int]) -> BlockMask"),
             "Returns the mask of attention_mask, uint8 [batch, kv_len], which is 1 for a\n"
             "token and 0 for padding.");
  module.def("hf_padding_from_block_mask", &to_hf_padding, nb::arg("mask"),
             nb::arg("causal").none() = nb::none(),
             nb::sig("def hf_padding_from_block_mask(mask: BlockMask, causal: bool | "
                     "None = None) -> tuple[NDArray[numpy.uint8], bool]"),
             "Returns (attention_mask uint8 [batch, kv_len], causal).");
}

}  // namespace

void bind_interop(nb::module_& module) {
  bind_interop_flex(module);
  module.def("block_mask_from_flash_mask", &from_flash_mask,
             nb::arg("startend_row_indices").noconvert(), nb::arg("causal"), nb::arg("q_len"),
             nb::arg("block"), nb::arg("heads") = 0,
             nb::sig("def block_mask_from_flash_mask(startend_row_indices: "
                     "NDArray[numpy.int32], causal: bool, q_len: int, block: "
                     "tuple[int, int], heads: int = 0) -> BlockMask"),
             "Returns the mask of startend_row_indices, int32 [batch, heads, kv_len,\n"
             "columns].");
  module.def("flash_mask_from_block_mask", &to_flash_mask, nb::arg("mask"),
             nb::arg("causal").none() = nb::none(), nb::arg("num_columns").none() = nb::none(),
             nb::sig("def flash_mask_from_block_mask(mask: BlockMask, causal: bool | "
                     "None = None, num_columns: int | None = None) -> "
                     "tuple[NDArray[numpy.int32], bool]"),
             "Returns (startend_row_indices int32 [batch, heads, kv_len, columns],\n"
             "causal).");
  module.def("block_mask_from_bsr", &from_bsr, nb::arg("data").noconvert(),
             nb::arg("indices").noconvert(), nb::arg("indptr").noconvert(), nb::arg("lengths"),
             nb::arg("block"), nb::arg("index_base") = 0, nb::arg("by_columns") = false,
             nb::sig("def block_mask_from_bsr(data: NDArray[numpy.uint8], indices: "
                     "NDArray[numpy.int64], indptr: NDArray[numpy.int64], lengths: "
                     "tuple[int, int], block: tuple[int, int], index_base: int = 0, "
                     "by_columns: bool = False) -> BlockMask"),
             "Returns the mask of a block-sparse matrix.\n\n"
             "data is uint8 [blocks, block_q, block_kv]; indices and indptr are int64 of\n"
             "one dimension.");
  module.def("bsr_from_block_mask", &to_bsr, nb::arg("mask"), nb::arg("block"),
             nb::arg("max_bytes") = std::int64_t{1} << 34,
             nb::sig("def bsr_from_block_mask(mask: BlockMask, block: tuple[int, "
                     "int], max_bytes: int = 1 << 34) -> tuple[NDArray[numpy.bool_], "
                     "NDArray[numpy.int64], NDArray[numpy.int64]]"),
             "Returns (data bool [blocks, block_q, block_kv], indices int64, indptr\n"
             "int64).\n\n"
             "MemoryError is raised if the result takes more than max_bytes bytes.");
  bind_sequences(module);
  bind_hugging_face(module);
}

}  // namespace fdma::python
