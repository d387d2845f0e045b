// Adds masks to a file that holds others, and removes masks from it.
//
// A file that holds nothing but masks is written anew: each mask that stays is copied as it is
// stored, so that removed or replaced masks take no room. Any other file is copied byte for byte
// and the copy is changed, so that it keeps everything else. In both cases the result is a new file
// that takes the place of the old one in one step.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <new>

#include "fdma/io/mask_file.hpp"
#include "io/hdf5/checked_group.hpp"
#include "io/hdf5/locked_file.hpp"
#include "io/hdf5/write_error.hpp"
#include "io/masks/mask_writing.hpp"
#include "io/masks/masks_group.hpp"
#include "stored/mask_schema.hpp"

namespace fdma {
namespace io {
namespace {

using Names = std::vector<std::string>;

/// The masks of a file before the change.
struct MaskFile {
  InputFile input;
  Handle masks;
  Names names;  ///< sorted
  bool holds_masks_only = false;
};

herr_t count_attribute(hid_t, const char*, const H5A_info_t*, void* out) {
  ++*static_cast<int*>(out);
  return 0;
}

bool has_attributes(hid_t object) {
  int count = 0;
  return H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, count_attribute, &count) < 0 ||
         count > 0;
}

bool has_hard_links_only(hid_t group, const Names& names) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    H5L_info_t link{};
    return H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) >= 0 && link.type == H5L_TYPE_HARD;
  });
}

bool holds_masks_only(const MaskFile& file) {
  const hid_t id = file.input.file.get();
  const Handle root(H5Gopen2(id, "/", H5P_DEFAULT), H5Gclose);
  const Handle creation(H5Fget_create_plist(id), H5Pclose);
  hsize_t user_block = 0;
  if (!root || !creation || H5Pget_userblock(creation.get(), &user_block) < 0) return false;
  const Result<Names> links = link_names(root.get(), "/");
  return user_block == 0 && links && *links == Names{kMasksGroup} && !has_attributes(root.get()) &&
         !has_attributes(file.masks.get()) && has_hard_links_only(root.get(), *links) &&
         has_hard_links_only(file.masks.get(), file.names);
}

/// `source` gives the bytes of the file. Errors: invalid_argument (no mask file), unsupported.
Result<MaskFile> open_mask_file(const std::string& path, WriteTarget& source) {
  const auto refused = [&](const std::string& reason) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is there, but is no mask file of FDMA ({})", path, reason)};
  };
  MaskFile file;
  file.input.path = path;
  file.input.size_bytes = static_cast<std::int64_t>(source.size_bytes);
  const Handle access = make_descriptor_access(&source);
  if (!access || H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) < 0) {
    return hdf5_error(fmt::format("'{}'", path), "HDF5 cannot be set up");
  }
  file.input.file = Handle(H5Fopen("fdma-input", H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file.input.file) {
    const std::string reason = last_reason();
    const bool is_other = reason.find("signature not found") != std::string::npos;
    return refused(is_other ? "it is not HDF5" : explain(reason));
  }
  Result<Handle> masks = open_masks_group(file.input);
  if (!masks) return refused("it holds no group /masks");
  file.masks = *std::move(masks);
  Result<Names> names = link_names(file.masks.get(), "/masks");
  if (!names) return refused(names.error().message);
  file.names = *std::move(names);
  file.holds_masks_only = holds_masks_only(file);
  return file;
}

