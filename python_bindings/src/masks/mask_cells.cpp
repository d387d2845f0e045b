// Conversions between a mask and an array of booleans, one for each cell.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/python_error.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/dense_cells.hpp"
#include "masks/block_mask_binding.hpp"
#include "masks/pair_selection.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Block = std::pair<std::int32_t, std::int32_t>;

// Draws each group of the selection once and copies it where others share it.
void draw_cells(const BlockMask& mask, const PairSelection& chosen, std::uint8_t* cells) {
  const std::int64_t plane = chosen.q_len * chosen.kv_len;
  std::map<std::int32_t, const std::uint8_t*> drawn;
  std::uint8_t* out = cells;
  for (std::int64_t b = chosen.batches.first; b < chosen.batches.second; ++b) {
    for (std::int64_t h = chosen.heads.first; h < chosen.heads.second; ++h, out += plane) {
      const auto [first, is_new] = drawn.emplace(mask.group(b, h), out);
      if (!is_new) {
        if (plane > 0) std::memcpy(out, first->second, static_cast<std::size_t>(plane));
        continue;
      }
      // Cells past the element's own lengths are False.
      const bool is_whole =
          mask.shape.q_len(b) == chosen.q_len && mask.shape.kv_len(b) == chosen.kv_len;
      if (!is_whole) std::memset(out, 0, static_cast<std::size_t>(plane));
      const std::int64_t extents[] = {chosen.q_len, chosen.kv_len};
      write_cells(segment_of_group(mask, mask.group(b, h), mask.block),
                  make_contiguous_mutable_view(out, DType::boolean, 2, extents));
    }
  }
}

nb::object to_dense(const BlockMask& mask, std::optional<PairRange> batch,
                    std::optional<PairRange> heads, std::int64_t max_bytes) {
  const PairSelection chosen(mask, batch, heads);
  const auto extents = chosen.extents("to_dense", chosen.q_len, chosen.kv_len, 1, max_bytes);
  const std::size_t size = num_elements(extents);
  std::unique_ptr<std::uint8_t[]> cells(new std::uint8_t[size + 1]);  // left uninitialised
  {
    const nb::gil_scoped_release released;
    draw_cells(mask, chosen, cells.get());
  }
  return numpy_array(std::move(cells), extents, DType::boolean);
}

// The cells of one (batch, head) pair of an array of rank 2 to 4.
TensorView plane_of(const TensorView& cells, std::int64_t b, std::int64_t h) {
  TensorView plane = cells;
  plane.rank = 2;
  std::int64_t offset = 0;
  if (cells.rank >= 3) offset += b * cells.strides[0];
  if (cells.rank == 4) offset += h * cells.strides[1];
  for (std::size_t d = 0; d < 2; ++d) {
    const auto from = static_cast<std::size_t>(cells.rank) - 2 + d;
    plane.extents[d] = cells.extents[from];
    plane.strides[d] = cells.strides[from];
  }
  plane.data = static_cast<const std::uint8_t*>(cells.data) + offset;
  return plane;
}

// Adds the batch element and head to the message about a wrong cell.
Error in_pair(Error error, const TensorView& cells, std::int64_t b, std::int64_t h) {
  if (cells.rank == 3) error.message += fmt::format(" (in batch element {})", b);
  if (cells.rank == 4) error.message += fmt::format(" (in batch element {}, head {})", b, h);
  return error;
}

