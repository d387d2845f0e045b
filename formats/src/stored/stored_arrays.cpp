#include "fdma/formats/stored_arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "stored/mask_schema.hpp"
#include "stored/stored_mask.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

using io::ArrayShape;
using io::ArrayType;

DType dtype_of(ArrayType type) {
  switch (type) {
    case ArrayType::int32:
      return DType::int32;
    case ArrayType::int64:
      return DType::int64;
    case ArrayType::uint64:
      break;
  }
  return DType::uint64;
}

StoredArraySpec spec_of(std::string name, ArrayType type, ArrayShape shape) {
  StoredArraySpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype_of(type);
  spec.rank = shape.width == io::kOneDimensional ? 1 : 2;
  spec.width = spec.rank == 1 ? 1 : shape.width;
  spec.min_rows = shape.rows == io::kAnyRows ? 0 : shape.rows;
  spec.max_rows = shape.max_rows;
  return spec;
}

template <class Mask>
std::vector<StoredArraySpec> specs_of(std::int64_t q_len, std::int64_t kv_len, BlockShape block) {
  Mask mask;
  mask.q_len = q_len;
  mask.kv_len = kv_len;
  if constexpr (requires { mask.block; }) mask.block = block;
  std::vector<StoredArraySpec> specs;
  if constexpr (std::is_same_v<Mask, ParametricMask>) {
    specs.push_back(
        spec_of("parameters", ArrayType::int64, io::exact_rows(std::ssize(io::kParameters))));
  }
  const auto add = [&](const char* name, auto&, ArrayType type, ArrayShape shape) {
    specs.push_back(spec_of(name, type, shape));
  };
  io::for_each_array(mask, add);
  if constexpr (std::is_same_v<Mask, SegmentMask>) {
    const std::size_t always = specs.size();
    io::for_each_pattern_array(mask, add);
    for (std::size_t i = always; i < specs.size(); ++i) specs[i].only_with_patterns = true;
  }
  return specs;
}

StoredArray stored_array(const StoredArraySpec& spec, const void* data, std::int64_t numbers) {
  // With a width of 0 (no keys) the schema decides the number of rows.
  const std::int64_t rows = spec.width > 0 ? numbers / spec.width : spec.min_rows;
  const std::int64_t extents[] = {rows, spec.width};
  return {spec.name, make_contiguous_view(data, spec.dtype, spec.rank, extents), nullptr};
}

StoredArray packed_array(const StoredArraySpec& spec, std::vector<std::int64_t> numbers) {
  auto packed = std::make_shared<const std::vector<std::int64_t>>(std::move(numbers));
  StoredArray array = stored_array(spec, packed->data(), std::ssize(*packed));
  array.packed = std::move(packed);
  return array;
}

template <class Mask>
std::vector<StoredArray> arrays_of(const Mask& mask) {
  std::vector<StoredArray> arrays;
  if constexpr (std::is_same_v<Mask, ParametricMask>) {
    std::vector<std::int64_t> parameters;
    for (const auto member : io::kParameters) parameters.push_back(mask.*member);
    const auto count = std::ssize(parameters);
    arrays.push_back(packed_array(spec_of("parameters", ArrayType::int64, io::exact_rows(count)),
                                  std::move(parameters)));
  }
  io::for_each_stored_array(
      mask, [&](const char* name, const auto& array, ArrayType type, ArrayShape shape) {
        const StoredArraySpec spec = spec_of(name, type, shape);
        using Element = typename std::decay_t<decltype(array)>::value_type;
        if constexpr (std::is_same_v<Element, TileRun>) {
          arrays.push_back(packed_array(spec, io::pack_runs(array)));
        } else {
          const auto bytes = static_cast<std::int64_t>(array.size() * sizeof(Element));
          arrays.push_back(stored_array(spec, array.data(), bytes / io::size_bytes(type)));
        }
      });
  return arrays;
}

std::string extents_text(const TensorView& view) {
  std::string text;
  for (int d = 0; d < view.rank; ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ", ", view.extents[static_cast<std::size_t>(d)]);
  }
  return "[" + text + "]";
}

// The arrays of one group as stored_mask.hpp reads them.
class ViewedArrays {
 public:
  ViewedArrays(const StoredViews& views, std::int64_t group) : views_(&views), group_(group) {}

