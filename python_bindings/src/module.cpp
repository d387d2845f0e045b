// Module _fdma.
#include <cstdlib>

#include "arrays/array_view.hpp"
#include "arrays/python_error.hpp"
#include "bindings.hpp"

NB_MODULE(_fdma, module) {
  // A user's module may hold a mask until the process ends; nanobind must not report it as a leak.
  nanobind::set_leak_warnings(std::getenv("FDMA_LEAK_WARNINGS") != nullptr);
  module.attr("__doc__") =
      "FDMA: masks compiled from short expressions, and attention that touches only\n"
      "what they keep.\n\n"
      "This module is private; the package fdma is its interface. MaskSyntaxError\n"
      "means a specification that cannot be parsed, ValueError a wrong argument or\n"
      "shape, NotImplementedError a call that this build, this device or these\n"
      "tensors do not allow, MemoryError a result that does not fit, OSError a file\n"
      "that cannot be read, and RuntimeError an error of CUDA.";
  module.attr("__version__") = FDMA_VERSION;
  fdma::python::bind_errors(module);
  fdma::python::bind_arrays(module);
  fdma::python::bind_block_mask(module);
  fdma::python::bind_masks(module);
  fdma::python::bind_attention(module);
  fdma::python::bind_attention_call(module);
  fdma::python::bind_cached_calls(module);
  fdma::python::bind_merge(module);
  fdma::python::bind_select(module);
  fdma::python::bind_device_select(module);
  fdma::python::bind_dynamic_mask(module);
  fdma::python::bind_cusparse(module);
  fdma::python::bind_expr(module);
  fdma::python::bind_estimate(module);
  fdma::python::bind_drawing(module);
  fdma::python::bind_interop(module);
}
