#include "arrays/python_error.hpp"

#include <fmt/format.h>

#include <limits>

namespace nb = nanobind;

namespace fdma::python {
namespace {

// A borrowed reference; the module owns the class and is never unloaded.
PyObject* mask_syntax_error = nullptr;

PyObject* exception_type(ErrorCode code) {
  switch (code) {
    case ErrorCode::syntax:
      return mask_syntax_error;
    case ErrorCode::invalid_argument:
    case ErrorCode::shape_mismatch:
      return PyExc_ValueError;
    case ErrorCode::unsupported:
      return PyExc_NotImplementedError;
    case ErrorCode::corrupt_file:
    case ErrorCode::io:
      return PyExc_OSError;
    case ErrorCode::out_of_memory:
      return PyExc_MemoryError;
    case ErrorCode::cuda:
    case ErrorCode::internal:
      break;
  }
  return PyExc_RuntimeError;
}

}  // namespace

std::int32_t checked_count(std::string_view name, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("{}: expected a count below 2^31, got {}", name, value));
  }
  return static_cast<std::int32_t>(value);
}

void bind_errors(nb::module_& module) {
  const nb::object type = nb::steal(PyErr_NewExceptionWithDoc(
      "fdma.MaskSyntaxError",
      "A mask specification that cannot be parsed or typed; the message shows where.",
      PyExc_ValueError, nullptr));
  if (!type.is_valid()) nb::raise_python_error();
  module.attr("MaskSyntaxError") = type;
  mask_syntax_error = type.ptr();
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const PythonError& error) {
      PyErr_SetString(exception_type(error.code()), error.what());
    }
  });
}

}  // namespace fdma::python
