#include "arrays/call_stream.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "arrays/python_error.hpp"
#include "arrays/tensor_exchange.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

Stream stream_from(nb::handle address) {
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(nb::int_(address)));
}

// The package that defines the object's type: "torch" for torch.Tensor.
std::string package_of(nb::handle object) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  const auto module = nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str(""))));
  return module.substr(0, module.find('.'));
}

// The framework is asked at run time, since this module is built without any of them.
Stream current_stream_of(nb::handle array, int device) {
  if (const std::optional<void*> stream = exchanged_stream(array, device)) {
    return reinterpret_cast<Stream>(*stream);
  }
  const std::string package = package_of(array);
  if (package == "torch") {
    const nb::object cuda = nb::module_::import_("torch.cuda");
    return stream_from(cuda.attr("current_stream")(device).attr("cuda_stream"));
  }
  if (package == "cupy") {
    return stream_from(nb::module_::import_("cupy.cuda").attr("get_current_stream")().attr("ptr"));
  }
  return nullptr;
}

Stream stream_of(nb::handle stream, nb::handle array, int device) {
  if (stream.is_none()) return current_stream_of(array, device);
  if (nb::isinstance<nb::int_>(stream)) return stream_from(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) {
    return stream_from(nb::cast<nb::tuple>(stream.attr("__cuda_stream__")())[1]);
  }
  for (const char* name : {"cuda_stream", "ptr"}) {
    if (nb::hasattr(stream, name)) return stream_from(stream.attr(name));
  }
  const auto type = nb::cast<std::string>(
      nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(stream.ptr()))).attr("__name__")));
  throw nb::type_error(
      fmt::format("stream: expected None, an integer or an object with __cuda_stream__, got {}",
                  type)
          .c_str());
}

void check_host_stream(nb::handle stream) {
  if (stream.is_none()) return;
  if (nb::isinstance<nb::int_>(stream) && nb::cast<std::int64_t>(stream) == 0) return;
  refuse(ErrorCode::invalid_argument, fmt::format("stream: expected None or 0 on the CPU, got {}",
                                                  nb::cast<std::string>(nb::str(stream))));
}

}  // namespace

CallStream::CallStream(const Place& place, nb::handle stream, nb::handle array) {
  if (place.device == Device::cpu) {
    check_host_stream(stream);
    return;
  }
  Result<CurrentDevice> current = CurrentDevice::make(place.index);
  if (!current) value_or_throw(check_backend(backend_for(Device::cuda)));
  device_.emplace(value_or_throw(std::move(current)));
  stream_ = stream_of(stream, array, place.index);
}

}  // namespace fdma::python
