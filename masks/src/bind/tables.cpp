#include "bind/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "fdma/masks/mask_names.hpp"

namespace fdma {
namespace {

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }
Error mismatch(std::string message) { return {ErrorCode::shape_mismatch, std::move(message)}; }

bool is_integer(DType dtype) {
  return dtype != DType::boolean && dtype != DType::float16 && dtype != DType::bfloat16 &&
         dtype != DType::float32 && dtype != DType::float64;
}

// A row-major copy, element by element.
std::shared_ptr<const void> copy_contiguous(const TensorView& view) {
  const auto bytes = static_cast<std::size_t>(size_bytes(view.dtype));
  auto copy = std::make_shared<std::vector<std::byte>>();
  copy->resize(static_cast<std::size_t>(view.num_elements()) * bytes);
  std::array<std::int64_t, kMaxRank> index{};
  std::byte* out = copy->data();
  for (std::int64_t i = 0; i < view.num_elements(); ++i, out += bytes) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * view.strides[d];
    std::memcpy(
        out, static_cast<const std::byte*>(view.data) + offset * static_cast<std::int64_t>(bytes),
        bytes);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < view.extents[d]) break;
      index[d] = 0;
    }
  }
  const void* data = copy->data();
  return {std::move(copy), data};
}

Result<IrTable> make_table(const std::string& name, const TensorView& view) {
  if (view.device != Device::cpu)
    return invalid(fmt::format("table '{}': expected a host array, got device memory", name));
  if (view.rank < 0 || view.rank > kMaxRank)
    return mismatch(fmt::format("table '{}': rank 0 to 4, got {}", name, view.rank));
  if (view.dtype != DType::boolean && !is_integer(view.dtype))
    return invalid(fmt::format("table '{}': expected boolean or integer entries, got {}", name,
                               to_string(view.dtype)));
  IrTable table;
  table.name = name;
  table.rank = view.rank;
  table.dtype = view.dtype;
  for (int d = 0; d < view.rank; ++d) {
    table.extents[d] = view.extents[static_cast<std::size_t>(d)];
    if (table.extents[d] < 0)
      return mismatch(fmt::format("table '{}': extent {} is {}", name, d, table.extents[d]));
  }
  static constexpr std::int64_t kNoEntries = 0;
  const std::int64_t count = view.num_elements();
  if (count == 0) {
    table.data = &kNoEntries;
    if (view.dtype == DType::uint64) table.dtype = DType::int64;
    return table;
  }
  if (view.data == nullptr)
    return invalid(fmt::format("table '{}': {} entries, but no data", name, count));
  table.data = view.data;
  if (!view.is_contiguous()) {
    table.owner = copy_contiguous(view);
    table.data = table.owner.get();
  }
  if (view.dtype == DType::uint64) {
    const auto* entries = static_cast<const std::uint64_t*>(table.data);
    const auto* const beyond = std::find_if(entries, entries + count, [](std::uint64_t entry) {
      return entry > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    });
    if (beyond != entries + count)
      return invalid(fmt::format("table '{}': entry {} is {}, beyond the 64-bit signed integers",
                                 name, beyond - entries, *beyond));
    table.dtype = DType::int64;
  }
  return table;
}

std::string suggestion(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::vector<std::string> near = nearest_names(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near[0]);
}

}  // namespace

std::string describe(const IrTable& table) {
  std::string text(to_string(table.dtype));
  text += " [";
  for (int d = 0; d < table.rank; ++d)
    text += (d > 0 ? ", " : "") + std::to_string(table.extents[d]);
  return text + "]";
}

IrTable slice_of(const IrTable& table, std::int64_t i) {
  IrTable part = table;
  std::int64_t entries = 1;
  for (int d = 1; d < table.rank; ++d) entries *= table.extents[d];
  part.rank = table.rank - 1;
  for (int d = 0; d < 4; ++d) part.extents[d] = d < part.rank ? table.extents[d + 1] : 1;
  part.data = static_cast<const char*>(table.data) + i * entries * size_bytes(table.dtype);
  return part;
}

Result<BoundTables> BoundTables::make(const Tables& tables, const std::vector<std::string>& names,
                                      const MaskShape& shape) {
  BoundTables bound;
  bound.shape_ = shape;
  const auto is_mentioned = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& name : names) {
    const auto found = tables.find(name);
    if (found == tables.end()) {
      std::vector<std::string_view> unused;
      for (const auto& [other, view] : tables)
        if (!is_mentioned(other)) unused.push_back(other);
      return invalid(fmt::format("table '{}' is used in the mask, but not given{}", name,
                                 suggestion(name, unused)));
    }
    FDMA_TRY(IrTable table, make_table(name, found->second));
    bound.tables_.emplace(name, std::move(table));
  }
  for (const auto& [name, view] : tables) {
    if (is_mentioned(name)) continue;
    const std::vector<std::string_view> mentioned(names.begin(), names.end());
    return invalid(fmt::format("table '{}' is given, but not used in the mask{}", name,
                               suggestion(name, mentioned)));
  }
  return bound;
}

Result<IrTable> BoundTables::of_element(const TableRequest& request, std::int64_t b) const {
  IrTable table = whole(request.table);
  const auto expected = [&] {
    std::string last(request.extent_name);
    if (request.last_extent >= 0) last += fmt::format(" = {}", request.last_extent);
    const std::string own = request.rank == 0 ? "" : request.rank == 1 ? last : "n, " + last;
    const std::string batch = fmt::format("batch = {}", shape_.num_batches);
    return request.rank == 0 ? fmt::format("[{}]", batch)
                             : fmt::format("[{}] or [{}, {}]", own, batch, own);
  };
  const auto wrong_shape = [&] {
    return mismatch(fmt::format("{}: table '{}': expected {}, got {}", request.use, request.table,
                                expected(), describe(table)));
  };
  if ((table.dtype == DType::boolean) != request.is_boolean)
    return invalid(fmt::format("{}: table '{}': expected {} entries, got {}", request.use,
                               request.table, request.is_boolean ? "boolean" : "integer",
                               describe(table)));
  if (table.rank != request.rank && table.rank != request.rank + 1) return wrong_shape();
  if (request.rank == 0 && table.rank != 1) return wrong_shape();
  if (table.rank > 0 && request.rank > 0 && request.last_extent >= 0 &&
      table.extents[table.rank - 1] != request.last_extent)
    return wrong_shape();
  if (table.rank == request.rank + 1) {
    if (table.extents[0] != shape_.num_batches) return wrong_shape();
    table = slice_of(table, b);
  }
  if (request.rank == 1 && request.own_extent >= 0) table.extents[0] = request.own_extent;
  return table;
}

}  // namespace fdma
