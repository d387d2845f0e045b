// Arrays of any framework as TensorView, without copies, and arrays that FDMA allocates.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "fdma/base/mutable_tensor_view.hpp"

namespace fdma::python {

/// Where an array lies: the host, or a CUDA device.
struct Place {
  Device device = Device::cpu;
  int index = 0;  ///< of the CUDA device
  friend bool operator==(const Place&, const Place&) = default;
};
/// "the host", "cuda:0"
std::string to_string(const Place& place);

/// What to do with a PyTorch tensor that requires a gradient.
enum class Gradients {
  refused,    ///< nothing here computes one, and to detach it in silence would lose it
  elsewhere,  ///< the caller sees to it
};

/// An array that Python owns, kept alive by its owner or, where that is not set, by the caller's
/// argument. Copied and destroyed with the GIL only.
struct InputArray {
  nanobind::ndarray<nanobind::ro> owner;
  TensorView view;
  Place place;
};
struct OutputArray {
  nanobind::object object;    ///< what Python sees
  nanobind::ndarray<> owner;  ///< not set where `object` owns the memory
  MutableTensorView view;
  Place place;
};

/// The array behind `object`: DLPack, else the buffer protocol. `name` is the argument, for errors.
/// Arrays on a CUDA device are asked for as they are, without waiting for any stream. `object`
/// outlives the result.
///
/// Errors  invalid_argument: not an array, or more than 4 dimensions; unsupported: an element type
///         without a DType, or a device that FDMA has nothing for
InputArray input_array(std::string_view name, nanobind::handle object,
                       Gradients gradients = Gradients::refused);

/// The same for an array that is written to: one that is read-only, or has two elements at one
/// address, is invalid_argument.
OutputArray output_array(std::string_view name, nanobind::handle object,
                         Gradients gradients = Gradients::refused);

/// unsupported for an array that is not in host memory.
void check_on_host(std::string_view name, const Place& place);

/// invalid_argument for an array that is not on `expected`.
void check_on(std::string_view name, const Place& got, const Place& expected);

/// invalid_argument where the memory from the first to the last element of `out` meets that of
/// `input`: what is written must not be what is still to be read.
void check_apart(std::string_view out_name, const TensorView& out, std::string_view input_name,
                 const TensorView& input);

/// A new row-major array, aligned to 64 bytes, not initialised, as an object with __dlpack__
/// (and on the host the buffer protocol, unless its elements are bfloat16). On a device, which is
/// the current one, letting it go waits for the kernels that use it.
///
/// Errors  out_of_memory, cuda
OutputArray new_array(std::string_view name, DType dtype, int rank,
                      const std::array<std::int64_t, kMaxRank>& extents, const Place& place = {});

/// float32, float16, .. as the names of NumPy have it. Errors: invalid_argument, naming `name`.
DType parse_dtype(std::string_view name, std::string_view text);

nanobind::dlpack::dtype dlpack_dtype(DType dtype);

/// bfloat16_from_bits and bits_from_bfloat16: NumPy has no bfloat16 of its own.
void bind_arrays(nanobind::module_& module);

}  // namespace fdma::python
