// The arrays of a mask by name, as mask files hold them. Python gets them without copies. A mask
// made from such arrays passes every check that a file gets.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/python_error.hpp"
#include "fdma/formats/stored_arrays.hpp"
#include "masks/block_mask_binding.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

// A read-only NumPy array over memory that `owner` keeps.
nb::object numpy_view(const TensorView& view, nb::handle owner) {
  std::vector<std::size_t> extents;
  for (int d = 0; d < view.rank; ++d) {
    extents.push_back(static_cast<std::size_t>(view.extents[static_cast<std::size_t>(d)]));
  }
  static const std::int64_t nothing = 0;  // an array without elements may have no memory
  const void* data = view.data == nullptr ? &nothing : view.data;
  // nanobind takes an address that may be written, and makes the array read-only.
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(const_cast<void*>(data), extents.size(),
                                                 extents.data(), owner, nullptr,
                                                 dlpack_dtype(view.dtype)));
}

nb::object group_map(const nb::object& self) {
  const auto& mask = nb::cast<const BlockMask&>(self);
  const std::int64_t extents[] = {mask.shape.num_batches, mask.shape.num_heads};
  return numpy_view(make_contiguous_view(mask.group_of.data(), DType::int32, 2, extents), self);
}

nb::list arrays_of(const nb::object& self) {
  const auto& mask = nb::cast<const BlockMask&>(self);
  nb::list groups;
  for (std::int64_t g = 0; g < mask.num_groups(); ++g) {
    nb::dict group;
    for (const StoredArray& array : stored_arrays(mask, g)) {
      nb::object owner = self;
      if (array.packed) {
        using Owner = std::shared_ptr<const std::vector<std::int64_t>>;
        auto kept = std::make_unique<Owner>(array.packed);
        owner =
            nb::capsule(kept.get(), [](void* data) noexcept { delete static_cast<Owner*>(data); });
        static_cast<void>(kept.release());  // the capsule owns it now
      }
      group[array.name.c_str()] = numpy_view(array.view, owner);
    }
    groups.append(group);
  }
  return groups;
}

BlockMask mask_of_arrays(const std::string& format, std::vector<std::int64_t> q_lens,
                         std::vector<std::int64_t> kv_lens, std::int64_t num_batches,
                         std::int64_t num_heads, std::pair<std::int32_t, std::int32_t> block,
                         std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t> origin,
                         std::string spec, nb::handle group_of, const nb::list& groups,
                         bool is_per_batch, bool is_per_head) {
  BlockMask header;
  header.shape = {num_batches, num_heads, std::move(q_lens), std::move(kv_lens)};
  header.block = {block.first, block.second};
  header.origin = {std::get<0>(origin), std::get<1>(origin), std::get<2>(origin),
                   std::get<3>(origin)};
  header.spec = std::move(spec);
  header.is_per_batch = is_per_batch;
  header.is_per_head = is_per_head;
  std::vector<InputArray> arrays;
  const auto view_of = [&](const std::string& name, nb::handle object) {
    arrays.push_back(input_array(name, object));
    check_on_host(name, arrays.back().place);
    return arrays.back().view;
  };
  const TensorView map = view_of("group_of", group_of);
  if (map.dtype != DType::int32 || map.rank != 2 || map.extents[0] != num_batches ||
      map.extents[1] != num_heads || (map.num_elements() > 0 && !map.is_contiguous())) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("group_of: expected a contiguous int32 array [{}, {}]",
                                   num_batches, num_heads)});
  }
  const auto* entries = static_cast<const std::int32_t*>(map.data);
  header.group_of.assign(entries, entries + map.num_elements());
  std::vector<StoredViews> views;
  for (const nb::handle item : groups) {
    StoredViews& group = views.emplace_back();
    for (const auto [name, array] : nb::cast<nb::dict>(item)) {
      const auto text = nb::cast<std::string>(name);
      group.insert_or_assign(text,
                             view_of(fmt::format("groups/{}/{}", views.size() - 1, text), array));
    }
  }
  const nb::gil_scoped_release released;
  const MaskFormat known = value_or_throw(parse_mask_format(format));
  Result<BlockMask> mask = mask_from_stored_arrays(known, std::move(header), views);
  if (mask) return *std::move(mask);
  // The arrays are an argument and not a file, so corrupt ones are an invalid_argument error.
  Error error = std::move(mask).error();
  if (error.code == ErrorCode::corrupt_file) error.code = ErrorCode::invalid_argument;
  throw PythonError(std::move(error));
}

nb::list specs_of(const std::string& format, std::int64_t q_len, std::int64_t kv_len,
                  std::pair<std::int32_t, std::int32_t> block) {
  const BlockShape shape{block.first, block.second};
  value_or_throw(validate(shape));
  value_or_throw(validate(MaskShape{1, 1, {q_len}, {kv_len}}));
  nb::list specs;
  for (const StoredArraySpec& spec :
       stored_array_specs(value_or_throw(parse_mask_format(format)), q_len, kv_len, shape)) {
    const nb::object width = spec.rank == 1 ? nb::none() : nb::object(nb::int_(spec.width));
    specs.append(nb::make_tuple(spec.name, std::string(to_string(spec.dtype)), width, spec.min_rows,
                                spec.max_rows, spec.only_with_patterns));
  }
  return specs;
}

}  // namespace

void bind_mask_arrays(nb::module_& module, BlockMaskClass& mask) {
  mask.def_prop_ro("group_of", &group_map,
                   nb::for_getter(nb::sig("def group_of(self) -> NDArray[numpy.int32]")),
                   "The group of each (batch element, head) pair, int32 [num_batches,\n"
                   "num_heads]. It is read-only.")
      .def("arrays", &arrays_of, nb::sig("def arrays(self) -> list[dict[str, NDArray[Any]]]"),
           "Returns the arrays of each group by their names in mask files. They are\n"
           "read-only views.")
      .def_static("from_arrays", &mask_of_arrays, nb::kw_only(), nb::arg("format"),
                  nb::arg("q_lens"), nb::arg("kv_lens"), nb::arg("num_batches"),
                  nb::arg("num_heads"), nb::arg("block"), nb::arg("origin"), nb::arg("spec"),
                  nb::arg("group_of"), nb::arg("groups"), nb::arg("is_per_batch") = false,
                  nb::arg("is_per_head") = false,
                  nb::sig("def from_arrays(*, format: str, q_lens: Sequence[int], kv_lens: "
                          "Sequence[int], num_batches: int, num_heads: int, block: tuple[int, "
                          "int], origin: tuple[int, int, int, int], spec: str, group_of: Array, "
                          "groups: Sequence[Mapping[str, Array]], is_per_batch: bool = False, "
                          "is_per_head: bool = False) -> BlockMask"),
                  "Returns the mask of arrays as `arrays` gives them, and copies them.\n\n"
                  "ValueError names the first inconsistency.");
  module.def("stored_array_specs", &specs_of, nb::arg("format"), nb::arg("q_len"),
             nb::arg("kv_len"), nb::arg("block"),
             nb::sig("def stored_array_specs(format: str, q_len: int, kv_len: int, block: "
                     "tuple[int, int]) -> list[tuple[str, str, int | None, int, int, bool]]"),
             "Returns (name, element type, width, least rows, most rows, whether only masks\n"
             "with patterns have it) of each array of a group.\n\n"
             "The width is None for an array of one dimension.");
}

}  // namespace fdma::python
