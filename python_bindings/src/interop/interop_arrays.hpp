// The arrays of interop layouts. They are NumPy arrays, contiguous and of exactly the type in the
// signature. The Python package converts arrays to this form and reports those that it cannot.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/python_error.hpp"

namespace fdma::python {

template <class T, int rank>
using HostArray =
    nanobind::ndarray<const T, nanobind::ndim<rank>, nanobind::c_contig, nanobind::device::cpu>;

template <class Array>
auto vector_of(const Array& array) {
  return std::vector<std::remove_const_t<typename Array::Scalar>>(array.data(),
                                                                  array.data() + array.size());
}

/// Throws shape_mismatch unless the first extents of `array` are `expected`.
template <class Array>
void check_extents(std::string_view name, const Array& array,
                   std::initializer_list<std::int64_t> expected) {
  std::size_t axis = 0;
  for (const std::int64_t extent : expected) {
    if (std::cmp_equal(array.shape(axis), extent)) {
      ++axis;
      continue;
    }
    throw PythonError(
        {ErrorCode::shape_mismatch, fmt::format("{}: axis {} has {} entries, expected {}", name,
                                                axis, array.shape(axis), extent)});
  }
}

template <class T>
using NumpyArray = nanobind::ndarray<nanobind::numpy, T>;

/// A NumPy array that owns `values`. Its elements have the type As, which has the same size as T:
/// booleans, for instance, are held as uint8.
template <class T, class As = T>
NumpyArray<As> numpy_of(std::vector<T> values, std::initializer_list<std::int64_t> shape) {
  static_assert(sizeof(T) == sizeof(As));
  std::vector<std::size_t> extents;
  for (const std::int64_t extent : shape) extents.push_back(static_cast<std::size_t>(extent));
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  void* const data = kept->data();
  const nanobind::capsule owner(
      kept.get(), [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  static_cast<void>(kept.release());  // the capsule owns it now
  return NumpyArray<As>(data, extents.size(), extents.data(), owner);
}

/// block_mask_from_flex, flex_from_block_mask.
void bind_interop_flex(nanobind::module_& module);

}  // namespace fdma::python