Result<void> copy_bytes(int from, int to, const std::string& path) {
  std::vector<char> buffer(std::size_t{1} << 20);
  off_t at = 0;
  for (;;) {
    const ssize_t count = pread(from, buffer.data(), buffer.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return write_error(path, errno);
    if (count == 0) return {};
    for (ssize_t done = 0; done < count;) {
      const ssize_t written =
          pwrite(to, buffer.data() + done, static_cast<std::size_t>(count - done), at + done);
      if (written < 0 && errno != EINTR) return write_error(path, errno);
      done += std::max<ssize_t>(written, 0);
    }
    at += count;
  }
}

/// A change of a file. Removed masks are in the file; added masks have other names or those of
/// removed masks.
struct Change {
  Names removed;
  const std::vector<NamedMask>& added;
  const WriteOptions& options;
};

Result<void> write_changed(PendingFile& file, const std::string& path, const MaskFile& old,
                           const LockedFile& old_bytes, const Change& change) {
  const auto is_removed = [&](const std::string& name) {
    return std::find(change.removed.begin(), change.removed.end(), name) != change.removed.end();
  };
  const auto add = [&](hid_t masks, const WriteTarget& target) {
    for (const NamedMask& named : change.added) write_mask(masks, named, target, change.options);
  };
  if (old.holds_masks_only) {
    return fill_file(file, 0, path, [&](hid_t id, const WriteTarget& target) {
      const Handle masks = create_group(id, kMasksGroup);
      for (const std::string& name : old.names) {
        if (is_removed(name)) continue;
        need(H5Ocopy(old.masks.get(), name.c_str(), masks.get(), name.c_str(), H5P_DEFAULT,
                     H5P_DEFAULT) >= 0,
             "copy");
        need(target.error_number == 0, "copy");
      }
      add(masks.get(), target);
    });
  }
  FDMA_TRY_VOID(copy_bytes(old_bytes.descriptor(), file.descriptor(), path));
  return fill_file(file, old_bytes.size_bytes(), path, [&](hid_t id, const WriteTarget& target) {
    const Handle masks(H5Gopen2(id, kMasksGroup, H5P_DEFAULT), H5Gclose);
    need(static_cast<bool>(masks), "group");
    for (const std::string& name : change.removed) {
      need(H5Ldelete(masks.get(), name.c_str(), H5P_DEFAULT) >= 0, "removal");
    }
    add(masks.get(), target);
  });
}

bool holds(const Names& names, const std::string& name) {
  return std::binary_search(names.begin(), names.end(), name);
}

Result<AddedMasks> write_new(PendingFile& file, const std::string& path,
                             const std::vector<NamedMask>& masks, const AddOptions& options) {
  AddedMasks result;
  for (const NamedMask& named : masks) result.names.push_back(named.name);
  std::sort(result.names.begin(), result.names.end());
  result.is_new_file = true;
  FDMA_TRY_VOID(fill_file(file, 0, path, [&](hid_t id, const WriteTarget& target) {
    const Handle group = create_group(id, kMasksGroup);
    for (const NamedMask& named : masks) write_mask(group.get(), named, target, options.write);
  }));
  return result;
}

Result<AddedMasks> add(const LockedFile& bytes, PendingFile& file, const std::string& path,
                       const std::vector<NamedMask>& masks, const AddOptions& options) {
  WriteTarget source{bytes.descriptor(), 0, static_cast<haddr_t>(bytes.size_bytes())};
  const Result<MaskFile> opened = open_mask_file(path, source);
  if (!opened && opened.error().code == ErrorCode::invalid_argument && options.replace_file) {
    FDMA_TRY(AddedMasks written, write_new(file, path, masks, options));
    written.is_new_file = false;
    written.replaced_file = true;
    return written;
  }
  if (!opened) return opened.error();
  const MaskFile& old = *opened;
  AddedMasks result;
  for (const NamedMask& named : masks) {
    if (!holds(old.names, named.name)) {
      result.names.push_back(named.name);
    } else if (options.overwrite) {
      result.replaced.push_back(named.name);
    } else {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("'{}' holds a mask '{}' already", path, named.name)};
    }
  }
  result.names.insert(result.names.end(), old.names.begin(), old.names.end());
  std::sort(result.names.begin(), result.names.end());
  FDMA_TRY_VOID(write_changed(file, path, old, bytes, {result.replaced, masks, options.write}));
  return result;
}

}  // namespace
}  // namespace io

Result<AddedMasks> add_masks(const std::string& path, const std::vector<NamedMask>& masks,
                             const AddOptions& options) {
  try {
    FDMA_TRY_VOID(io::check_masks(masks));
    for (;;) {
      // Taken before the session: a wait for another program must not stop this program's threads.
      FDMA_TRY(const std::optional<io::LockedFile> old, io::LockedFile::open(path));
      const io::Session session;
      FDMA_TRY(PendingFile file, PendingFile::create(path));
      const bool is_new = !old || old->size_bytes() == 0;
      FDMA_TRY(AddedMasks result, is_new ? io::write_new(file, path, masks, options)
                                         : io::add(*old, file, path, masks, options));
      if (old) {
        FDMA_TRY_VOID(file.commit());
        return result;
      }
      FDMA_TRY(const bool is_in_place, file.commit_if_new());
      if (is_in_place) return result;
    }
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

Result<std::vector<std::string>> remove_masks(const std::string& path,
                                              const std::vector<std::string>& names) {
  try {
    FDMA_TRY(const std::optional<io::LockedFile> bytes, io::LockedFile::open(path));
    if (!bytes) return io::write_error(path, ENOENT);
    const io::Session session;
    io::WriteTarget source{bytes->descriptor(), 0, static_cast<haddr_t>(bytes->size_bytes())};
    FDMA_TRY(const io::MaskFile old, io::open_mask_file(path, source));
    io::Names removed = names;
    std::sort(removed.begin(), removed.end());
    removed.erase(std::unique(removed.begin(), removed.end()), removed.end());
    for (const std::string& name : removed) {
      if (!io::holds(old.names, name)) return io::no_such_mask(path, name, old.names);
    }
    io::Names left;
    std::set_difference(old.names.begin(), old.names.end(), removed.begin(), removed.end(),
                        std::back_inserter(left));
    FDMA_TRY(PendingFile file, PendingFile::create(path));
    FDMA_TRY_VOID(io::write_changed(file, path, old, *bytes, {removed, {}, {}}));
    FDMA_TRY_VOID(file.commit());
    return left;
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

}  // namespace fdma
