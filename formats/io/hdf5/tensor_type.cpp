#include "io/hdf5/tensor_type.hpp"

#include <bit>

namespace fdma::io {
namespace {

static_assert(std::endian::native == std::endian::little);

// A floating type of 16 bits: sign, exponent, mantissa from the top, IEEE rules.
Handle float16_type(std::size_t exponent_bits) {
  const std::size_t mantissa_bits = 15 - exponent_bits;
  const std::size_t bias = (std::size_t{1} << (exponent_bits - 1)) - 1;
  Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  if (!type || H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
      H5Tset_size(type.get(), 2) < 0 || H5Tset_ebias(type.get(), bias) < 0) {
    return {};
  }
  return type;
}

bool is_equal(hid_t type, const Handle& known) { return known && H5Tequal(type, known.get()) > 0; }

}  // namespace

Handle half_type() { return float16_type(5); }

Handle tensor_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return Handle(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    case DType::float16:
      return half_type();
    case DType::bfloat16:
      return Handle(H5Tcopy(H5T_STD_U16LE), H5Tclose);
    default:
      return {};
  }
}

std::optional<DType> tensor_dtype(hid_t type, bool is_declared_bfloat16) {
  if (H5Tequal(type, H5T_IEEE_F32LE) > 0) return DType::float32;
  if (is_equal(type, half_type())) return DType::float16;
  if (is_equal(type, float16_type(8))) return DType::bfloat16;
  if (is_declared_bfloat16 && H5Tequal(type, H5T_STD_U16LE) > 0) return DType::bfloat16;
  return {};
}

}  // namespace fdma::io
