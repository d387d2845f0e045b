// The element types of users' dense masks.
#pragma once

#include <ostream>

#include "h5_edits.hpp"

namespace fdma::testing {

struct Element {
  const char* name;
  hid_t (*make_type)();
  bool is_floating;
};
inline const Element kElements[] = {
    {"boolean", make_boolean_type, false},
    {"int8", [] { return H5Tcopy(H5T_STD_I8LE); }, false},
    {"uint8", [] { return H5Tcopy(H5T_STD_U8LE); }, false},
    {"int16", [] { return H5Tcopy(H5T_STD_I16LE); }, false},
    {"uint16_big", [] { return H5Tcopy(H5T_STD_U16BE); }, false},
    {"int32", [] { return H5Tcopy(H5T_STD_I32LE); }, false},
    {"int32_big", [] { return H5Tcopy(H5T_STD_I32BE); }, false},
    {"uint32", [] { return H5Tcopy(H5T_STD_U32LE); }, false},
    {"int64", [] { return H5Tcopy(H5T_STD_I64LE); }, false},
    {"uint64_big", [] { return H5Tcopy(H5T_STD_U64BE); }, false},
    {"bitfield8", [] { return H5Tcopy(H5T_STD_B8LE); }, false},
    {"float16", [] { return make_half_type(H5T_ORDER_LE); }, true},
    {"float16_big", [] { return make_half_type(H5T_ORDER_BE); }, true},
    {"float32", [] { return H5Tcopy(H5T_IEEE_F32LE); }, true},
    {"float32_big", [] { return H5Tcopy(H5T_IEEE_F32BE); }, true},
    {"float64", [] { return H5Tcopy(H5T_IEEE_F64LE); }, true},
    {"float64_big", [] { return H5Tcopy(H5T_IEEE_F64BE); }, true},
};
inline std::ostream& operator<<(std::ostream& out, const Element& element) {
  return out << element.name;
}

}  // namespace fdma::testing
