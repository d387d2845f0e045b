#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <new>
#include <set>
#include <string>

#include "fdma/io/file_contents.hpp"
#include "io/arrays/array_file.hpp"
#include "io/hdf5/checked_group.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

constexpr int kMaxDepth = 256;

/// The address of the target of a hard link, the same for every link to it.
std::string place_of(const H5L_info_t& link) {
#if H5_VERSION_GE(1, 12, 0)
  return {reinterpret_cast<const char*>(&link.u.token), sizeof link.u.token};
#else
  return fmt::format("{}", link.u.address);
#endif
}

DatasetEntry describe(hid_t dataset, std::string path) {
  DatasetEntry entry{std::move(path), "cannot be read", {}};
  const Handle type(H5Dget_type(dataset), H5Tclose);
  const Handle space(H5Dget_space(dataset), H5Sclose);
  if (!type || !space) return entry;
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0) return entry;
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  if (rank > 0 && H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr) < 0) return entry;
  entry.type = is_boolean_enum(type.get()) ? "boolean" : type_text(type.get());
  entry.extents.assign(extents.begin(), extents.end());
  return entry;
}

Result<FileContents> list_arrays(const std::string& path, std::int64_t max_datasets) {
  FDMA_TRY(const ArrayFile file, ArrayFile::open(path));
  FileContents contents;
  for (const StoredArray& array : file.arrays()) {
    if (std::ssize(contents.datasets) == max_datasets) {
      contents.is_complete = false;
      break;
    }
    contents.datasets.push_back(
        {"/" + array.name,
         array.problem.empty() ? std::string(to_string(array.dtype)) : "cannot be read",
         array.extents});
  }
  return contents;
}

class Walk {
 public:
  explicit Walk(std::int64_t max_datasets) : max_datasets_(max_datasets) {}

  Result<void> look_into(hid_t group, const std::string& path, int depth) {
    if (depth > kMaxDepth) {
      contents.is_complete = false;
      return {};
    }
    FDMA_TRY(const std::vector<std::string> names, link_names(group, path));
    for (const std::string& name : names) {
      if (is_full_) return {};
      H5L_info_t link{};
      if (H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) < 0) {
        return hdf5_error(path, fmt::format("cannot look up '{}'", name));
      }
      if (link.type != H5L_TYPE_HARD) continue;
      const std::string place = fmt::format("{}{}{}", path, path == "/" ? "" : "/", name);
      const Handle object(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose);
      const H5I_type_t kind = object ? H5Iget_type(object.get()) : H5I_DATASET;
      if (kind == H5I_GROUP && groups_.insert(place_of(link)).second) {
        FDMA_TRY_VOID(look_into(object.get(), place, depth + 1));
      }
      if (kind != H5I_DATASET) continue;
      if (static_cast<std::int64_t>(contents.datasets.size()) == max_datasets_) {
        contents.is_complete = false;
        is_full_ = true;
        return {};
      }
      contents.datasets.push_back(describe(object.get(), place));
    }
    return {};
  }

  FileContents contents;

 private:
  std::int64_t max_datasets_;
  bool is_full_ = false;
  std::set<std::string> groups_;  ///< groups visited so far
};

}  // namespace
}  // namespace io

Result<FileContents> list_datasets(const std::string& path, std::int64_t max_datasets) {
  try {
    if (io::array_file_kind(path)) return io::list_arrays(path, max_datasets);
    const io::Session session;
    FDMA_TRY(const io::InputFile input, io::open_input(path));
    const io::Handle root(H5Gopen2(input.file.get(), "/", H5P_DEFAULT), H5Gclose);
    if (!root) return io::hdf5_error(fmt::format("'{}'", path), "cannot open its root group");
    io::Walk walk(max_datasets);
    Result<void> seen = walk.look_into(root.get(), "/", 0);
    if (!seen) {
      return Error{seen.error().code, fmt::format("'{}': {}", path, seen.error().message)};
    }
    return std::move(walk.contents);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

}  // namespace fdma
