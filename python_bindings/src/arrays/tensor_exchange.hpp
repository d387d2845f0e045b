// Tensors described by one C call, where their framework offers DLPack's exchange interface.
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

  // The words of nanobind's arrays.
  int device_type() const { return device_kind; }
  int device_id() const { return device_index; }
  std::size_t ndim() const { return static_cast<std::size_t>(num_dimensions); }
  nanobind::dlpack::dtype dtype() const { return element; }
  std::size_t shape(std::size_t i) const { return static_cast<std::size_t>(extents[i]); }
  std::int64_t stride(std::size_t i) const { return strides[i]; }
  void* data() const { return static_cast<char*>(data_begin) + byte_offset; }
};

/// `object` described in place, without a copy, a reference or a synchronisation; nothing for an
/// object whose own type (not one that it derives from) offers no such interface, or that does not
/// describe itself. The GIL is held; valid while the caller holds the object.
std::optional<ExchangedTensor> exchanged(nanobind::handle object);

/// The current stream of the framework that `object` is of, on a CUDA device; nothing where
/// `exchanged` gives nothing.
std::optional<void*> exchanged_stream(nanobind::handle object, int device);

}  // namespace fdma::python
