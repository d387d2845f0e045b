// Turns an Error of FDMA into a Python exception. No other place decides which exception it is.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "fdma/base/result.hpp"

namespace fdma::python {

/// An Error as a C++ exception, which nanobind translates into a Python exception.
///
/// Mapping     syntax: _fdma.MaskSyntaxError (a ValueError); invalid_argument, shape_mismatch:
///             ValueError; unsupported: NotImplementedError; corrupt_file, io: OSError;
///             out_of_memory: MemoryError; cuda, internal: RuntimeError
class PythonError : public std::exception {
 public:
  explicit PythonError(Error error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  ErrorCode code() const noexcept { return error_.code; }

 private:
  Error error_;
};

/// Returns the value, or throws the error.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw PythonError(std::move(result).error());
  return *std::move(result);
}
inline void value_or_throw(Result<void> result) {
  if (!result) throw PythonError(std::move(result).error());
}

[[noreturn]] inline void refuse(ErrorCode code, std::string message) {
  throw PythonError({code, std::move(message)});
}

/// `value`, a count of heads, batch elements or columns, as 32 bits. Throws if it does not fit.
std::int32_t checked_count(std::string_view name, std::int64_t value);

/// Adds MaskSyntaxError to the module and has nanobind translate PythonError.
void bind_errors(nanobind::module_& module);

}  // namespace fdma::python
