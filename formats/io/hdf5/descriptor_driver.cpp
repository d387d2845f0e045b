#include "io/hdf5/descriptor_driver.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/hdf5/h5_driver.hpp"

namespace fdma::io {
namespace {

using Driver = H5Driver<WriteTarget>;

int compare_files(const H5FD_t* a, const H5FD_t* b) {
  const int x = Driver::as_file(a)->state->descriptor, y = Driver::as_file(b)->state->descriptor;
  return x < y ? -1 : (x > y ? 1 : 0);
}

herr_t query_features(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
  }
  return 0;
}

haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) {
  const Driver::File* self = Driver::as_file(file);
  return std::max({self->eof, self->eoa, self->state->size_bytes});
}

herr_t read_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  auto* out = static_cast<char*>(buffer);
  auto offset = static_cast<off_t>(address);
  while (size > 0) {
    const ssize_t count = pread(Driver::as_file(file)->state->descriptor, out, size, offset);
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
  Driver::File* self = Driver::as_file(file);
  const auto* in = static_cast<const char*>(buffer);
  auto offset = static_cast<off_t>(address);
  self->eof = std::max(self->eof, address + size);
  while (size > 0 && self->state->error_number == 0) {
    const ssize_t count = pwrite(self->state->descriptor, in, size, offset);
    if (count < 0) {
      if (errno != EINTR) self->state->error_number = errno;
      continue;
    }
    in += count;
    offset += count;
    size -= static_cast<size_t>(count);
  }
  return 0;
}

herr_t truncate_file(H5FD_t* file, hid_t, hbool_t) {
  Driver::File* self = Driver::as_file(file);
  if (self->state->error_number == 0 &&
      ftruncate(self->state->descriptor, static_cast<off_t>(self->eoa)) != 0) {
    self->state->error_number = errno;
  }
  self->eof = self->state->size_bytes = self->eoa;
  return 0;
}

}  // namespace

Handle make_descriptor_access(WriteTarget* target) {
  H5FD_class_t driver = Driver::make_class("fdma_descriptor", 600);
  driver.cmp = compare_files;
  driver.query = query_features;
  driver.get_eof = get_eof;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  return Driver::access(driver, target);
}

}  // namespace fdma::io
