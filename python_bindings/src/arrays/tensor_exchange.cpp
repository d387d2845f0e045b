// In DLPack 1.3 a type may carry a capsule with a table of C functions. A call of such a function
// takes tens of nanoseconds. __dlpack__ and __dlpack_device__ are Python methods and take
// microseconds for each tensor, which would dominate a call of attention on small tensors.
#include "arrays/tensor_exchange.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kCapsule = "dlpack_exchange_api";
constexpr std::uint32_t kMajorVersion = 1;

/// The table, in the layout that DLPack gives it. Functions that are not called here are untyped
/// pointers.
struct ExchangeTable {
  std::uint32_t major, minor;
  ExchangeTable* previous;
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*describe)(void* object, ExchangedTensor* tensor);
  int (*current_stream)(int device_type, std::int32_t device, void** stream);
};

// The table that `type` itself carries. A class that derives from a framework's tensor may hold no
// memory of its own (PyTorch has such classes), so an inherited table does not count.
const ExchangeTable* table_of(PyTypeObject* type) {
  static PyTypeObject* cached_type = nullptr;  // kept alive, so that no other type gets its address
  static const ExchangeTable* cached_table = nullptr;
  if (type == cached_type) return cached_table;
  const nb::handle holder(reinterpret_cast<PyObject*>(type));
  const nb::object members = nb::getattr(holder, "__dict__", nb::none());
  if (members.is_none() || !nb::cast<bool>(members.attr("__contains__")(kAttribute))) {
    return nullptr;
  }
  const nb::object capsule = holder.attr(kAttribute);
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  if (table == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  if (table->major != kMajorVersion || table->describe == nullptr) return nullptr;
  holder.inc_ref();
  cached_type = type;
  cached_table = table;
  return table;
}

}  // namespace

std::optional<ExchangedTensor> exchanged(nb::handle object) {
  const ExchangeTable* table = table_of(Py_TYPE(object.ptr()));
  if (table == nullptr) return std::nullopt;
  ExchangedTensor tensor;
  if (table->describe(object.ptr(), &tensor) != 0 || tensor.strides == nullptr) {
    PyErr_Clear();  // the import by __dlpack__ then reports what is wrong
    return std::nullopt;
  }
  return tensor;
}

std::optional<void*> exchanged_stream(nb::handle object, int device) {
  const ExchangeTable* table = table_of(Py_TYPE(object.ptr()));
  if (table == nullptr || table->current_stream == nullptr) return std::nullopt;
  void* stream = nullptr;
  if (table->current_stream(nb::device::cuda::value, device, &stream) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  return stream;
}

}  // namespace fdma::python
