// Links are followed by hand. H5Dopen("/a/b") follows every link, so a file could name another file
// (external link) whose contents would then come in as its own. Here every component is looked up
// with H5Lget_info first; only hard links are opened, and the text of a soft link replaces its
// component.
#include "io/hdf5/untrusted_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <limits>
#include <system_error>

namespace fdma::io {
namespace {

constexpr int kMaxSoftLinks = 16;
constexpr std::size_t kMaxPathComponents = 256;

// Puts the components of `path` before the rest of the path.
void push_components(std::deque<std::string>& rest, const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    begin = end + 1;
  }
  rest.insert(rest.begin(), parts.begin(), parts.end());
}

Result<std::string> soft_link_text(hid_t group, const std::string& name, std::size_t size,
                                   const std::string& where) {
  constexpr std::size_t kMaxLinkBytes = 64 * 1024;
  if (size == 0 || size > kMaxLinkBytes) {
    return Error{ErrorCode::corrupt_file, fmt::format("{}: a soft link of {} bytes", where, size)};
  }
  std::string text(size, '\0');
  if (H5Lget_val(group, name.c_str(), text.data(), size, H5P_DEFAULT) < 0) {
    return hdf5_error(where, "cannot read a soft link");
  }
  text.resize(text.find('\0') == std::string::npos ? size : text.find('\0'));
  return text;
}

// True if elements have as many bytes in the file as in memory. Texts and sequences of variable
// length, and references, have not. (Nothing here reads such elements.)
bool has_fixed_elements(hid_t type) {
  return H5Tis_variable_str(type) == 0 && H5Tdetect_class(type, H5T_VLEN) == 0 &&
         H5Tdetect_class(type, H5T_REFERENCE) == 0;
}

// HDF5 takes the bytes of a chunk from one place of the file and the type of its elements from
// another, and reads past the chunk where the two disagree.
Result<void> check_chunk_bytes(const DatasetInfo& info, hid_t space, const std::string& where) {
  hsize_t num_chunks = 0;
  if (H5Dget_num_chunks(info.dataset.get(), space, &num_chunks) < 0) {
    return hdf5_error(where, "cannot count its chunks");
  }
  if (num_chunks == 0) return {};
  hsize_t expected = H5Tget_size(info.type.get());
  for (const std::int64_t side : info.chunk) {
    const auto n = static_cast<hsize_t>(side);
    expected = expected > std::numeric_limits<hsize_t>::max() / n
                   ? std::numeric_limits<hsize_t>::max()
                   : expected * n;
  }
  const auto stored = static_cast<hsize_t>(info.storage_bytes);
  if (stored % num_chunks != 0 || stored / num_chunks != expected) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("{}: {} chunks take {} bytes, expected {} each", where, num_chunks,
                             stored, expected)};
  }
  return {};
}

// HDF5 1.10 reads past the end of the allocated bytes.
Result<void> check_contiguous(const DatasetInfo& info, const std::string& where) {
  H5D_space_status_t status = H5D_SPACE_STATUS_NOT_ALLOCATED;
  if (H5Dget_space_status(info.dataset.get(), &status) < 0) {
    return hdf5_error(where, "cannot find its values");
  }
  if (status == H5D_SPACE_STATUS_NOT_ALLOCATED) return {};
  const haddr_t begin = H5Dget_offset(info.dataset.get());
  const auto bytes = static_cast<hsize_t>(info.storage_bytes);
  const auto element_bytes = static_cast<hsize_t>(H5Tget_size(info.type.get()));
  if (bytes % element_bytes != 0 ||
      bytes / element_bytes != static_cast<hsize_t>(info.num_elements)) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("{}: its values take {} bytes, expected {} of {} bytes each", where,
                             bytes, info.num_elements, element_bytes)};
  }
  const Handle file(H5Iget_file_id(info.dataset.get()), H5Fclose);
  haddr_t end = 0;
  if (!file || H5Fget_eoa(file.get(), &end) < 0) return hdf5_error(where, "cannot find its values");
  if (bytes > end || begin > end - bytes) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("{}: its values would take bytes [{}, {} + {}), but the file's "
                             "structures end at {}",
                             where, begin, begin, bytes, end)};
  }
  return {};
}

}  // namespace

