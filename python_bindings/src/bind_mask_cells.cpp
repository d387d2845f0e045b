// Cells of a mask as booleans, and its query intervals per key, as arrays of both directions.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array_view.hpp"
#include "block_mask_binding.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/dense_cells.hpp"
#include "python_error.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Range = std::pair<std::int64_t, std::int64_t>;
using Block = std::pair<std::int32_t, std::int32_t>;

void check_range(const char* name, Range range, std::int64_t limit) {
  if (0 <= range.first && range.first < range.second && range.second <= limit) return;
  throw PythonError({ErrorCode::invalid_argument,
                     fmt::format("{}: [{}, {}), expected a range inside [0, {}) that is not empty",
                                 name, range.first, range.second, limit)});
}

// Batch elements and heads that were asked for, and the longest lengths among them.
struct Selection {
  Range batches, heads;
  std::int64_t q_len = 0, kv_len = 0;

  Selection(const BlockMask& mask, std::optional<Range> batch, std::optional<Range> head)
      : batches(batch.value_or(Range(0, mask.shape.num_batches))),
        heads(head.value_or(Range(0, mask.shape.num_heads))) {
    check_range("batch", batches, mask.shape.num_batches);
    check_range("heads", heads, mask.shape.num_heads);
    for (std::int64_t b = batches.first; b < batches.second; ++b) {
      q_len = std::max(q_len, mask.shape.q_len(b));
      kv_len = std::max(kv_len, mask.shape.kv_len(b));
    }
  }
  std::int64_t num_batches() const { return batches.second - batches.first; }
  std::int64_t num_heads() const { return heads.second - heads.first; }
};

// Memory of `pairs` planes of `plane` elements; checked against max_bytes.
void check_bytes(const char* what, const Selection& chosen, std::int64_t rows, std::int64_t columns,
                 std::int64_t element_bytes, std::int64_t max_bytes) {
  std::int64_t bytes = element_bytes;
  bool fits = true;
  for (const std::int64_t factor : {chosen.num_batches(), chosen.num_heads(), rows, columns}) {
    fits = fits && !__builtin_mul_overflow(bytes, factor, &bytes);
  }
  if (fits && bytes <= max_bytes) return;
  throw PythonError(
      {ErrorCode::out_of_memory,
       fmt::format("{}: {} x {} x {} x {} take {} each, but max_bytes is {}", what,
                   chosen.num_batches(), chosen.num_heads(), rows, columns,
                   element_bytes == 1 ? "one byte" : fmt::format("{} bytes", element_bytes),
                   max_bytes)});
}

template <class T>
nb::object numpy_array(std::unique_ptr<T[]> values, const std::array<std::size_t, 4>& extents,
                       DType dtype) {
  T* const data = values.get();
  const nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  static_cast<void>(values.release());  // the capsule's now
  return nb::cast(nb::ndarray<nb::numpy>(data, extents.size(), extents.data(), owner, nullptr,
                                         dlpack_dtype(dtype)));
}

