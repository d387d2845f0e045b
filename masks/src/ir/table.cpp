// Access to one entry of a program's table.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "fdma/masks/mask_ir.hpp"

namespace fdma {
namespace {

template <class T>
std::int64_t entry(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const T*>(data) + index, sizeof value);
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::int64_t IrTable::at(std::int64_t index) const {
  if (is_runs()) {
    const auto run = std::upper_bound(run_ends.begin(), run_ends.end(), index) - run_ends.begin();
    return run_values[static_cast<std::size_t>(run)];
  }
  switch (dtype) {
    case DType::boolean:
      return entry<std::uint8_t>(data, index) != 0 ? 1 : 0;
    case DType::int8:
      return entry<std::int8_t>(data, index);
    case DType::int16:
      return entry<std::int16_t>(data, index);
    case DType::int32:
      return entry<std::int32_t>(data, index);
    case DType::int64:
    case DType::uint64:  // binding refuses entries above the largest int64
      return entry<std::int64_t>(data, index);
    case DType::uint8:
      return entry<std::uint8_t>(data, index);
    case DType::uint16:
      return entry<std::uint16_t>(data, index);
    case DType::uint32:
      return entry<std::uint32_t>(data, index);
    default:
      return 0;  // floating tables never reach a program
  }
}

}  // namespace fdma
