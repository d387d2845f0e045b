// Arrays of any framework as TensorView, without copies, and arrays that FDMA allocates.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "fdma/formats/mutable_tensor_view.hpp"

namespace fdma::python {

/// An array that Python owns, kept alive while this lives. Copied and destroyed with the GIL only.
struct InputArray {
  nanobind::ndarray<nanobind::ro> owner;
  TensorView view;
};
struct OutputArray {
  nanobind::object object;    ///< what Python sees
  nanobind::ndarray<> owner;  ///< not set for an array of new_array: `object` owns its memory
  MutableTensorView view;
};

/// The array behind `object`: DLPack, else the buffer protocol. `name` is the argument, for errors.
///
/// Errors  invalid_argument: not an array, or more than 4 dimensions; unsupported: an element type
///         without a DType, or a device without a backend
InputArray input_array(std::string_view name, nanobind::handle object);

/// The same for an array that is written to: one that is read-only, or has two elements at one
/// address, is invalid_argument.
OutputArray output_array(std::string_view name, nanobind::handle object);

/// invalid_argument where the memory from the first to the last element of `out` meets that of
/// `input`: what is written must not be what is still to be read.
void check_apart(std::string_view out_name, const TensorView& out, std::string_view input_name,
                 const TensorView& input);

/// A new row-major host array, aligned to 64 bytes, not initialised, as an object with __dlpack__
/// (and the buffer protocol, unless its elements are bfloat16). Errors: out_of_memory.
OutputArray new_array(std::string_view name, DType dtype, int rank,
                      const std::array<std::int64_t, kMaxRank>& extents);

/// float32, float16, .. as the names of NumPy have it. Errors: invalid_argument, naming `name`.
DType parse_dtype(std::string_view name, std::string_view text);

nanobind::dlpack::dtype dlpack_dtype(DType dtype);

/// bfloat16_from_bits and bits_from_bfloat16: NumPy has no bfloat16 of its own.
void bind_arrays(nanobind::module_& module);

}  // namespace fdma::python