// Draws each group of the selection once and copies it where others share it.
void draw_cells(const BlockMask& mask, const Selection& chosen, std::uint8_t* cells) {
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

nb::object to_dense(const BlockMask& mask, std::optional<Range> batch, std::optional<Range> heads,
                    std::int64_t max_bytes) {
  const Selection chosen(mask, batch, heads);
  check_bytes("to_dense", chosen, chosen.q_len, chosen.kv_len, 1, max_bytes);
  const std::array<std::size_t, 4> extents{
      static_cast<std::size_t>(chosen.num_batches()), static_cast<std::size_t>(chosen.num_heads()),
      static_cast<std::size_t>(chosen.q_len), static_cast<std::size_t>(chosen.kv_len)};
  const std::size_t size = extents[0] * extents[1] * extents[2] * extents[3];
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

// What the message of a wrong cell says of its pair.
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

// Begin and end of interval i of key k at [.., i, k]; keys with fewer have [0, 0).
nb::tuple to_columns(const BlockMask& mask, std::optional<Range> batch, std::optional<Range> heads,
                     std::int64_t max_bytes) {
  const Selection chosen(mask, batch, heads);
  std::map<std::int32_t, ColumnIntervals> columns;
  std::int64_t most = 1;
  {
    const nb::gil_scoped_release released;
    for (std::int64_t b = chosen.batches.first; b < chosen.batches.second; ++b) {
      for (std::int64_t h = chosen.heads.first; h < chosen.heads.second; ++h) {
        const std::int32_t group = mask.group(b, h);
        if (columns.contains(group)) continue;
        const auto* stored = std::get_if<std::vector<ColumnIntervals>>(&mask.groups);
        ColumnIntervals& one = columns[group];
        one = stored != nullptr ? (*stored)[static_cast<std::size_t>(group)]
                                : columns_from_segment(segment_of_group(mask, group, mask.block));
        for (std::size_t k = 0; k + 1 < one.offsets.size(); ++k) {
          most = std::max(most, one.offsets[k + 1] - one.offsets[k]);
        }
      }
    }
  }
  check_bytes("to_columns", chosen, most, chosen.kv_len, 8, max_bytes);
  const std::array<std::size_t, 4> extents{
      static_cast<std::size_t>(chosen.num_batches()), static_cast<std::size_t>(chosen.num_heads()),
      static_cast<std::size_t>(most), static_cast<std::size_t>(chosen.kv_len)};
  const std::size_t size = extents[0] * extents[1] * extents[2] * extents[3];
  auto begin = std::make_unique<std::int32_t[]>(size + 1),
       end = std::make_unique<std::int32_t[]>(size + 1);
  {
    const nb::gil_scoped_release released;
    std::size_t at = 0;
    for (std::int64_t b = chosen.batches.first; b < chosen.batches.second; ++b) {
      for (std::int64_t h = chosen.heads.first; h < chosen.heads.second; ++h) {
        const ColumnIntervals& one = columns.at(mask.group(b, h));
        for (std::size_t k = 0; k + 1 < one.offsets.size(); ++k) {
          std::size_t out = at + k;
          for (std::int64_t i = one.offsets[k]; i < one.offsets[k + 1]; ++i, out += extents[3]) {
            begin[out] = one.intervals[static_cast<std::size_t>(i)].begin;
            end[out] = one.intervals[static_cast<std::size_t>(i)].end;
          }
        }
        at += extents[2] * extents[3];
      }
    }
  }
  return nb::make_tuple(numpy_array(std::move(begin), extents, DType::int32),
                        numpy_array(std::move(end), extents, DType::int32));
}

// The element at [b, h, i, k] of an int32 or int64 array of rank 4.
std::int64_t number_at(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t i,
                       std::int64_t k) {
  const std::int64_t at =
      b * view.strides[0] + h * view.strides[1] + i * view.strides[2] + k * view.strides[3];
  return view.dtype == DType::int32 ? static_cast<const std::int32_t*>(view.data)[at]
                                    : static_cast<const std::int64_t*>(view.data)[at];
}

// The union of the intervals of each key: sorted, those that meet merged, empty ones dropped.
Result<ColumnIntervals> columns_of(const TensorView& begin, const TensorView& end, std::int64_t b,
                                   std::int64_t h, std::int64_t q_len, std::int64_t kv_len) {
  ColumnIntervals columns;
  columns.q_len = q_len;
  columns.kv_len = kv_len;
  columns.offsets.push_back(0);
  std::vector<Interval> of_key;
  for (std::int64_t k = 0; k < kv_len; ++k) {
    of_key.clear();
    for (std::int64_t i = 0; i < begin.extents[2]; ++i) {
      const std::int64_t from = number_at(begin, b, h, i, k), to = number_at(end, b, h, i, k);
      if (from >= to) continue;
      if (from < 0 || to > q_len) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("begin, end: [{}, {}) of key {} (batch element {}, head {}), "
                                 "expected queries in [0, {})",
                                 from, to, k, b, h, q_len)};
      }
      of_key.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
    }
    std::sort(of_key.begin(), of_key.end(),
              [](const Interval& one, const Interval& other) { return one.begin < other.begin; });
    const auto first = static_cast<std::size_t>(columns.offsets.back());
    for (const Interval& interval : of_key) {
      if (columns.intervals.size() > first && columns.intervals.back().end >= interval.begin) {
        std::int32_t& last = columns.intervals.back().end;
        last = std::max(last, interval.end);
      } else {
        columns.intervals.push_back(interval);
      }
    }
    columns.offsets.push_back(std::ssize(columns.intervals));
  }
  return columns;
}

