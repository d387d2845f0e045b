#include "cli/outcome.hpp"

namespace fdma::maskc {

ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::syntax:
    case ErrorCode::invalid_argument:
    case ErrorCode::shape_mismatch:
      return ExitCode::usage;
    case ErrorCode::corrupt_file:
    case ErrorCode::io:
      return ExitCode::file;
    case ErrorCode::unsupported:
    case ErrorCode::out_of_memory:
    case ErrorCode::cuda:
      return ExitCode::unsupported;
    case ErrorCode::internal:
      return ExitCode::internal;
  }
  return ExitCode::internal;
}

std::string_view to_string(ExitCode code) {
  switch (code) {
    case ExitCode::ok:
      return "ok";
    case ExitCode::mask_wrong:
      return "mask_wrong";
    case ExitCode::usage:
      return "usage";
    case ExitCode::file:
      return "file";
    case ExitCode::unsupported:
      return "unsupported";
    case ExitCode::internal:
      return "internal";
    case ExitCode::interrupted:
      return "interrupted";
  }
  return "internal";
}

}  // namespace fdma::maskc
