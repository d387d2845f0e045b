// Writing masks (docs/file-format.md). HDF5 is asked for its oldest structures, object times are
// left out, and everything is written in a fixed order: equal masks give equal bytes, and every
// HDF5 from 1.8 on reads them.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "descriptor_driver.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/io/mask_file.hpp"
#include "h5_handle.hpp"
#include "mask_schema.hpp"
#include "pending_file.hpp"

namespace fdma {
namespace io {
namespace {

constexpr std::int64_t kMinCompressedBytes = 4096;
constexpr std::int64_t kChunkBytes = 256 * 1024;
constexpr unsigned kDeflateLevel = 4;

// A call of HDF5 that failed; turned into an Error in one place, where the file's state is known.
struct WriteFailed {
  const char* what;
};

void need(bool ok, const char* what) {
  if (!ok) throw WriteFailed{what};
}

Handle create_group(hid_t parent, const char* name) {
  const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  need(creation && H5Pset_obj_track_times(creation.get(), false) >= 0, "group");
  Handle group(H5Gcreate2(parent, name, H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Gclose);
  need(static_cast<bool>(group), "group");
  return group;
}

void write_attribute(hid_t object, const char* name, std::int64_t value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  need(static_cast<bool>(space), "attribute");
  const Handle attribute(
      H5Acreate2(object, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  need(attribute && H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value) >= 0, "attribute");
}

// Fixed-length UTF-8: a reader need not trust lengths on a heap.
Handle string_type(std::size_t size) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  need(type && H5Tset_size(type.get(), std::max<std::size_t>(size, 1)) >= 0 &&
           H5Tset_strpad(type.get(), H5T_STR_NULLPAD) >= 0 &&
           H5Tset_cset(type.get(), H5T_CSET_UTF8) >= 0,
       "text");
  return type;
}

void write_attribute(hid_t object, const char* name, const std::string& text) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle type = string_type(text.size());
  need(static_cast<bool>(space), "attribute");
  const Handle attribute(
      H5Acreate2(object, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  need(attribute && H5Awrite(attribute.get(), type.get(), text.c_str()) >= 0, "attribute");
}

hid_t file_type(ArrayType type) {
  switch (type) {
    case ArrayType::int32:
      return H5T_STD_I32LE;
    case ArrayType::int64:
      return H5T_STD_I64LE;
    case ArrayType::uint64:
      return H5T_STD_U64LE;
  }
  return H5T_STD_I64LE;
}

hid_t memory_type(ArrayType type) {
  switch (type) {
    case ArrayType::int32:
      return H5T_NATIVE_INT32;
    case ArrayType::int64:
      return H5T_NATIVE_INT64;
    case ArrayType::uint64:
      return H5T_NATIVE_UINT64;
  }
  return H5T_NATIVE_INT64;
}

// Writes a mask's arrays; stops at the first failure of the disk, which HDF5 itself does not see.
class MaskWriter {
 public:
  MaskWriter(const WriteTarget& target, const WriteOptions& options)
      : target_(target), options_(options) {}

  void write(hid_t masks, const NamedMask& named) {
    const BlockMask& mask = named.mask;
    const Handle group = create_group(masks, named.name.c_str());
    write_attribute(group.get(), "format", std::string(to_string(mask.format())));
    write_attribute(group.get(), "version", kSchemaVersion);
    write_lengths(group.get(), "q_len", "q_lens", mask.shape.q_lens);
    write_lengths(group.get(), "kv_len", "kv_lens", mask.shape.kv_lens);
    write_attribute(group.get(), "num_batches", mask.shape.num_batches);
    write_attribute(group.get(), "num_heads", mask.shape.num_heads);
    write_attribute(group.get(), "block_q", mask.block.block_q);
    write_attribute(group.get(), "block_kv", mask.block.block_kv);
    write_attribute(group.get(), "q_offset", mask.origin.q_offset);
    write_attribute(group.get(), "kv_offset", mask.origin.kv_offset);
    write_attribute(group.get(), "batch_offset", mask.origin.batch_offset);
    write_attribute(group.get(), "head_offset", mask.origin.head_offset);
    write_spec(group.get(), mask.spec);
    write_attribute(group.get(), "content_hash", to_string(content_hash(mask)));
    write_attribute(group.get(), "mask_hash", to_string(mask_hash(mask)));
    write_array(group.get(), kGroupMapName, mask.group_of.data(), ArrayType::int32,
                {mask.shape.num_batches, mask.shape.num_heads});
    const Handle groups = create_group(group.get(), kGroupsName);
    std::visit([&](const auto& stored) { write_groups(groups.get(), stored); }, mask.groups);
  }

 private:
  void write_lengths(hid_t group, const char* attribute, const char* dataset,
                     const std::vector<std::int64_t>& lengths) {
    if (lengths.size() == 1) {
      write_attribute(group, attribute, lengths[0]);
    } else {
      write_array(group, dataset, lengths.data(), ArrayType::int64,
                  {static_cast<std::int64_t>(lengths.size())});
    }
  }

  void write_spec(hid_t group, const std::string& spec) {
    if (spec.size() <= kMaxSpecAttribute) {
      write_attribute(group, "spec", spec);
      return;
    }
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle type = string_type(spec.size());
    const Handle creation = dataset_creation();
    need(space && creation, "spec");
    const Handle dataset(H5Dcreate2(group, "spec", type.get(), space.get(), H5P_DEFAULT,
                                    creation.get(), H5P_DEFAULT),
                         H5Dclose);
    need(dataset &&
             H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, spec.data()) >= 0,
         "spec");
  }

  template <class Mask>
  void write_groups(hid_t groups, const std::vector<Mask>& stored) {
    for (std::size_t g = 0; g < stored.size(); ++g) {
      const Handle group = create_group(groups, fmt::format("{}", g).c_str());
      const Mask& mask = stored[g];
      if constexpr (std::is_same_v<Mask, ParametricMask>) {
        std::vector<std::int64_t> parameters;
        for (const auto member : kParameters) parameters.push_back(mask.*member);
        write_array(group.get(), "parameters", parameters.data(), ArrayType::int64,
                    {static_cast<std::int64_t>(parameters.size())});
      }
      for_each_array(mask,
                     [&](const char* name, const auto& array, ArrayType type, ArrayShape shape) {
                       write_vector(group.get(), name, array, type, shape);
                     });
    }
  }

  template <class T>
  void write_vector(hid_t group, const char* name, const std::vector<T>& array, ArrayType type,
                    ArrayShape shape) {
    const auto numbers = static_cast<std::int64_t>(array.size() * sizeof(T)) / size_bytes(type);
    std::vector<std::int64_t> extents;
    if (shape.width == kOneDimensional) {
      extents = {numbers};
    } else {
      const bool is_run = std::is_same_v<T, TileRun>;
      const std::int64_t rows = shape.rows != kAnyRows ? shape.rows
                                : is_run               ? static_cast<std::int64_t>(array.size())
                                                       : numbers / shape.width;
      extents = {rows, shape.width};
    }
    if constexpr (std::is_same_v<T, TileRun>) {
      std::vector<std::int64_t> columns;
      columns.reserve(array.size() * 5);
      for (const TileRun& run : array) {
        columns.insert(columns.end(), {run.first_row, run.row_stride, run.num_rows,
                                       run.num_segments, run.first_segment});
      }
      write_array(group, name, columns.data(), type, extents);
    } else {
      write_array(group, name, array.data(), type, extents);
    }
  }

  static Handle dataset_creation() {
    Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    need(creation && H5Pset_obj_track_times(creation.get(), false) >= 0, "dataset");
    return creation;
  }

  void write_array(hid_t group, const char* name, const void* data, ArrayType type,
                   const std::vector<std::int64_t>& extents) {
    const std::vector<hsize_t> dims(extents.begin(), extents.end());
    const int rank = static_cast<int>(dims.size());
    std::int64_t bytes = size_bytes(type);
    for (const std::int64_t extent : extents) bytes *= extent;
    const Handle space(H5Screate_simple(rank, dims.data(), nullptr), H5Sclose);
    const Handle creation = dataset_creation();
    need(static_cast<bool>(space), name);
    if (options_.compress && bytes > kMinCompressedBytes) {
      std::vector<hsize_t> chunk = dims;
      const auto row_bytes = static_cast<hsize_t>(bytes / extents[0]);
      chunk[0] = std::clamp<hsize_t>(kChunkBytes / row_bytes, 1, dims[0]);
      if (rank == 2) chunk[1] = std::min<hsize_t>(dims[1], kChunkBytes / 8);
      need(H5Pset_chunk(creation.get(), rank, chunk.data()) >= 0 &&
               H5Pset_shuffle(creation.get()) >= 0 &&
               H5Pset_deflate(creation.get(), kDeflateLevel) >= 0,
           name);
    }
    const Handle dataset(H5Dcreate2(group, name, file_type(type), space.get(), H5P_DEFAULT,
                                    creation.get(), H5P_DEFAULT),
                         H5Dclose);
    need(static_cast<bool>(dataset), name);
    if (bytes > 0) {
      need(H5Dwrite(dataset.get(), memory_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0,
           name);
    }
    need(target_.error_number == 0, name);
  }

  const WriteTarget& target_;
  const WriteOptions& options_;
};

bool is_good_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

Result<void> check_arguments(const std::vector<NamedMask>& masks) {
  std::set<std::string> names;
  for (const NamedMask& named : masks) {
    if (!is_good_name(named.name)) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("mask name '{}': expected 1 to 255 bytes without '/', not '.' or "
                               "'..'",
                               named.name)};
    }
    if (!names.insert(named.name).second) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("mask name '{}' is given twice", named.name)};
    }
    if (named.mask.spec.size() > kMaxSpecBytes || named.mask.spec.find('\0') != std::string::npos) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("mask '{}': its spec is longer than {} bytes or holds a zero byte",
                               named.name, kMaxSpecBytes)};
    }
    const Result<void> valid = validate(named.mask, ValidationLevel::structure);
    if (!valid) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("mask '{}' is not valid: {}", named.name, valid.error().message)};
    }
  }
  return {};
}

