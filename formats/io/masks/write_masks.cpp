// Writing masks (docs/file-format.md), everything in a fixed order: equal masks give equal bytes.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "fdma/formats/hash.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/io/mask_file.hpp"
#include "io/hdf5/output_file.hpp"
#include "io/masks/mask_writing.hpp"
#include "stored/mask_schema.hpp"

namespace fdma {
namespace io {
namespace {

constexpr std::int64_t kMinCompressedBytes = 4096;
constexpr std::int64_t kChunkBytes = 256 * 1024;
constexpr unsigned kDeflateLevel = 4;

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
    write_attribute(group.get(), "block_q", std::int64_t{mask.block.block_q});
    write_attribute(group.get(), "block_kv", std::int64_t{mask.block.block_kv});
    write_attribute(group.get(), "q_offset", mask.origin.q_offset);
    write_attribute(group.get(), "kv_offset", mask.origin.kv_offset);
    write_attribute(group.get(), "batch_offset", mask.origin.batch_offset);
    write_attribute(group.get(), "head_offset", mask.origin.head_offset);
    // The attributes mean nothing for masks of several elements (heads). They are left out there,
    // so that older readers can read these masks.
    if (mask.is_per_batch && mask.shape.num_batches == 1) {
      write_attribute(group.get(), kPerBatchName, std::int64_t{1});
    }
    if (mask.is_per_head && mask.shape.num_heads == 1) {
      write_attribute(group.get(), kPerHeadName, std::int64_t{1});
    }
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
      for_each_stored_array(
          mask, [&](const char* name, const auto& array, ArrayType type, ArrayShape shape) {
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

}  // namespace

Result<void> check_masks(const std::vector<NamedMask>& masks) {
  std::set<std::string> names;
  for (const NamedMask& named : masks) {
    if (!is_link_name(named.name)) {
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

void write_mask(hid_t masks, const NamedMask& named, const WriteTarget& target,
                const WriteOptions& options) {
  MaskWriter(target, options).write(masks, named);
}

}  // namespace io

Result<void> write_masks(const std::string& path, const std::vector<NamedMask>& masks,
                         const WriteOptions& options) {
  try {
    FDMA_TRY_VOID(io::check_masks(masks));
    return io::write_file(path, [&](hid_t file, const io::WriteTarget& target) {
      const io::Handle group = io::create_group(file, io::kMasksGroup);
      for (const NamedMask& named : masks) io::write_mask(group.get(), named, target, options);
    });
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory writing '{}'", path)};
  }
}

}  // namespace fdma
