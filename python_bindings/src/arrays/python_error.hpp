// How an Error of FDMA becomes a Python exception: the only place that decides which one.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "fdma/base/result.hpp"

namespace fdma::python {

/// An Error on its way to Python.
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

/// The value, or its error thrown.
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

/// A count of heads, batch elements or columns; refuses one that 32 bits do not hold.
std::int32_t checked_count(std::string_view name, std::int64_t value);

/// Adds MaskSyntaxError to the module and has nanobind translate PythonError.
void bind_errors(nanobind::module_& module);

}  // namespace fdma::python
