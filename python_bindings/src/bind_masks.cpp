// compile, BlockMask and to_dense.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "python_error.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Lengths = std::variant<std::int64_t, std::vector<std::int64_t>>;

std::vector<std::int64_t> as_vector(Lengths lengths) {
  if (const auto* one = std::get_if<std::int64_t>(&lengths)) return {*one};
  return std::get<std::vector<std::int64_t>>(std::move(lengths));
}

BlockMask compile_mask(const std::string& spec, Lengths q_len, std::optional<Lengths> kv_len,
                       std::int64_t batch, std::int64_t heads,
                       const std::optional<nb::mapping>& tables, const std::string& format,
                       std::pair<std::int32_t, std::int32_t> block, int num_threads) {
  MaskShape shape{batch, heads, as_vector(std::move(q_len)), {}};
  shape.kv_lens = kv_len ? as_vector(*std::move(kv_len)) : shape.q_lens;
  if (num_threads < 0) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("num_threads: expected 0 or more, got {}", num_threads)});
  }
  std::vector<InputArray> arrays;
  Tables views;
  if (tables) {
    for (const nb::handle item : tables->items()) {
      std::string name;
      if (!nb::try_cast(item[0], name)) {
        throw PythonError({ErrorCode::invalid_argument, "tables: expected names as its keys"});
      }
      const std::string label = fmt::format("tables['{}']", name);
      arrays.push_back(input_array(label, item[1]));
      check_on_host(label, arrays.back().place);
      views.insert_or_assign(std::move(name), arrays.back().view);
    }
  }
  const nb::gil_scoped_release released;
  const LowerOptions options{.block = {block.first, block.second}, .num_threads = num_threads};
  const MaskFormat wanted = value_or_throw(parse_mask_format(format));
  BlockMask mask = value_or_throw(compile(value_or_throw(parse_mask(spec)), views, shape, options));
  if (wanted != MaskFormat::segment) {
    std::string text = std::move(mask.spec);
    mask = value_or_throw(convert(mask, wanted, options.block));
    mask.spec = std::move(text);
  }
  return mask;
}

// Sums over all (batch, head) pairs; each group is counted once.
nb::dict counts_of(const BlockMask& mask) {
  TileCounts sum;
  {
    const nb::gil_scoped_release released;
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(mask.num_groups()));
    for (const std::int32_t group : mask.group_of) ++pairs[static_cast<std::size_t>(group)];
    for (std::size_t g = 0; g < pairs.size(); ++g) {
      const TileCounts counts =
          count_tiles(segment_of_group(mask, static_cast<std::int64_t>(g), mask.block));
      sum.empty += pairs[g] * counts.empty;
      sum.full += pairs[g] * counts.full;
      sum.partial += pairs[g] * counts.partial;
      sum.allowed_pairs += pairs[g] * counts.allowed_pairs;
    }
  }
  nb::dict result;
  result["empty"] = sum.empty;
  result["full"] = sum.full;
  result["partial"] = sum.partial;
  result["allowed_pairs"] = sum.allowed_pairs;
  return result;
}

// Writes one byte per cell of `segments` to rows of `row_bytes` bytes, which are zero.
void write_cells(const SegmentMask& segments, std::int64_t row_bytes, std::uint8_t* cells) {
  std::vector<Interval> keys;
  for (std::int64_t q = 0; q < segments.q_len; ++q) {
    row_intervals_of(segments, q, keys);
    for (const Interval& interval : keys) {
      std::memset(cells + q * row_bytes + interval.begin, 1,
                  static_cast<std::size_t>(interval.end - interval.begin));
    }
  }
}

