// Class BlockMask: properties, conversions, set algebra, hashes. Users see the class of
// python_bindings/fdma/masks/block_mask.py. A mask never changes, so methods may run at the same
// time in several threads, and each releases the GIL.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays/interruption.hpp"
#include "arrays/python_error.hpp"
#include "bindings.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/formats/validate.hpp"
#include "masks/block_mask_binding.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Block = std::pair<std::int32_t, std::int32_t>;

BlockShape shape_of(Block block) { return {block.first, block.second}; }

nb::dict dict_of(const TileCounts& counts) {
  nb::dict result;
  result["empty"] = counts.empty;
  result["full"] = counts.full;
  result["partial"] = counts.partial;
  result["allowed_pairs"] = counts.allowed_pairs;
  return result;
}

nb::dict counts_of(const BlockMask& mask) {
  MaskStatistics statistics;
  {
    const nb::gil_scoped_release released;
    statistics = count(mask, mask.block);
  }
  return dict_of(statistics.tiles);
}

nb::list counts_of_groups(const BlockMask& mask) {
  MaskStatistics statistics;
  {
    const nb::gil_scoped_release released;
    statistics = count(mask, mask.block);
  }
  nb::list result;
  for (const GroupStatistics& group : statistics.groups) result.append(dict_of(group.tiles));
  return result;
}

// The number of cells (query-key pairs) over all batch elements and heads, true or false.
std::int64_t num_cells(const BlockMask& mask) {
  std::int64_t cells = 0;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    cells += mask.shape.q_len(b) * mask.shape.kv_len(b);
  }
  return cells * mask.shape.num_heads;
}

BlockMask to_format(const BlockMask& mask, const std::string& format, Block block) {
  const nb::gil_scoped_release released;
  return convert_keeping_spec(mask, value_or_throw(parse_mask_format(format)), shape_of(block));
}

SetOperation parse_operation(std::string_view name) {
  if (name == "and") return SetOperation::intersection;
  if (name == "or") return SetOperation::union_of;
  if (name == "minus") return SetOperation::difference;
  if (name == "xor") return SetOperation::symmetric_difference;
  throw PythonError({ErrorCode::invalid_argument,
                     fmt::format("operation: '{}', expected 'and', 'or', 'minus' or 'xor'", name)});
}

// Runs set algebra without the GIL. Ctrl-C ends it between two groups.
template <class Work>
BlockMask interruptible(Work&& work) {
  const Interruption interruption;
  Result<BlockMask> result = [&] {
    const nb::gil_scoped_release released;
    SetAlgebraOptions options;
    options.is_cancelled = [&] { return interruption.is_requested(); };
    return work(options);
  }();
  interruption.rethrow();
  return value_or_throw(std::move(result));
}

BlockMask combined(const BlockMask& a, const BlockMask& b, const std::string& operation) {
  const SetOperation parsed = parse_operation(operation);
  return interruptible(
      [&](const SetAlgebraOptions& options) { return combine(a, b, parsed, options); });
}

BlockMask complement_of(const BlockMask& mask) {
  return interruptible([&](const SetAlgebraOptions& options) { return complement(mask, options); });
}

BlockMask shifted(const BlockMask& mask, std::int64_t dq, std::int64_t dk) {
  return interruptible(
      [&](const SetAlgebraOptions& options) { return shift(mask, dq, dk, options); });
}

BlockMask transposed(const BlockMask& mask) {
  return interruptible([&](const SetAlgebraOptions& options) { return transpose(mask, options); });
}

BlockMask cropped(const BlockMask& mask, std::int64_t q_begin, std::int64_t q_end,
                  std::int64_t kv_begin, std::int64_t kv_end, std::int64_t batch_begin,
                  std::int64_t batch_end, std::int64_t head_begin, std::int64_t head_end) {
  const nb::gil_scoped_release released;
  return value_or_throw(
      crop(mask, {q_begin, q_end, kv_begin, kv_end, batch_begin, batch_end, head_begin, head_end}));
}

void validate_mask(const BlockMask& mask, const std::string& level) {
  constexpr std::array<std::string_view, 3> kLevels{"sizes", "structure", "canonical"};
  const auto* found = std::find(kLevels.begin(), kLevels.end(), level);
  if (found == kLevels.end()) {
    throw PythonError(
        {ErrorCode::invalid_argument,
         fmt::format("level: '{}', expected 'sizes', 'structure' or 'canonical'", level)});
  }
  const nb::gil_scoped_release released;
  const Result<void> valid = validate(mask, static_cast<ValidationLevel>(found - kLevels.begin()));
  if (!valid) throw PythonError({ErrorCode::invalid_argument, valid.error().message});
}

std::string repr(const BlockMask& mask) {
  return fmt::format(
      "<BlockMask '{}', {} x {} (batch x heads), {} x {}, {} in blocks of {} x {}, "
      "{} bytes>",
      mask.spec, mask.shape.num_batches, mask.shape.num_heads, mask.shape.max_q_len(),
      mask.shape.max_kv_len(), to_string(mask.format()), mask.block.block_q, mask.block.block_kv,
      mask.size_bytes());
}