BlockMask from_dense(nb::handle array, Block block, const std::string& format) {
  const InputArray cells = input_array("cells", array);
  check_on_host("cells", cells.place);
  const TensorView& view = cells.view;
  const BlockShape shape{block.first, block.second};
  if (view.dtype != DType::boolean && view.dtype != DType::uint8 && view.dtype != DType::int8) {
    const std::string text =
        fmt::format("cells: expected booleans, or uint8 0 and 1, got {}", to_string(view.dtype));
    throw nb::type_error(text.c_str());
  }
  if (view.rank < 2) {
    throw PythonError(
        {ErrorCode::shape_mismatch,
         fmt::format("cells: {} dimensions, expected [q, k], [batch, q, k] or [batch, heads, q, k]",
                     view.rank)});
  }
  const nb::gil_scoped_release released;
  const MaskFormat wanted = value_or_throw(parse_mask_format(format));
  value_or_throw(validate(shape));
  const std::int64_t num_batches = view.rank >= 3 ? view.extents[0] : 1;
  const std::int64_t num_heads = view.rank == 4 ? view.extents[1] : 1;
  const auto rank = static_cast<std::size_t>(view.rank);
  MaskShape lengths{num_batches, num_heads, {view.extents[rank - 2]}, {view.extents[rank - 1]}};
  value_or_throw(validate(lengths));
  // A dimension of stride 0 repeats one mask, which is packed once.
  const bool repeats_batches = view.rank >= 3 && view.strides[0] == 0;
  const bool repeats_heads = view.rank == 4 && view.strides[1] == 0;
  std::vector<SegmentMask> masks;
  std::vector<std::int32_t> mask_of;
  for (std::int64_t b = 0; b < num_batches; ++b) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      if (repeats_batches && b > 0) {
        mask_of.push_back(mask_of[static_cast<std::size_t>(h)]);
      } else if (repeats_heads && h > 0) {
        mask_of.push_back(mask_of.back());
      } else {
        Result<DenseBits> bits = dense_from_cells(plane_of(view, b, h));
        if (!bits) throw PythonError(in_pair(std::move(bits).error(), view, b, h));
        mask_of.push_back(static_cast<std::int32_t>(masks.size()));
        masks.push_back(segment_from_dense(*bits, shape));
      }
    }
  }
  return convert_keeping_spec(make_block_mask(std::move(lengths), shape, std::move(masks), mask_of),
                              wanted, shape);
}

}  // namespace

void bind_mask_cells(nb::module_& module, BlockMaskClass& mask) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 32;
  mask.def("to_dense", &to_dense, nb::kw_only(), nb::arg("batch") = nb::none(),
           nb::arg("heads") = nb::none(), nb::arg("max_bytes") = kMaxBytes,
           nb::sig("def to_dense(self, *, batch: tuple[int, int] | None = None, heads: tuple[int, "
                   "int] | None = None, max_bytes: int = 1 << 32) -> NDArray[numpy.bool_]"),
           "Returns every cell as booleans [batches, heads, q_len, kv_len].\n\n"
           "`batch` and `heads` are half-open ranges; None means all. Cells past the\n"
           "lengths of a batch element are False. MemoryError is raised if the result\n"
           "takes more than max_bytes bytes.")
      .def_static("from_dense", &from_dense, nb::arg("cells"), nb::kw_only(), nb::arg("block"),
                  nb::arg("format"),
                  nb::sig("def from_dense(cells: Array, *, block: tuple[int, int], format: "
                          "_Format) -> BlockMask"),
                  "Returns the mask of an array of booleans, or of uint8 with the values 0 and\n"
                  "1.\n\n"
                  "The shape of cells is [q_len, kv_len], [batch, q_len, kv_len] or [batch,\n"
                  "heads, q_len, kv_len].");
  module.def(
      "to_dense",
      [](const BlockMask& self, std::int64_t max_bytes) {
        return to_dense(self, std::nullopt, std::nullopt, max_bytes);
      },
      nb::arg("mask"), nb::kw_only(), nb::arg("max_bytes") = kMaxBytes,
      nb::sig("def to_dense(mask: BlockMask, *, max_bytes: int = 1 << 32) -> NDArray[numpy.bool_]"),
      "Returns every cell as booleans [num_batches, num_heads, q_len, kv_len].\n\n"
      "Cells past the lengths of a batch element are False. MemoryError is raised\n"
      "if the result takes more than max_bytes bytes.");
}

}  // namespace fdma::python
