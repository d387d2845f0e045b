#include "io/hdf5/output_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "io/hdf5/write_error.hpp"

namespace fdma::io {
namespace {

void open_and_fill(WriteTarget& target, const Fill& fill) {
  const bool is_new = target.size_bytes == 0;
  const Handle access = make_descriptor_access(&target);
  // A file of other programs may hold newer structures than FDMA's own files.
  need(access &&
           H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST,
                                is_new ? H5F_LIBVER_V18 : H5F_LIBVER_LATEST) >= 0 &&
           H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) >= 0,
       "set-up");
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  need(creation && H5Pset_obj_track_times(creation.get(), false) >= 0, "set-up");
  Handle file(is_new ? H5Fcreate("fdma-output", H5F_ACC_TRUNC, creation.get(), access.get())
                     : H5Fopen("fdma-output", H5F_ACC_RDWR, access.get()),
              H5Fclose);
  need(static_cast<bool>(file), "file");
  fill(file.get(), target);
  need(file.reset() >= 0, "close");
}

void write_scalar(hid_t object, const char* name, hid_t file_type, hid_t memory_type,
                  const void* value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  need(static_cast<bool>(space), "attribute");
  const Handle attribute(H5Acreate2(object, name, file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                         H5Aclose);
  need(attribute && H5Awrite(attribute.get(), memory_type, value) >= 0, "attribute");
}

}  // namespace

void need(bool ok, const char* what) {
  if (!ok) throw WriteFailed{what};
}

Result<void> fill_file(PendingFile& file, std::int64_t size_bytes, const std::string& path,
                       const Fill& fill) {
  WriteTarget target{file.descriptor(), 0, static_cast<haddr_t>(size_bytes)};
  try {
    open_and_fill(target, fill);
  } catch (const WriteFailed& failed) {
    if (target.error_number == 0) {
      return Error{ErrorCode::io, fmt::format("cannot write '{}': HDF5 refused ({}): {}", path,
                                              failed.what, last_reason())};
    }
  }
  if (target.error_number != 0) return write_error(path, target.error_number);
  return {};
}

Result<void> write_file(const std::string& path, const Fill& fill) {
  try {
    const Session session;
    FDMA_TRY(PendingFile file, PendingFile::create(path));
    FDMA_TRY_VOID(fill_file(file, 0, path, fill));
    return file.commit();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

bool is_link_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

Handle create_group(hid_t parent, const char* name) {
  const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  need(creation && H5Pset_obj_track_times(creation.get(), false) >= 0, "group");
  Handle group(H5Gcreate2(parent, name, H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Gclose);
  need(static_cast<bool>(group), "group");
  return group;
}

Handle dataset_creation() {
  Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  need(creation && H5Pset_obj_track_times(creation.get(), false) >= 0, "dataset");
  return creation;
}

Handle string_type(std::size_t size) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  need(type && H5Tset_size(type.get(), std::max<std::size_t>(size, 1)) >= 0 &&
           H5Tset_strpad(type.get(), H5T_STR_NULLPAD) >= 0 &&
           H5Tset_cset(type.get(), H5T_CSET_UTF8) >= 0,
       "text");
  return type;
}

void write_attribute(hid_t object, const char* name, std::int64_t value) {
  write_scalar(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void write_attribute(hid_t object, const char* name, double value) {
  write_scalar(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

void write_attribute(hid_t object, const char* name, const std::string& text) {
  const Handle type = string_type(text.size());
  write_scalar(object, name, type.get(), type.get(), text.c_str());
}

}  // namespace fdma::io