  template <class T>
  Result<void> read(const char* name, std::vector<T>& array, ArrayType type, ArrayShape shape) {
    FDMA_TRY(const TensorView view, checked_view(spec_of(name, type, shape)));
    const auto bytes = static_cast<std::size_t>(view.num_elements() * io::size_bytes(type));
    if constexpr (std::is_same_v<T, TileRun>) {
      const auto* columns = static_cast<const std::int64_t*>(view.data);
      Result<std::vector<TileRun>> runs =
          io::unpack_runs({columns, static_cast<std::size_t>(view.num_elements())});
      if (!runs) return corrupt(fmt::format("{}: {}", place(name), runs.error().message));
      array = *std::move(runs);
    } else {
      array.resize(bytes / sizeof(T));
      if (bytes > 0) std::memcpy(array.data(), view.data, bytes);
    }
    return {};
  }

  Result<bool> has_patterns() const { return views_->contains("patterns"); }

  Result<void> expect_no_more() const {
    for (const auto& [name, view] : *views_) {
      if (!taken_.contains(name)) return corrupt(fmt::format("{}: unknown array", place(name)));
    }
    return {};
  }

 private:
  std::string place(std::string_view name) const {
    return fmt::format("groups/{}/{}", group_, name);
  }

  Result<TensorView> checked_view(const StoredArraySpec& spec) {
    const auto found = views_->find(spec.name);
    if (found == views_->end()) return corrupt(fmt::format("{}: missing", place(spec.name)));
    taken_.insert(spec.name);
    const TensorView& view = found->second;
    if (view.dtype != spec.dtype || view.device != Device::cpu) {
      return corrupt(
          fmt::format("{}: type {}{}, expected {}", place(spec.name), to_string(view.dtype),
                      view.device == Device::cpu ? "" : " on a GPU", to_string(spec.dtype)));
    }
    const bool is_expected = view.rank == spec.rank && view.extents[0] >= spec.min_rows &&
                             view.extents[0] <= spec.max_rows &&
                             (spec.rank == 1 || view.extents[1] == spec.width);
    if (!is_expected) {
      return corrupt(fmt::format("{}: extents {}, expected [{}{}{}]", place(spec.name),
                                 extents_text(view),
                                 spec.min_rows == spec.max_rows ? "" : "at most ", spec.max_rows,
                                 spec.rank == 1 ? "" : fmt::format(", {}", spec.width)));
    }
    if (view.num_elements() > 0 && !view.is_contiguous()) {
      return corrupt(fmt::format("{}: expected a contiguous array", place(spec.name)));
    }
    return view;
  }

  const StoredViews* views_;
  std::int64_t group_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace

std::vector<StoredArraySpec> stored_array_specs(MaskFormat format, std::int64_t q_len,
                                                std::int64_t kv_len, BlockShape block) {
  switch (format) {
    case MaskFormat::segment:
      return specs_of<SegmentMask>(q_len, kv_len, block);
    case MaskFormat::parametric:
      return specs_of<ParametricMask>(q_len, kv_len, block);
    case MaskFormat::bitset:
      return specs_of<BlockBitset>(q_len, kv_len, block);
    case MaskFormat::bcsr:
      return specs_of<BcsrMask>(q_len, kv_len, block);
    case MaskFormat::columns:
      return specs_of<ColumnIntervals>(q_len, kv_len, block);
    case MaskFormat::dense:
      break;
  }
  return specs_of<DenseBits>(q_len, kv_len, block);
}

std::vector<StoredArray> stored_arrays(const BlockMask& mask, std::int64_t group) {
  return std::visit(
      [&](const auto& groups) { return arrays_of(groups[static_cast<std::size_t>(group)]); },
      mask.groups);
}

Result<BlockMask> mask_from_stored_arrays(MaskFormat format, BlockMask header,
                                          std::span<const StoredViews> groups) {
  BlockMask mask = std::move(header);
  for (const Result<void>& valid : {validate(mask.shape), validate(mask.block)}) {
    if (!valid) return corrupt(valid.error().message);
  }
  const std::int64_t num_pairs = mask.shape.num_batches * mask.shape.num_heads;
  if (std::ssize(mask.group_of) != num_pairs) {
    return corrupt(fmt::format("{}: {} entries, expected num_batches * num_heads = {}",
                               io::kGroupMapName, mask.group_of.size(), num_pairs));
  }
  FDMA_TRY(const std::vector<std::size_t> first, io::first_pairs(mask.group_of));
  if (first.size() != groups.size()) {
    return corrupt(fmt::format("{}: {} groups, but {} has {}", io::kGroupsName, groups.size(),
                               io::kGroupMapName, first.size()));
  }
  FDMA_TRY_VOID(io::read_groups(format, mask, [&](std::int64_t g) -> Result<ViewedArrays> {
    return ViewedArrays(groups[static_cast<std::size_t>(g)], g);
  }));
  const Result<void> valid = validate(mask, ValidationLevel::structure);
  if (!valid) return corrupt(valid.error().message);
  return mask;
}

}  // namespace fdma