void write_file(WriteTarget& target, const std::vector<NamedMask>& masks,
                const WriteOptions& options) {
  const Handle access = make_descriptor_access(&target);
  need(access && H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V18) >= 0 &&
           H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) >= 0,
       "set-up");
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  need(creation && H5Pset_obj_track_times(creation.get(), false) >= 0, "set-up");
  Handle file(H5Fcreate("fdma-output", H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  need(static_cast<bool>(file), "file");
  {
    const Handle group = create_group(file.get(), kMasksGroup);
    MaskWriter writer(target, options);
    for (const NamedMask& named : masks) writer.write(group.get(), named);
  }
  need(file.reset() >= 0, "close");
}

}  // namespace
}  // namespace io

Result<void> write_masks(const std::string& path, const std::vector<NamedMask>& masks,
                         const WriteOptions& options) {
  try {
    FDMA_TRY_VOID(io::check_arguments(masks));
    const io::Session session;
    FDMA_TRY(io::PendingFile file, io::PendingFile::create(path));
    io::WriteTarget target{file.descriptor()};
    try {
      io::write_file(target, masks, options);
    } catch (const io::WriteFailed& failed) {
      if (target.error_number == 0) {
        return Error{ErrorCode::io, fmt::format("cannot write '{}': HDF5 refused ({}): {}", path,
                                                failed.what, io::last_reason())};
      }
    }
    if (target.error_number != 0) return io::write_error(path, target.error_number);
    return file.commit();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

}  // namespace fdma