void bind_properties(BlockMaskClass& mask) {
  mask.def_prop_ro(
          "format", [](const BlockMask& self) { return std::string(to_string(self.format())); },
          nb::for_getter(nb::sig("def format(self) -> _Format")))
      .def_prop_ro(
          "block",
          [](const BlockMask& self) { return Block(self.block.block_q, self.block.block_kv); })
      .def_prop_ro(
          "q_len", [](const BlockMask& self) { return self.shape.max_q_len(); }, "The longest one.")
      .def_prop_ro(
          "kv_len", [](const BlockMask& self) { return self.shape.max_kv_len(); },
          "The longest one.")
      .def_prop_ro(
          "q_lens", [](const BlockMask& self) { return self.shape.q_lens; },
          "One for all batch elements, or one for each.")
      .def_prop_ro(
          "kv_lens", [](const BlockMask& self) { return self.shape.kv_lens; },
          "One for all batch elements, or one for each.")
      .def_prop_ro("num_batches", [](const BlockMask& self) { return self.shape.num_batches; })
      .def_prop_ro("num_heads", [](const BlockMask& self) { return self.shape.num_heads; })
      .def_prop_ro("num_groups", &BlockMask::num_groups,
                   "Different masks among the (batch, head) pairs.")
      .def_prop_ro("num_cells", &num_cells, "Query-key pairs that exist.")
      .def_prop_ro(
          "origin",
          [](const BlockMask& self) {
            return std::tuple(self.origin.q_offset, self.origin.kv_offset, self.origin.batch_offset,
                              self.origin.head_offset);
          },
          "Where a crop lay: (q, kv, batch, head) offsets.")
      .def_prop_ro("nbytes", &BlockMask::size_bytes)
      .def_prop_ro("spec", [](const BlockMask& self) { return self.spec; })
      .def_ro("is_per_batch", &BlockMask::is_per_batch, "It was written with b.")
      .def_ro("is_per_head", &BlockMask::is_per_head, "It was written with h.")
      .def_prop_ro("counts", &counts_of,
                   nb::for_getter(nb::sig("def counts(self) -> dict[str, int]")),
                   "Tiles by class and allowed pairs, over all batch elements and heads; counted "
                   "anew at each call.")
      .def_prop_ro("counts_of_groups", &counts_of_groups,
                   nb::for_getter(nb::sig("def counts_of_groups(self) -> list[dict[str, int]]")),
                   "The same of each group.");
}

}  // namespace

void bind_block_mask(nb::module_& module) {
  BlockMaskClass mask(module, "BlockMask", "A compiled mask; compile() makes them.");
  bind_properties(mask);
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  mask.def("to_format", &to_format, nb::arg("format"), nb::arg("block"),
           nb::sig("def to_format(self, format: _Format, block: tuple[int, int]) -> BlockMask"),
           "The same cells in another format or other blocks.")
      .def("combine", &combined, nb::arg("other"), nb::arg("operation"),
           nb::sig("def combine(self, other: BlockMask, operation: Literal['and', 'or', 'minus', "
                   "'xor']) -> BlockMask"),
           "'and', 'or', 'minus' or 'xor' of two masks, as segments.")
      .def("complement", &complement_of, "The cells that exist and are not in the mask.")
      .def("shift", &shifted, nb::arg("dq"), nb::arg("dk"), "Every cell moved; lengths stay.")
      .def("transpose", &transposed, "Query rows and keys swapped.")
      .def("crop", &cropped, nb::arg("q_begin"), nb::arg("q_end"), nb::arg("kv_begin"),
           nb::arg("kv_end"), nb::arg("batch_begin"), nb::arg("batch_end"), nb::arg("head_begin"),
           nb::arg("head_end"), "A window as a mask of its own, in the same format.")
      .def("select", &select_pairs, nb::arg("batch_begin"), nb::arg("batch_end"),
           nb::arg("head_begin"), nb::arg("head_end"), released,
           "Some batch elements and heads, whole.")
      .def_static("stack", &stack_batches, nb::arg("masks"), released,
                  "The batch elements of several masks of one format, block and number of heads.")
      .def(
          "equal_cells",
          [](const BlockMask& self, const BlockMask& other) { return equal_cells(self, other); },
          nb::arg("other"), released, "Counts, lengths and cells are the same.")
      .def(
          "content_hash", [](const BlockMask& self) { return to_string(content_hash(self)); },
          released, "32 hexadecimal digits over everything stored but the spec.")
      .def(
          "mask_hash", [](const BlockMask& self) { return to_string(mask_hash(self)); }, released,
          "32 hexadecimal digits over counts, lengths and cells.")
      .def(
          "check_serves",
          [](const BlockMask& self, std::int64_t batch, std::int64_t heads,
             const std::string& name) {
            value_or_throw(check_serves(self, batch, heads, name + ": it"));
          },
          nb::arg("batch"), nb::arg("heads"), nb::arg("name") = "mask",
          "ValueError where a mask that was written with b or h and compiled for one element or "
          "head would serve several.")
      .def("validate", &validate_mask, nb::arg("level"),
           nb::sig("def validate(self, level: Literal['sizes', 'structure', 'canonical']) -> None"),
           "ValueError for the first inconsistency; level is 'sizes', 'structure' or 'canonical'.")
      .def("__repr__", &repr);
  bind_mask_arrays(module, mask);
  bind_mask_cells(module, mask);
  bind_mask_columns(mask);
  bind_mask_difference(module, mask);
}

}  // namespace fdma::python
