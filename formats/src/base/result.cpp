#include "fdma/base/result.hpp"

namespace fdma {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::syntax:
      return "syntax";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::shape_mismatch:
      return "shape_mismatch";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::corrupt_file:
      return "corrupt_file";
    case ErrorCode::io:
      return "io";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::cuda:
      return "cuda";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace fdma
