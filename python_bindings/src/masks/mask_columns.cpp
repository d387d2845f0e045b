// Conversions between a mask and the query intervals of each key as arrays. Learned masks have this
// form.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/python_error.hpp"
#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "masks/block_mask_binding.hpp"
#include "masks/pair_selection.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Block = std::pair<std::int32_t, std::int32_t>;

// Two arrays, the begin and the end of interval i of key k at [.., i, k]. A key with fewer
// intervals than the others has [0, 0) in the remaining places.
nb::tuple to_columns(const BlockMask& mask, std::optional<PairRange> batch,
                     std::optional<PairRange> heads, std::int64_t max_bytes) {
  const PairSelection chosen(mask, batch, heads);
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
        if (stored != nullptr) {
          one = (*stored)[static_cast<std::size_t>(group)];
        } else {
          const SegmentMask segments = segment_of_group(mask, group, mask.block);
          const ConversionBytes bytes = conversion_bytes(segments, MaskFormat::columns);
          value_or_throw(check_memory(bytes.result + bytes.scratch, "to_columns"));
          one = columns_from_segment(segments);
        }
        for (std::size_t k = 0; k + 1 < one.offsets.size(); ++k) {
          most = std::max(most, one.offsets[k + 1] - one.offsets[k]);
        }
      }
    }
  }
  const auto extents = chosen.extents("to_columns", most, chosen.kv_len, 4, max_bytes);
  const std::size_t size = num_elements(extents);
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

void bind_mask_columns(BlockMaskClass& mask) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 32;
  mask.def("to_columns", &to_columns, nb::kw_only(), nb::arg("batch") = nb::none(),
           nb::arg("heads") = nb::none(), nb::arg("max_bytes") = kMaxBytes,
           nb::sig("def to_columns(self, *, batch: tuple[int, int] | None = None, heads: "
                   "tuple[int, int] | None = None, max_bytes: int = 1 << 32) -> "
                   "tuple[NDArray[numpy.int32], NDArray[numpy.int32]]"),
           "Returns the query intervals of each key as (begin, end), each int32\n"
           "[batches, heads, n, kv_len].\n\n"
           "An interval is half-open. `batch` and `heads` are half-open ranges; None\n"
           "means all. MemoryError is raised if the result takes more than max_bytes\n"
           "bytes.")
      .def_static(
          "from_columns", &from_columns, nb::arg("begin"), nb::arg("end"), nb::kw_only(),
          nb::arg("q_lens"), nb::arg("kv_lens"), nb::arg("block"), nb::arg("format"),
          nb::sig("def from_columns(begin: Array, end: Array, *, q_lens: Sequence[int], kv_lens: "
                  "Sequence[int], block: tuple[int, int], format: _Format) -> BlockMask"),
          "Returns the mask in which the union of its query intervals sees each key.\n\n"
          "begin and end are int32 or int64 [batch, heads, n, kv_len]; the intervals\n"
          "are half-open.");
}

}  // namespace fdma::python
