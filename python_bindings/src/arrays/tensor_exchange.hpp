// Describes a tensor by one C call if its framework offers DLPack's exchange interface.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace fdma::python {

/// A DLTensor, in the memory layout that DLPack gives it. Extents and strides are the framework's
/// and live as long as the tensor is not changed; strides are in elements.
struct ExchangedTensor {
  void* data_begin = nullptr;
  std::int32_t device_kind = 0;
  std::int32_t device_index = 0;
  std::int32_t num_dimensions = 0;
  nanobind::dlpack::dtype element{};
  std::int64_t* extents = nullptr;
  std::int64_t* strides = nullptr;
  std::uint64_t byte_offset = 0;

  // These functions have the names that nanobind's arrays use.
  int device_type() const { return device_kind; }
  int device_id() const { return device_index; }
  std::size_t ndim() const { return static_cast<std::size_t>(num_dimensions); }
  nanobind::dlpack::dtype dtype() const { return element; }
  std::size_t shape(std::size_t i) const { return static_cast<std::size_t>(extents[i]); }
  std::int64_t stride(std::size_t i) const { return strides[i]; }
  void* data() const { return static_cast<char*>(data_begin) + byte_offset; }
};

/// The description of `object` in place, without a copy, a reference or a synchronisation. It is
/// empty if the object's own type (not one that it derives from) offers no such interface, or if
/// the object does not describe itself. The caller holds the GIL. The result is valid while the
/// caller holds the object.
std::optional<ExchangedTensor> exchanged(nanobind::handle object);

/// The current stream on a CUDA device of the framework that `object` belongs to. It is empty if
/// the object's type offers no such interface.
std::optional<void*> exchanged_stream(nanobind::handle object, int device);

}  // namespace fdma::python
