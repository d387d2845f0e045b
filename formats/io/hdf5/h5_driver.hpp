// The common parts of FDMA's HDF5 file drivers: a file that leads to a state of the caller, the end
// of what HDF5 has allocated, and the way into a property list.
#pragma once

#include <H5FDpublic.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "io/hdf5/h5_handle.hpp"

namespace fdma::io {

/// Parts of a driver whose files lead to a State. The caller owns the State and keeps it alive
/// until the file is closed.
///
/// Example     using Driver = H5Driver<Notes>;
///             H5FD_class_t driver = Driver::make_class("name", 600);
///             driver.cmp = ..; driver.query = ..; driver.get_eof = ..;
///             driver.read = ..; driver.write = ..;
///             H5Fopen(path, flags, Driver::access(driver, &notes).get());
template <class State>
struct H5Driver {
  struct File {
    H5FD_t base;  // first, because HDF5 casts between the two
    State* state;
    haddr_t eoa;  // end of what HDF5 has allocated
    haddr_t eof;  // end of what was written
  };

  static File* as_file(H5FD_t* file) { return reinterpret_cast<File*>(file); }
  static const File* as_file(const H5FD_t* file) { return reinterpret_cast<const File*>(file); }

  static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
    const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
    if (info == nullptr) return nullptr;
    auto* file = new (std::nothrow) File{};
    if (file == nullptr) return nullptr;
    file->state = info->state;
    return &file->base;
  }

  /// A class that is complete except for cmp, query, get_eof, read and write. `value` identifies
  /// it; it is 512 or more, where HDF5 leaves room for drivers that it does not know.
  static H5FD_class_t make_class(const char* name, int value) {
    H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(value);
#else
    static_cast<void>(value);
#endif
    driver.name = name;
    driver.maxaddr = haddr_t{1} << 62;
    driver.fc_degree = H5F_CLOSE_STRONG;
    driver.fapl_size = sizeof(Info);
    driver.open = open;
    driver.close = close;
    driver.get_eoa = get_eoa;
    driver.set_eoa = set_eoa;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), driver.fl_map);
    return driver;
  }

  /// A file access property list for files with this driver and `state`; invalid if HDF5 refuses.
  static Handle access(const H5FD_class_t& driver, State* state) {
    const Handle id(H5FDregister(&driver), H5FDunregister);
    Handle list(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    const Info info{state};
    if (!id || !list || H5Pset_driver(list.get(), id.get(), &info) < 0) return {};
    return list;
  }

 private:
  // The property list stores a pointer to the state by value.
  struct Info {
    State* state;
  };

  static herr_t close(H5FD_t* file) {
    delete as_file(file);
    return 0;
  }
  static haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return as_file(file)->eoa; }
  static herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
    as_file(file)->eoa = address;
    return 0;
  }
};

}  // namespace fdma::io