nb::object to_dense(const BlockMask& mask, std::int64_t max_bytes) {
  const std::int64_t q_len = mask.shape.max_q_len();
  const std::int64_t kv_len = mask.shape.max_kv_len();
  const auto num_pairs = static_cast<std::int64_t>(mask.group_of.size());
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(q_len * kv_len, num_pairs, &bytes) || bytes > max_bytes) {
    throw PythonError(
        {ErrorCode::out_of_memory,
         fmt::format("to_dense: {} x {} x {} x {} cells take one byte each, but max_bytes is {}",
                     mask.shape.num_batches, mask.shape.num_heads, q_len, kv_len, max_bytes)});
  }
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::uint8_t, Free> cells(
      static_cast<std::uint8_t*>(std::calloc(static_cast<std::size_t>(bytes) + 1, 1)));
  if (!cells) {
    throw PythonError(
        {ErrorCode::out_of_memory, fmt::format("to_dense: no memory for {} bytes", bytes)});
  }
  {
    const nb::gil_scoped_release released;
    std::vector<const std::uint8_t*> drawn(static_cast<std::size_t>(mask.num_groups()));
    for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
      std::uint8_t* const out = cells.get() + pair * q_len * kv_len;
      const std::int32_t group = mask.group_of[static_cast<std::size_t>(pair)];
      const std::uint8_t*& first = drawn[static_cast<std::size_t>(group)];
      if (first != nullptr) {
        std::memcpy(out, first, static_cast<std::size_t>(q_len * kv_len));
      } else {
        write_cells(segment_of_group(mask, group, mask.block), kv_len, out);
        first = out;
      }
    }
  }
  std::uint8_t* const data = cells.get();
  const nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  static_cast<void>(cells.release());  // the capsule's now
  const std::size_t extents[] = {static_cast<std::size_t>(mask.shape.num_batches),
                                 static_cast<std::size_t>(mask.shape.num_heads),
                                 static_cast<std::size_t>(q_len), static_cast<std::size_t>(kv_len)};
  return nb::cast(
      nb::ndarray<nb::numpy, bool>(data, 4, extents, owner, nullptr, dlpack_dtype(DType::boolean)));
}

std::string repr(const BlockMask& mask) {
  return fmt::format(
      "<BlockMask '{}', {} x {} (batch x heads), {} x {}, {} in blocks of {} x {}, "
      "{} bytes>",
      mask.spec, mask.shape.num_batches, mask.shape.num_heads, mask.shape.max_q_len(),
      mask.shape.max_kv_len(), to_string(mask.format()), mask.block.block_q, mask.block.block_kv,
      mask.size_bytes());
}

}  // namespace

void bind_masks(nb::module_& module) {
  nb::class_<BlockMask>(module, "BlockMask", "A compiled mask; compile() makes them.")
      .def_prop_ro("format",
                   [](const BlockMask& mask) { return std::string(to_string(mask.format())); })
      .def_prop_ro(
          "block",
          [](const BlockMask& mask) { return std::pair(mask.block.block_q, mask.block.block_kv); })
      .def_prop_ro(
          "q_len", [](const BlockMask& mask) { return mask.shape.max_q_len(); }, "The longest one.")
      .def_prop_ro(
          "kv_len", [](const BlockMask& mask) { return mask.shape.max_kv_len(); },
          "The longest one.")
      .def_prop_ro(
          "q_lens", [](const BlockMask& mask) { return mask.shape.q_lens; },
          "One for all batch elements, or one for each.")
      .def_prop_ro(
          "kv_lens", [](const BlockMask& mask) { return mask.shape.kv_lens; },
          "One for all batch elements, or one for each.")
      .def_prop_ro("num_batches", [](const BlockMask& mask) { return mask.shape.num_batches; })
      .def_prop_ro("num_heads", [](const BlockMask& mask) { return mask.shape.num_heads; })
      .def_prop_ro("num_groups", &BlockMask::num_groups,
                   "Different masks among the (batch, head) pairs.")
      .def_prop_ro("nbytes", &BlockMask::size_bytes)
      .def_prop_ro("spec", [](const BlockMask& mask) { return mask.spec; })
      .def_prop_ro("counts", &counts_of,
                   "Tiles by class and allowed pairs, over all batch elements and heads; counted "
                   "anew at each call.")
      .def("__repr__", &repr);
  module.def("compile", &compile_mask, nb::arg("spec"), nb::arg("q_len"),
             nb::arg("kv_len") = nb::none(), nb::arg("batch") = 1, nb::arg("heads") = 1,
             nb::arg("tables") = nb::none(), nb::arg("format") = "segment",
             nb::arg("block") = std::pair(128, 128), nb::arg("num_threads") = 0,
             "The exact compiled mask of a specification.");
  module.def("to_dense", &to_dense, nb::arg("mask"), nb::kw_only(),
             nb::arg("max_bytes") = std::int64_t{1} << 32,
             "Every cell, as a boolean NumPy array [num_batches, num_heads, q_len, kv_len]; cells "
             "past an element's lengths are False.");
}

}  // namespace fdma::python
