#include "table_set.hpp"

#include <fmt/format.h>

#include <cstring>

namespace fdma::reference {

void TableSet::add(const std::string& name, DType dtype, const std::vector<std::int64_t>& extents,
                   const std::vector<std::int64_t>& values) {
  Array array{dtype, extents, values, {}};
  const auto element_bytes = static_cast<std::size_t>(size_bytes(dtype));
  // The storage has more words than the elements need, so that empty tables have an address too.
  array.storage.resize(values.size() * element_bytes / 8 + 2);
  auto* bytes = reinterpret_cast<unsigned char*>(array.storage.data());
  for (std::size_t i = 0; i < values.size(); ++i)  // little-endian: the low bytes come first
    std::memcpy(bytes + i * element_bytes, &values[i], element_bytes);
  arrays_.insert_or_assign(name, std::move(array));
}

Tables TableSet::views() const {
  Tables tables;
  for (const auto& [name, array] : arrays_)
    tables[name] =
        make_contiguous_view(array.storage.data(), array.dtype,
                             static_cast<int>(array.extents.size()), array.extents.data());
  return tables;
}

std::string TableSet::describe() const {
  std::string text;
  for (const auto& [name, array] : arrays_)
    text += fmt::format("@{} = {} [{}]: {}\n", name, to_string(array.dtype),
                        fmt::join(array.extents, ", "), fmt::join(array.values, " "));
  return text;
}

}  // namespace fdma::reference
