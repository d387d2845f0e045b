#include "io/interop/fields.hpp"

#include <fmt/format.h>

#include <cstring>
#include <limits>

namespace fdma::io {
namespace {

Error wrong(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

// Element i of an integer array, as stored.
template <class T>
T element(const OwnedTable& array, std::size_t i) {
  T value;
  std::memcpy(&value, array.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class To, class From>
Result<void> copy_values(const OwnedTable& array, const std::string& name, std::vector<To>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const From value = element<From>(array, i);
    if (!std::in_range<To>(value)) {
      return wrong(fmt::format("{}: element {} is {}, expected {} to {}", name, i, value,
                               std::numeric_limits<To>::min(), std::numeric_limits<To>::max()));
    }
    out[i] = static_cast<To>(value);
  }
  return {};
}

template <class To>
Result<std::vector<To>> values_of(const OwnedTable& array, const std::string& name) {
  std::vector<To> out(array.bytes.size() / static_cast<std::size_t>(size_bytes(array.dtype)));
  Result<void> copied;
  switch (array.dtype) {
    case DType::boolean:
    case DType::uint8:
      copied = copy_values<To, std::uint8_t>(array, name, out);
      break;
    case DType::int8:
      copied = copy_values<To, std::int8_t>(array, name, out);
      break;
    case DType::int16:
      copied = copy_values<To, std::int16_t>(array, name, out);
      break;
    case DType::uint16:
      copied = copy_values<To, std::uint16_t>(array, name, out);
      break;
    case DType::int32:
      copied = copy_values<To, std::int32_t>(array, name, out);
      break;
    case DType::uint32:
      copied = copy_values<To, std::uint32_t>(array, name, out);
      break;
    case DType::int64:
      copied = copy_values<To, std::int64_t>(array, name, out);
      break;
    case DType::uint64:
      copied = copy_values<To, std::uint64_t>(array, name, out);
      break;
    default:
      return wrong(fmt::format("{}: {}, expected integers", name, array_text(array)));
  }
  if (!copied) return copied.error();
  return out;
}

template <class T>
OwnedTable owned(const T* values, std::size_t count, DType dtype,
                 const std::vector<std::int64_t>& extents) {
  OwnedTable array;
  array.dtype = dtype;
  array.rank = static_cast<int>(extents.size());
  for (std::size_t i = 0; i < extents.size(); ++i) array.extents[i] = extents[i];
  array.bytes.resize(count * sizeof(T));
  if (count > 0) std::memcpy(array.bytes.data(), values, array.bytes.size());
  return array;
}

}  // namespace

std::string array_text(const OwnedTable& array) {
  return fmt::format("{} [{}]", to_string(array.dtype),
                     fmt::join(array.extents, array.extents + array.rank, ", "));
}

Result<const OwnedTable*> InteropFields::array(const std::string& name) {
  known_.insert(name);
  const auto found = group_.arrays.find(name);
  if (found == group_.arrays.end()) return wrong(fmt::format("{}: missing", name));
  return &found->second;
}

Result<const OwnedTable*> InteropFields::array(const std::string& name, int rank) {
  FDMA_TRY(const OwnedTable* found, array(name));
  if (found->rank != rank) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: {}, expected {} dimensions", name, array_text(*found), rank)};
  }
  return found;
}

Result<std::vector<std::uint8_t>> InteropFields::uint8_values(const std::string& name, int rank) {
  FDMA_TRY(const OwnedTable* found, array(name, rank));
  return values_of<std::uint8_t>(*found, name);
}

Result<std::vector<std::int32_t>> InteropFields::int32_values(const std::string& name, int rank) {
  FDMA_TRY(const OwnedTable* found, array(name, rank));
  return values_of<std::int32_t>(*found, name);
}

Result<std::vector<std::int64_t>> InteropFields::int64_values(const std::string& name, int rank) {
  FDMA_TRY(const OwnedTable* found, array(name, rank));
  return values_of<std::int64_t>(*found, name);
}

Result<std::vector<std::uint64_t>> InteropFields::uint64_values(const std::string& name, int rank) {
  FDMA_TRY(const OwnedTable* found, array(name, rank));
  return values_of<std::uint64_t>(*found, name);
}

Result<std::int64_t> InteropFields::integer(const std::string& name) {
  FDMA_TRY(const OwnedTable* found, array(name));
  FDMA_TRY(const std::vector<std::int64_t> values, values_of<std::int64_t>(*found, name));
  if (values.size() == 1) return values.front();
  return Error{ErrorCode::shape_mismatch,
               fmt::format("{}: {}, expected one number", name, array_text(*found))};
}

Result<std::int64_t> InteropFields::integer(const std::string& name, std::int64_t fallback) {
  return may_have(name) ? integer(name) : fallback;
}

Result<void> InteropFields::expect_no_more() const {
  for (const auto& [name, array] : group_.arrays) {
    if (known_.find(name) != known_.end()) continue;
    return wrong(fmt::format("{}: unknown field; expected {}", name, fmt::join(known_, ", ")));
  }
  return {};
}

OwnedTable array_of(const std::vector<std::int32_t>& values,
                    const std::vector<std::int64_t>& extents) {
  return owned(values.data(), values.size(), DType::int32, extents);
}
OwnedTable array_of(const std::vector<std::int64_t>& values,
                    const std::vector<std::int64_t>& extents) {
  return owned(values.data(), values.size(), DType::int64, extents);
}
OwnedTable array_of(const std::vector<std::uint64_t>& values,
                    const std::vector<std::int64_t>& extents) {
  return owned(values.data(), values.size(), DType::uint64, extents);
}
OwnedTable array_of(const std::vector<std::uint8_t>& bytes, DType dtype,
                    const std::vector<std::int64_t>& extents) {
  return owned(bytes.data(), bytes.size(), dtype, extents);
}
OwnedTable scalar_of(std::int64_t value) { return owned(&value, 1, DType::int64, {}); }
OwnedTable scalar_of(bool value) {
  const std::uint8_t byte = value ? 1 : 0;
  return owned(&byte, 1, DType::boolean, {});
}

}  // namespace fdma::io
