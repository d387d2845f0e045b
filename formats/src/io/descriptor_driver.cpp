#include "descriptor_driver.hpp"

#include <H5FDpublic.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fdma::io {
namespace {

constexpr haddr_t kMaxAddress = (haddr_t{1} << 62);

struct DriverFile {
  H5FD_t base;  // first, as HDF5 casts between the two
  WriteTarget* target;
  haddr_t eoa;  // end of what HDF5 has allocated
  haddr_t eof;  // end of what was written
};

// The property list stores a pointer to the target by value.
struct DriverInfo {
  WriteTarget* target;
};

DriverFile* as_file(H5FD_t* file) { return reinterpret_cast<DriverFile*>(file); }
const DriverFile* as_file(const H5FD_t* file) { return reinterpret_cast<const DriverFile*>(file); }

H5FD_t* open_file(const char*, unsigned, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  auto* file = new (std::nothrow) DriverFile{};
  if (file == nullptr) return nullptr;
  file->target = info->target;
  return &file->base;
}

herr_t close_file(H5FD_t* file) {
  delete as_file(file);
  return 0;
}

int compare_files(const H5FD_t* a, const H5FD_t* b) {
  const int x = as_file(a)->target->descriptor, y = as_file(b)->target->descriptor;
  return x < y ? -1 : (x > y ? 1 : 0);
}

herr_t query_features(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
  }
  return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return as_file(file)->eoa; }
herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  as_file(file)->eoa = address;
  return 0;
}
haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) {
  return std::max(as_file(file)->eof, as_file(file)->eoa);
}

herr_t read_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  auto* out = static_cast<char*>(buffer);
  auto offset = static_cast<off_t>(address);
  while (size > 0) {
    const ssize_t count = pread(as_file(file)->target->descriptor, out, size, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {  // past the end, or after a failed write: zeros
      std::memset(out, 0, size);
      break;
    }
    out += count;
    offset += count;
    size -= static_cast<size_t>(count);
  }
  return 0;
}

herr_t write_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size,
                   const void* buffer) {
  DriverFile* self = as_file(file);
  const auto* in = static_cast<const char*>(buffer);
  auto offset = static_cast<off_t>(address);
  self->eof = std::max(self->eof, address + size);
  while (size > 0 && self->target->error_number == 0) {
    const ssize_t count = pwrite(self->target->descriptor, in, size, offset);
    if (count < 0) {
      if (errno != EINTR) self->target->error_number = errno;
      continue;
    }
    in += count;
    offset += count;
    size -= static_cast<size_t>(count);
  }
  return 0;
}

herr_t truncate_file(H5FD_t* file, hid_t, hbool_t) {
  DriverFile* self = as_file(file);
  if (self->target->error_number == 0 &&
      ftruncate(self->target->descriptor, static_cast<off_t>(self->eoa)) != 0) {
    self->target->error_number = errno;
  }
  self->eof = self->eoa;
  return 0;
}

hid_t register_driver() {
  H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(600);
#endif
  driver.name = "fdma_descriptor";
  driver.maxaddr = kMaxAddress;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open_file;
  driver.close = close_file;
  driver.cmp = compare_files;
  driver.query = query_features;
  driver.get_eoa = get_eoa;
  driver.set_eoa = set_eoa;
  driver.get_eof = get_eof;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), driver.fl_map);
  return H5FDregister(&driver);
}

}  // namespace

Handle make_descriptor_access(WriteTarget* target) {
  const Handle driver(register_driver(), H5FDunregister);
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const DriverInfo info{target};
  if (!driver || !access || H5Pset_driver(access.get(), driver.get(), &info) < 0) return {};
  return access;
}

}  // namespace fdma::io
