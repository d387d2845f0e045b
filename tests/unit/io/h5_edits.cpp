#include "h5_edits.hpp"

#include <cstdio>
#include <cstdlib>

namespace fdma::testing {
namespace {

template <class Status>
Status must(Status status) {
  if (status < 0) {
    H5Eprint2(H5E_DEFAULT, stderr);
    std::abort();
  }
  return status;
}

}  // namespace

FileEdit::FileEdit(const std::string& path)
    : file_(must(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT))) {}

FileEdit FileEdit::create(const std::string& path) {
  FileEdit edit;
  edit.file_ = must(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  return edit;
}

FileEdit::~FileEdit() {
  if (file_ >= 0) must(H5Fclose(file_));
}

void FileEdit::remove(const std::string& object) {
  must(H5Ldelete(file_, object.c_str(), H5P_DEFAULT));
}

void FileEdit::move(const std::string& from, const std::string& to) {
  must(H5Lmove(file_, from.c_str(), file_, to.c_str(), H5P_DEFAULT, H5P_DEFAULT));
}

void FileEdit::group(const std::string& name) {
  must(H5Gclose(must(H5Gcreate2(file_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT))));
}

void FileEdit::soft_link(const std::string& name, const std::string& target) {
  must(H5Lcreate_soft(target.c_str(), file_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
}

void FileEdit::external_link(const std::string& name, const std::string& file,
                             const std::string& target) {
  must(H5Lcreate_external(file.c_str(), target.c_str(), file_, name.c_str(), H5P_DEFAULT,
                          H5P_DEFAULT));
}

void FileEdit::remove_attribute(const std::string& object, const std::string& name) {
  must(H5Adelete_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT));
}

void FileEdit::attribute(const std::string& object, const std::string& name, std::int64_t value) {
  if (must(H5Aexists_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT)) > 0) {
    remove_attribute(object, name);
  }
  const hid_t space = must(H5Screate(H5S_SCALAR));
  const hid_t attribute = must(H5Acreate_by_name(file_, object.c_str(), name.c_str(), H5T_STD_I64LE,
                                                 space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  must(H5Awrite(attribute, H5T_NATIVE_INT64, &value));
  must(H5Aclose(attribute));
  must(H5Sclose(space));
}

void FileEdit::attribute(const std::string& object, const std::string& name,
                         const std::string& text, bool is_variable) {
  if (must(H5Aexists_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT)) > 0) {
    remove_attribute(object, name);
  }
  const hid_t space = must(H5Screate(H5S_SCALAR));
  const hid_t type = must(H5Tcopy(H5T_C_S1));
  must(H5Tset_size(type, is_variable ? H5T_VARIABLE : text.size() + 1));
  const hid_t attribute = must(H5Acreate_by_name(file_, object.c_str(), name.c_str(), type, space,
                                                 H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  const char* pointer = text.c_str();
  must(H5Awrite(
      attribute, type,
      is_variable ? static_cast<const void*>(&pointer) : static_cast<const void*>(pointer)));
  must(H5Aclose(attribute));
  must(H5Tclose(type));
  must(H5Sclose(space));
}

void FileEdit::dataset(const std::string& name, hid_t file_type, hid_t memory_type,
                       const std::vector<hsize_t>& extents, const void* values, hid_t creation) {
  const hid_t space = must(extents.empty() ? H5Screate(H5S_SCALAR)
                                           : H5Screate_simple(static_cast<int>(extents.size()),
                                                              extents.data(), nullptr));
  const hid_t dataset =
      must(H5Dcreate2(file_, name.c_str(), file_type, space, H5P_DEFAULT, creation, H5P_DEFAULT));
  if (values != nullptr) {
    must(H5Dwrite(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values));
  }
  must(H5Dclose(dataset));
  must(H5Sclose(space));
}

void FileEdit::element(const std::string& dataset, std::size_t index, std::int64_t value) {
  const hid_t id = must(H5Dopen2(file_, dataset.c_str(), H5P_DEFAULT));
  const hid_t space = must(H5Dget_space(id));
  std::vector<std::int64_t> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  must(H5Dread(id, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  if (index >= values.size()) std::abort();
  values[index] = value;
  must(H5Dwrite(id, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  must(H5Sclose(space));
  must(H5Dclose(id));
}

hid_t make_boolean_type() {
  const hid_t type = must(H5Tenum_create(H5T_STD_I8LE));
  for (const signed char value : {0, 1}) {
    must(H5Tenum_insert(type, value == 0 ? "FALSE" : "TRUE", &value));
  }
  return type;
}

hid_t make_half_type(H5T_order_t order) {
  const hid_t type = must(H5Tcopy(H5T_IEEE_F32LE));
  must(H5Tset_fields(type, 15, 10, 5, 0, 10));
  must(H5Tset_size(type, 2));
  must(H5Tset_ebias(type, 15));
  must(H5Tset_order(type, order));
  return type;
}

void write_dataset(FileEdit& file, const std::string& name, const DatasetSpec& spec,
                   hid_t file_type, hid_t memory_type, const void* values) {
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  if (!spec.chunk.empty()) {
    H5Pset_chunk(creation, static_cast<int>(spec.chunk.size()), spec.chunk.data());
    if (spec.compresses) H5Pset_deflate(creation, 1);
  }
  file.dataset(name, file_type, memory_type, spec.extents, values, creation);
  H5Pclose(creation);
}

}  // namespace fdma::testing