BlockMask from_columns(nb::handle begin, nb::handle end, std::vector<std::int64_t> q_lens,
                       std::vector<std::int64_t> kv_lens, Block block, const std::string& format) {
  const InputArray arrays[] = {input_array("begin", begin), input_array("end", end)};
  const char* const names[] = {"begin", "end"};
  for (int i = 0; i < 2; ++i) {
    const TensorView& view = arrays[i].view;
    check_on_host(names[i], arrays[i].place);
    if (view.rank != 4 || (view.dtype != DType::int32 && view.dtype != DType::int64)) {
      throw PythonError(
          {ErrorCode::invalid_argument,
           fmt::format("{}: expected int32 or int64 [batch, heads, n, kv_len]", names[i])});
    }
  }
  const TensorView &from = arrays[0].view, &to = arrays[1].view;
  if (from.extents != to.extents) {
    throw PythonError({ErrorCode::shape_mismatch,
                       fmt::format("begin, end: extents [{}] and [{}] differ",
                                   fmt::join(from.extents, ", "), fmt::join(to.extents, ", "))});
  }
  const nb::gil_scoped_release released;
  BlockMask mask;
  mask.shape = {from.extents[0], from.extents[1], std::move(q_lens), std::move(kv_lens)};
  mask.block = {block.first, block.second};
  const MaskFormat wanted = value_or_throw(parse_mask_format(format));
  value_or_throw(validate(mask.shape));
  value_or_throw(validate(mask.block));
  if (mask.shape.max_kv_len() > from.extents[3]) {
    throw PythonError(
        {ErrorCode::shape_mismatch, fmt::format("begin, end: {} keys, but kv_len is {}",
                                                from.extents[3], mask.shape.max_kv_len())});
  }
  std::vector<ColumnIntervals> groups;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
      ColumnIntervals columns =
          value_or_throw(columns_of(from, to, b, h, mask.shape.q_len(b), mask.shape.kv_len(b)));
      const auto known = std::find(groups.begin(), groups.end(), columns);
      mask.group_of.push_back(static_cast<std::int32_t>(known - groups.begin()));
      if (known == groups.end()) groups.push_back(std::move(columns));
    }
  }
  mask.groups = std::move(groups);
  const BlockShape shape = mask.block;
  return convert_keeping_spec(std::move(mask), wanted, shape);
}

}  // namespace

void bind_mask_cells(nb::module_& module, BlockMaskClass& mask) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 32;
  mask.def("to_dense", &to_dense, nb::kw_only(), nb::arg("batch") = nb::none(),
           nb::arg("heads") = nb::none(), nb::arg("max_bytes") = kMaxBytes,
           nb::sig("def to_dense(self, *, batch: tuple[int, int] | None = None, heads: tuple[int, "
                   "int] | None = None, max_bytes: int = 1 << 32) -> NDArray[numpy.bool_]"),
           "Every cell, as a boolean NumPy array [batches, heads, q_len, kv_len]; cells past an "
           "element's lengths are False.")
      .def_static("from_dense", &from_dense, nb::arg("cells"), nb::kw_only(), nb::arg("block"),
                  nb::arg("format"),
                  nb::sig("def from_dense(cells: Array, *, block: tuple[int, int], format: "
                          "_Format) -> BlockMask"),
                  "The mask of an array of booleans, or of uint8 0 and 1.")
      .def("to_columns", &to_columns, nb::kw_only(), nb::arg("batch") = nb::none(),
           nb::arg("heads") = nb::none(), nb::arg("max_bytes") = kMaxBytes,
           nb::sig("def to_columns(self, *, batch: tuple[int, int] | None = None, heads: "
                   "tuple[int, int] | None = None, max_bytes: int = 1 << 32) -> "
                   "tuple[NDArray[numpy.int32], NDArray[numpy.int32]]"),
           "(begin, end), int32 [batches, heads, n, kv_len]: the query intervals of each key.")
      .def_static(
          "from_columns", &from_columns, nb::arg("begin"), nb::arg("end"), nb::kw_only(),
          nb::arg("q_lens"), nb::arg("kv_lens"), nb::arg("block"), nb::arg("format"),
          nb::sig("def from_columns(begin: Array, end: Array, *, q_lens: Sequence[int], kv_lens: "
                  "Sequence[int], block: tuple[int, int], format: _Format) -> BlockMask"),
          "The mask whose keys are seen by the union of their query intervals.");
  module.def(
      "to_dense",
      [](const BlockMask& self, std::int64_t max_bytes) {
        return to_dense(self, std::nullopt, std::nullopt, max_bytes);
      },
      nb::arg("mask"), nb::kw_only(), nb::arg("max_bytes") = kMaxBytes,
      "Every cell, as a boolean NumPy array [num_batches, num_heads, q_len, kv_len]; cells past an "
      "element's lengths are False.");
}

}  // namespace fdma::python
