// Writing tensors: contiguous little-endian datasets under the root group.
#include <fmt/format.h>

#include <new>
#include <set>

#include "fdma/io/tensor_dataset.hpp"
#include "io/hdf5/output_file.hpp"
#include "io/hdf5/tensor_type.hpp"

namespace fdma {
namespace io {
namespace {

constexpr std::size_t kMaxAttributeBytes = 32000;  // an object header holds 64 KiB in all

Result<void> check_arguments(const std::vector<NamedTensor>& tensors,
                             const std::vector<FileAttribute>& attributes) {
  const auto wrong = [](const std::string& text) {
    return Error{ErrorCode::invalid_argument, text};
  };
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!is_link_name(name)) {
      return wrong(fmt::format("tensor name '{}': expected 1 to 255 bytes without '/'", name));
    }
    if (!names.insert(name).second) return wrong(fmt::format("tensor '{}' is given twice", name));
    if (tensor.dtype != DType::float32 && tensor.dtype != DType::float16 &&
        tensor.dtype != DType::bfloat16) {
      return wrong(fmt::format("tensor '{}': expected float32, float16 or bfloat16, got {}", name,
                               to_string(tensor.dtype)));
    }
    if (tensor.device != Device::cpu || !tensor.is_contiguous()) {
      return wrong(fmt::format("tensor '{}': expected a contiguous tensor on the host", name));
    }
  }
  names.clear();
  for (const auto& [name, value] : attributes) {
    if (!is_link_name(name)) {
      return wrong(fmt::format("attribute name '{}': expected 1 to 255 bytes without '/'", name));
    }
    if (!names.insert(name).second) {
      return wrong(fmt::format("attribute '{}' is given twice", name));
    }
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr &&
        (text->size() > kMaxAttributeBytes || text->find('\0') != std::string::npos)) {
      return wrong(fmt::format("attribute '{}': longer than {} bytes or with a zero byte", name,
                               kMaxAttributeBytes));
    }
  }
  return {};
}

void write_tensor(hid_t file, const NamedTensor& named) {
  const TensorView& tensor = named.tensor;
  const char* name = named.name.c_str();
  hsize_t dims[kMaxRank] = {};
  for (int d = 0; d < tensor.rank; ++d) {
    dims[d] = static_cast<hsize_t>(tensor.extents[static_cast<std::size_t>(d)]);
  }
  const Handle type = tensor_type(tensor.dtype);
  const Handle space(
      tensor.rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(tensor.rank, dims, nullptr),
      H5Sclose);
  const Handle creation = dataset_creation();
  need(type && space, name);
  const Handle dataset(
      H5Dcreate2(file, name, type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      H5Dclose);
  need(static_cast<bool>(dataset), name);
  if (tensor.dtype == DType::bfloat16) {
    write_attribute(dataset.get(), kDTypeAttribute, std::string(kBfloat16Name));
  }
  if (tensor.num_elements() == 0) return;
  need(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data) >= 0, name);
}

}  // namespace
}  // namespace io

Result<void> write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                           const std::vector<FileAttribute>& attributes) {
  try {
    FDMA_TRY_VOID(io::check_arguments(tensors, attributes));
    return io::write_file(path, [&](hid_t file, const io::WriteTarget& target) {
      for (const FileAttribute& attribute : attributes) {
        const char* name = attribute.name.c_str();
        std::visit([&](const auto& value) { io::write_attribute(file, name, value); },
                   attribute.value);
      }
      for (const NamedTensor& named : tensors) {
        io::write_tensor(file, named);
        io::need(target.error_number == 0, named.name.c_str());
      }
    });
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

}  // namespace fdma