Error hdf5_error(const std::string& where, const std::string& what) {
  const std::string reason = explain(last_reason());
  return {ErrorCode::corrupt_file, reason.empty() ? fmt::format("{}: {}", where, what)
                                                  : fmt::format("{}: {}: {}", where, what, reason)};
}

// HDF5 1.10 reads zeros, or bits outside the element, where its type says so.
Result<void> check_bits(hid_t type, const std::string& where) {
  const H5T_class_t type_class = H5Tget_class(type);
  if (type_class != H5T_INTEGER && type_class != H5T_FLOAT && type_class != H5T_BITFIELD &&
      type_class != H5T_ENUM) {
    return {};
  }
  const std::size_t bits = 8 * H5Tget_size(type), precision = H5Tget_precision(type);
  const int offset = H5Tget_offset(type);
  if (precision == 0 || precision > bits || offset < 0 ||
      static_cast<std::size_t>(offset) > bits - precision) {
    return Error{
        ErrorCode::corrupt_file,
        fmt::format("{}: {} bits from bit {} on, expected them inside the {} of an element", where,
                    precision, offset, bits)};
  }
  return {};
}

Result<InputFile> open_input(const std::string& path, std::int64_t cache_bytes) {
  InputFile input;
  input.path = path;
  const auto refused = [&](int error_number) {
    return Error{ErrorCode::io, fmt::format("cannot open '{}': {}", path,
                                            std::generic_category().message(error_number))};
  };
  if (path.find('\0') != std::string::npos) return refused(EINVAL);
  // O_NONBLOCK: a pipe in place of a file must not make us wait for its writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refused(errno);
  struct stat status {};
  const int failed = fstat(descriptor, &status);
  close(descriptor);
  if (failed != 0) return refused(errno);
  if (S_ISDIR(status.st_mode)) return refused(EISDIR);
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::io, fmt::format("cannot open '{}': not a regular file", path)};
  }
  input.size_bytes = status.st_size;
  if (status.st_size == 0) {
    return Error{ErrorCode::corrupt_file, fmt::format("'{}' is empty, not an HDF5 file", path)};
  }
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (!access || H5Pset_fapl_sec2(access.get()) < 0 ||
      H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) < 0 ||
      (cache_bytes > 0 &&
       H5Pset_cache(access.get(), 0, 521, static_cast<std::size_t>(cache_bytes), 0.75) < 0)) {
    return hdf5_error(fmt::format("'{}'", path), "HDF5 cannot be set up");
  }
  input.file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!input.file) {
    const std::string reason = last_reason();
    if (reason.find("signature not found") != std::string::npos) {
      return Error{ErrorCode::corrupt_file, fmt::format("'{}' is not an HDF5 file", path)};
    }
    const bool is_locked = reason.find("unable to lock") != std::string::npos;
    return Error{is_locked ? ErrorCode::io : ErrorCode::corrupt_file,
                 fmt::format("cannot open '{}' as HDF5: {}{}", path, explain(reason),
                             is_locked ? "; another program has it open for writing" : "")};
  }
  return input;
}

Result<Handle> open_object(hid_t base, const std::string& name, const std::string& where) {
  std::deque<std::string> rest;
  push_components(rest, name);
  const auto open_root = [&] {
    return Handle(H5Oopen(base, name.starts_with('/') ? "/" : ".", H5P_DEFAULT), H5Oclose);
  };
  Handle object = open_root();
  if (!object) return hdf5_error(where, "cannot open the group");
  for (int soft_links = 0; !rest.empty();) {
    const std::string part = rest.front();
    rest.pop_front();
    if (H5Iget_type(object.get()) != H5I_GROUP) {
      return Error{ErrorCode::io, fmt::format("{}: no object '{}' (what comes before '{}' is not a "
                                              "group)",
                                              where, name, part)};
    }
    H5L_info_t link{};
    const htri_t exists = H5Lexists(object.get(), part.c_str(), H5P_DEFAULT);
    if (exists == 0) {
      return Error{ErrorCode::io, fmt::format("{}: no object '{}' in the file", where, name)};
    }
    if (exists < 0 || H5Lget_info(object.get(), part.c_str(), &link, H5P_DEFAULT) < 0) {
      return hdf5_error(where, fmt::format("cannot look up '{}'", part));
    }
    if (link.type == H5L_TYPE_SOFT) {
      FDMA_TRY(const std::string text, soft_link_text(object.get(), part, link.u.val_size, where));
      push_components(rest, text);
      if (++soft_links > kMaxSoftLinks || rest.size() > kMaxPathComponents) {
        return Error{ErrorCode::corrupt_file,
                     fmt::format("{}: too many soft links on the way to '{}'", where, name)};
      }
      if (text.starts_with('/')) {
        object = Handle(H5Oopen(base, "/", H5P_DEFAULT), H5Oclose);
        if (!object) return hdf5_error(where, "cannot open the root group");
      }
      continue;
    }
    if (link.type != H5L_TYPE_HARD) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("{}: '{}' is a link to another file, which is refused; copy its "
                               "target into this file",
                               where, part)};
    }
    Handle next(H5Oopen(object.get(), part.c_str(), H5P_DEFAULT), H5Oclose);
    if (!next) return hdf5_error(where, fmt::format("cannot open '{}'", part));
    object = std::move(next);
  }
  return object;
}

