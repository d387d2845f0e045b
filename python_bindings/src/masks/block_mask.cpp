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
          nb::for_getter(nb::sig("def format(self) -> _Format")), "The name of the stored format.")
      .def_prop_ro(
          "block",
          [](const BlockMask& self) { return Block(self.block.block_q, self.block.block_kv); },
          "The sides (queries, keys) of a block.")
      .def_prop_ro(
          "q_len", [](const BlockMask& self) { return self.shape.max_q_len(); },
          "The largest number of queries of a batch element.")
      .def_prop_ro(
          "kv_len", [](const BlockMask& self) { return self.shape.max_kv_len(); },
          "The largest number of keys of a batch element.")
      .def_prop_ro(
          "q_lens", [](const BlockMask& self) { return self.shape.q_lens; },
          "The number of queries of all batch elements, or of each.")
      .def_prop_ro(
          "kv_lens", [](const BlockMask& self) { return self.shape.kv_lens; },
          "The number of keys of all batch elements, or of each.")
      .def_prop_ro(
          "num_batches", [](const BlockMask& self) { return self.shape.num_batches; },
          "The number of batch elements.")
      .def_prop_ro(
          "num_heads", [](const BlockMask& self) { return self.shape.num_heads; },
          "The number of heads.")
      .def_prop_ro("num_groups", &BlockMask::num_groups,
                   "The number of different masks among the (batch element, head) pairs.")
      .def_prop_ro("num_cells", &num_cells,
                   "The number of (query, key) pairs that exist, over all batch elements and\n"
                   "heads.")
      .def_prop_ro(
          "origin",
          [](const BlockMask& self) {
            return std::tuple(self.origin.q_offset, self.origin.kv_offset, self.origin.batch_offset,
                              self.origin.head_offset);
          },
          "The offsets (q, kv, batch, head) at which a crop lay in the mask that it was\n"
          "cut from.")
      .def_prop_ro("nbytes", &BlockMask::size_bytes, "Bytes of the arrays that the mask holds.")
      .def_prop_ro(
          "spec", [](const BlockMask& self) { return self.spec; },
          "The specification from which the mask was compiled; empty if there was none.")
      .def_ro("is_per_batch", &BlockMask::is_per_batch,
              "True if the specification uses the batch index b.")
      .def_ro("is_per_head", &BlockMask::is_per_head,
              "True if the specification uses the head index h.")
      .def_prop_ro("counts", &counts_of,
                   nb::for_getter(nb::sig("def counts(self) -> dict[str, int]")),
                   "The numbers of tiles of each class and of allowed pairs, over all batch\n"
                   "elements and heads.\n\n"
                   "Each call counts them anew.")
      .def_prop_ro("counts_of_groups", &counts_of_groups,
                   nb::for_getter(nb::sig("def counts_of_groups(self) -> list[dict[str, int]]")),
                   "The counts of each group, as `counts` has them for the mask.");
}

}  // namespace

void bind_block_mask(nb::module_& module) {
  BlockMaskClass mask(module, "BlockMask",
                      "A compiled mask, which does not change. compile() makes it.");
  bind_properties(mask);
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  mask.def("to_format", &to_format, nb::arg("format"), nb::arg("block"),
           nb::sig("def to_format(self, format: _Format, block: tuple[int, int]) -> BlockMask"),
           "Returns the same cells in another format or with other block sides.")
      .def("combine", &combined, nb::arg("other"), nb::arg("operation"),
           nb::sig("def combine(self, other: BlockMask, operation: Literal['and', 'or', 'minus', "
                   "'xor']) -> BlockMask"),
           "Returns the 'and', 'or', 'minus' or 'xor' of two masks, in format 'segment'.")
      .def("complement", &complement_of,
           "Returns the mask of the cells that exist and are not in this mask.")
      .def("shift", &shifted, nb::arg("dq"), nb::arg("dk"),
           "Returns the mask with every cell moved by dq queries and dk keys. Lengths\n"
           "stay as they are.")
      .def("transpose", &transposed, "Returns the mask with queries and keys swapped.")
      .def("crop", &cropped, nb::arg("q_begin"), nb::arg("q_end"), nb::arg("kv_begin"),
           nb::arg("kv_end"), nb::arg("batch_begin"), nb::arg("batch_end"), nb::arg("head_begin"),
           nb::arg("head_end"),
           "Returns a window as a mask of its own, in the same format. Each range is\n"
           "half-open.")
      .def("select", &select_pairs, nb::arg("batch_begin"), nb::arg("batch_end"),
           nb::arg("head_begin"), nb::arg("head_end"), released,
           "Returns a half-open range of batch elements and one of heads, at full\n"
           "lengths.")
      .def_static("stack", &stack_batches, nb::arg("masks"), released,
                  "Returns one mask with the batch elements of several masks, in their order.\n\n"
                  "The masks have the same format, block sides and number of heads; otherwise\n"
                  "ValueError is raised.")
      .def(
          "equal_cells",
          [](const BlockMask& self, const BlockMask& other) { return equal_cells(self, other); },
          nb::arg("other"), released, "True if both masks have the same counts, lengths and cells.")
      .def(
          "content_hash", [](const BlockMask& self) { return to_string(content_hash(self)); },
          released,
          "The hash of everything that is stored except the spec, as 32 hexadecimal\n"
          "digits.")
      .def(
          "mask_hash", [](const BlockMask& self) { return to_string(mask_hash(self)); }, released,
          "The hash of counts, lengths and cells, as 32 hexadecimal digits.")
      .def(
          "check_serves",
          [](const BlockMask& self, std::int64_t batch, std::int64_t heads,
             const std::string& name) {
            value_or_throw(check_serves(self, batch, heads, name + ": it"));
          },
          nb::arg("batch"), nb::arg("heads"), nb::arg("name") = "mask",
          "Raises ValueError if the mask cannot be used for tensors of `batch` elements\n"
          "and `heads` heads.\n\n"
          "A mask whose specification uses b or h and that was compiled for one element\n"
          "or head holds for that one only. `name` stands for the mask in the message.")
      .def("validate", &validate_mask, nb::arg("level"),
           nb::sig("def validate(self, level: Literal['sizes', 'structure', 'canonical']) -> None"),
           "Raises ValueError for the first inconsistency. level is 'sizes', 'structure'\n"
           "or 'canonical'.")
      .def("__repr__", &repr);
  bind_mask_arrays(module, mask);
  bind_mask_cells(module, mask);
  bind_mask_columns(mask);
  bind_mask_difference(module, mask);
}

}  // namespace fdma::python
