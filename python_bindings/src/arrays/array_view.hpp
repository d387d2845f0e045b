// Arrays of any framework as TensorView, without copies, and arrays that FDMA allocates.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "fdma/base/tensor_view.hpp"

namespace fdma::python {

/// The memory that holds an array: the host's, or that of a CUDA device.
struct Place {
  Device device = Device::cpu;
  int index = 0;  ///< index of the CUDA device
  friend bool operator==(const Place&, const Place&) = default;
};
/// "the host", "cuda:0"
std::string to_string(const Place& place);

/// What to do with a PyTorch tensor that requires a gradient.
enum class Gradients {
  refused,    ///< no gradient is computed here, and detaching the tensor in silence would lose it
  elsewhere,  ///< the caller computes the gradient
};

/// An array that Python owns. `owner` keeps it alive; if `owner` is not set, the caller's argument
/// does. Copying and destroying it needs the GIL.
struct InputArray {
  nanobind::ndarray<nanobind::ro> owner;
  TensorView view;
  Place place;
};
struct OutputArray {
  nanobind::object object;    ///< the object that Python sees
  nanobind::ndarray<> owner;  ///< not set if `object` owns the memory
  MutableTensorView view;
  Place place;
};

/// The array behind `object`, by DLPack or else by the buffer protocol. `name` is the argument's
/// name, for errors. An array on a CUDA device is taken as it is, without waiting for any stream.
/// `object` must outlive the result.
///
/// Errors  invalid_argument: not an array, or more than 4 dimensions; unsupported: an element type
///         without a DType, or a device that is neither the host nor a CUDA device
InputArray input_array(std::string_view name, nanobind::handle object,
                       Gradients gradients = Gradients::refused);

/// The same for an array that is written to. An array that is read-only, or has two elements at one
/// address, is an invalid_argument error.
OutputArray output_array(std::string_view name, nanobind::handle object,
                         Gradients gradients = Gradients::refused);

/// Throws unsupported if an array is not in host memory.
void check_on_host(std::string_view name, const Place& place);

/// Throws invalid_argument if an array is not on `expected`.
void check_on(std::string_view name, const Place& got, const Place& expected);

/// Throws invalid_argument if the memory from the first to the last element of `out` overlaps that
/// of `input`, since the call would overwrite elements that it has still to read.
void check_apart(std::string_view out_name, const TensorView& out, std::string_view input_name,
                 const TensorView& input);

/// A new row-major array, aligned to 64 bytes, not initialised, as an object with __dlpack__
/// (and on the host the buffer protocol, unless its elements are bfloat16). A device must be the
/// current one; freeing an array there waits for the kernels that use it.
///
/// Errors  out_of_memory, cuda
OutputArray new_array(std::string_view name, DType dtype, int rank,
                      const std::array<std::int64_t, kMaxRank>& extents, const Place& place = {});

/// The DType of a NumPy name: float32, float16 and so on. Errors: invalid_argument, which names
/// `name`.
DType parse_dtype(std::string_view name, std::string_view text);

nanobind::dlpack::dtype dlpack_dtype(DType dtype);

/// bfloat16_from_bits and bits_from_bfloat16: NumPy has no bfloat16 of its own.
void bind_arrays(nanobind::module_& module);

}  // namespace fdma::python