Result<DatasetInfo> open_dataset(hid_t base, const std::string& name, const std::string& where) {
  DatasetInfo info;
  FDMA_TRY(info.dataset, open_object(base, name, where));
  const auto corrupt = [&](const std::string& text) {
    return Error{ErrorCode::corrupt_file, fmt::format("{}: {}", where, text)};
  };
  if (H5Iget_type(info.dataset.get()) != H5I_DATASET) return corrupt("not a dataset");
  const hid_t dataset = info.dataset.get();
  info.type = Handle(H5Dget_type(dataset), H5Tclose);
  info.creation = Handle(H5Dget_create_plist(dataset), H5Pclose);
  const Handle space(H5Dget_space(dataset), H5Sclose);
  if (!info.type || !info.creation || !space) return hdf5_error(where, "cannot read its header");

  const H5D_layout_t layout = H5Pget_layout(info.creation.get());
  if (layout == H5D_VIRTUAL) {
    return corrupt("a virtual dataset, which is refused; copy it into an ordinary one");
  }
  if (H5Pget_external_count(info.creation.get()) != 0) {
    return corrupt("its values lie in another file (external storage), which is refused");
  }
  if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) {
    return hdf5_error(where, "unknown storage layout");
  }
  const int num_filters = H5Pget_nfilters(info.creation.get());
  for (int i = 0; i < num_filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t num_values = 0;
    char filter_name[64] = "";
    const H5Z_filter_t filter =
        H5Pget_filter2(info.creation.get(), static_cast<unsigned>(i), &flags, &num_values, nullptr,
                       sizeof filter_name, filter_name, &config);
    if (filter < 0) return hdf5_error(where, "cannot read its filters");
    if (H5Zfilter_avail(filter) <= 0) {
      return Error{ErrorCode::unsupported,
                   fmt::format("{}: compressed with filter {} ({}), which this HDF5 does not have; "
                               "rewrite the dataset with gzip, or install the filter's plugin and "
                               "allow plugins where the mask is dense (--allow-plugins)",
                               where, static_cast<int>(filter), filter_name)};
    }
  }

  const H5S_class_t space_class = H5Sget_simple_extent_type(space.get());
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (space_class == H5S_NULL) return corrupt("a dataset without values (null dataspace)");
  if (rank < 0 || rank > H5S_MAX_RANK) return hdf5_error(where, "cannot read its extents");
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  std::vector<hsize_t> limits(extents.size());
  if (rank > 0 && H5Sget_simple_extent_dims(space.get(), extents.data(), limits.data()) != rank) {
    return hdf5_error(where, "cannot read its extents");
  }
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;
  info.num_elements = 1;
  bool is_empty = false;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    is_empty = is_empty || extents[d] == 0;
    if (limits[d] != H5S_UNLIMITED && extents[d] > limits[d]) {
      return corrupt(
          fmt::format("extent {} of dimension {}, expected at most {}", extents[d], d, limits[d]));
    }
  }
  for (const hsize_t extent : extents) {
    if (extent > static_cast<hsize_t>(kMaxElements)) return corrupt("an extent beyond 2^62");
    const auto n = static_cast<std::int64_t>(extent);
    info.extents.push_back(n);
    if (is_empty) continue;
    if (info.num_elements > kMaxElements / n) return corrupt("more than 2^62 elements");
    info.num_elements *= n;
  }
  if (is_empty) info.num_elements = 0;
  FDMA_TRY_VOID(check_bits(info.type.get(), where));
  if (layout == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(static_cast<std::size_t>(rank));
    if (H5Pget_chunk(info.creation.get(), rank, chunk.data()) != rank) {
      return hdf5_error(where, "cannot read its chunk shape");
    }
    for (const hsize_t side : chunk) {
      if (side == 0 || side > std::numeric_limits<std::uint32_t>::max()) {
        return corrupt("a chunk shape out of range");
      }
      info.chunk.push_back(static_cast<std::int64_t>(side));
    }
  }
  const hsize_t storage = H5Dget_storage_size(dataset);
  if (storage > static_cast<hsize_t>(kMaxElements)) return corrupt("more than 2^62 bytes stored");
  info.storage_bytes = static_cast<std::int64_t>(storage);
  if (has_fixed_elements(info.type.get())) {
    if (layout == H5D_CONTIGUOUS) FDMA_TRY_VOID(check_contiguous(info, where));
    if (!info.chunk.empty() && num_filters == 0) {
      FDMA_TRY_VOID(check_chunk_bytes(info, space.get(), where));
    }
  }
  return info;
}

