// The batch elements and heads that a call asks for, and the NumPy arrays of its results.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "arrays/array_view.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma::python {

/// [begin, end)
using PairRange = std::pair<std::int64_t, std::int64_t>;

/// Batch elements and heads of a mask, and the longest lengths among the elements.
struct PairSelection {
  PairRange batches, heads;
  std::int64_t q_len = 0, kv_len = 0;

  /// A range that is not given means all. Errors: invalid_argument for an empty range or one
  /// outside the mask.
  PairSelection(const BlockMask& mask, std::optional<PairRange> batch,
                std::optional<PairRange> head);
  std::int64_t num_batches() const { return batches.second - batches.first; }
  std::int64_t num_heads() const { return heads.second - heads.first; }
  /// [batches, heads, rows, columns]. Errors: out_of_memory above max_bytes; `what` is the call.
  std::array<std::size_t, 4> extents(const char* what, std::int64_t rows, std::int64_t columns,
                                     std::int64_t element_bytes, std::int64_t max_bytes) const;
};

inline std::size_t num_elements(const std::array<std::size_t, 4>& extents) {
  return extents[0] * extents[1] * extents[2] * extents[3];
}

/// A NumPy array that owns `values`.
template <class T>
nanobind::object numpy_array(std::unique_ptr<T[]> values, const std::array<std::size_t, 4>& extents,
                             DType dtype) {
  T* const data = values.get();
  const nanobind::capsule owner(data,
                                [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  static_cast<void>(values.release());  // the capsule owns them now
  return nanobind::cast(nanobind::ndarray<nanobind::numpy>(data, extents.size(), extents.data(),
                                                           owner, nullptr, dlpack_dtype(dtype)));
}

}  // namespace fdma::python