Result<std::optional<std::string>> read_string_attribute(hid_t object, const char* name,
                                                         const std::string& where) {
  constexpr std::size_t kMaxBytes = 64 * 1024;
  const htri_t exists = H5Aexists(object, name);
  if (exists < 0) return hdf5_error(where, fmt::format("attribute {}", name));
  if (exists == 0) return std::optional<std::string>();
  const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!attribute || !type || !space) return hdf5_error(where, fmt::format("attribute {}", name));
  if (H5Tget_class(type.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1) {
    return std::optional<std::string>();
  }
  if (H5Tis_variable_str(type.get()) > 0) {
    char* text = nullptr;
    if (H5Aread(attribute.get(), type.get(), &text) < 0) {
      return hdf5_error(where, fmt::format("attribute {}", name));
    }
    std::optional<std::string> value = text == nullptr ? std::string() : std::string(text);
    H5free_memory(text);
    return value;
  }
  const std::size_t size = H5Tget_size(type.get());
  if (size > kMaxBytes) return std::optional<std::string>();
  std::string value(size, '\0');
  if (H5Aread(attribute.get(), type.get(), value.data()) < 0) {
    return hdf5_error(where, fmt::format("attribute {}", name));
  }
  value.resize(std::min(value.find('\0'), size));
  return std::optional<std::string>(std::move(value));
}

std::string extents_text(const std::vector<std::int64_t>& extents) {
  std::string text = "[";
  for (const std::int64_t extent : extents) {
    if (text.size() > 1) text += ", ";
    text += fmt::format("{}", extent);
  }
  return text + "]";
}

bool is_boolean_enum(hid_t type) {
  if (H5Tget_class(type) != H5T_ENUM || H5Tget_nmembers(type) != 2) return false;
  const Handle native(H5Tget_native_type(type, H5T_DIR_ASCEND), H5Tclose);
  if (!native || H5Tget_size(native.get()) > 8) return false;
  for (unsigned i = 0; i < 2; ++i) {
    std::uint64_t value = 0;
    char* name = H5Tget_member_name(native.get(), i);
    if (name == nullptr) return false;
    std::string text(name);
    H5free_memory(name);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (H5Tget_member_value(native.get(), i, &value) < 0) return false;
    if (!(text == "false" && value == 0) && !(text == "true" && value == 1)) return false;
  }
  return true;
}

std::string type_text(hid_t type) {
  const std::size_t bits = H5Tget_size(type) * 8;
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return fmt::format("{}int{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits);
    case H5T_FLOAT:
      return fmt::format("float{}", bits);
    case H5T_STRING:
      return "string";
    case H5T_BITFIELD:
      return fmt::format("bitfield{}", bits);
    case H5T_OPAQUE:
      return "opaque";
    case H5T_COMPOUND:
      return "compound";
    case H5T_REFERENCE:
      return "reference";
    case H5T_ENUM:
      return "enumeration";
    case H5T_VLEN:
      return "variable-length";
    case H5T_ARRAY:
      return "array";
    default:
      return "unknown type";
  }
}

}  // namespace fdma::io
