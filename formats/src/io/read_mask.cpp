// Reading masks. A file is untrusted: each array's type and extents are checked against what the
// lengths imply and its bytes against what the file can hold before memory is taken for it; the
// arrays are then validated and their hash compared, so that nothing inconsistent leaves this file.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <set>

#include "fdma/formats/hash.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/io/mask_file.hpp"
#include "mask_schema.hpp"
#include "untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

// Deflate shrinks by 1032 at most; a dataset that claims more than this factor has no data.
constexpr std::int64_t kMaxCompression = 1040;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{64} << 20;
constexpr std::size_t kMaxNames = 1 << 20;

Error corrupt(const std::string& where, const std::string& text) {
  return {ErrorCode::corrupt_file, fmt::format("{}: {}", where, text)};
}

// Absence inside a file whose schema demands presence is corruption, not a wrong path.
Error as_corrupt(Error error) {
  if (error.code == ErrorCode::io) error.code = ErrorCode::corrupt_file;
  return error;
}

herr_t collect_link(hid_t, const char* name, const H5L_info_t*, void* out) {
  auto& names = *static_cast<std::vector<std::string>*>(out);
  if (names.size() >= kMaxNames) return -1;
  names.emplace_back(name);
  return 0;
}

herr_t collect_attribute(hid_t, const char* name, const H5A_info_t*, void* out) {
  return collect_link(0, name, nullptr, out);
}

Result<std::vector<std::string>> link_names(hid_t group, const std::string& where) {
  std::vector<std::string> names;
  if (H5Iget_type(group) != H5I_GROUP) return corrupt(where, "not a group");
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &names) < 0) {
    return hdf5_error(where, "cannot list the group");
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "a, b, c and 12 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += i == 0 ? names[i] : ", " + names[i];
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

Result<Handle> open_masks_group(const InputFile& input) {
  const std::string where = fmt::format("'{}'", input.path);
  Result<Handle> group = open_object(input.file.get(), fmt::format("/{}", kMasksGroup), where);
  if (!group && group.error().code == ErrorCode::io) {
    return corrupt(where,
                   "holds no group /masks, so it is not an FDMA mask file (a dense mask is named "
                   "file.h5:/dataset)");
  }
  if (group && H5Iget_type(group->get()) != H5I_GROUP) {
    return corrupt(where, "/masks is not a group");
  }
  return group;
}

// The attributes of one mask, each read once; what is left over at the end is an error.
class Attributes {
 public:
  static Result<Attributes> of(hid_t object, const std::string& where) {
    Attributes attributes(object, where);
    std::vector<std::string> names;
    // H5Aiterate2 of HDF5 1.10 crashes if an attribute is damaged. Looking for one that is not
    // there decodes all of them first, and fails cleanly.
    if (H5Aexists(object, "fdma: none of this name") < 0) {
      return hdf5_error(where, "cannot read its attributes");
    }
    if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_attribute, &names) < 0) {
      return hdf5_error(where, "cannot list its attributes");
    }
    attributes.names_.insert(names.begin(), names.end());
    return attributes;
  }

  bool has(const std::string& name) const { return names_.contains(name); }

  Result<std::int64_t> integer(const std::string& name, std::int64_t min, std::int64_t max) {
    FDMA_TRY(const Handle attribute, open(name));
    const Handle type(H5Aget_type(attribute.get()), H5Tclose);
    if (!type || H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_size(type.get()) > 8) {
      return corrupt(where_, fmt::format("attribute {}: expected an integer", name));
    }
    std::int64_t value = 0;
    if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) {
      return hdf5_error(where_, fmt::format("attribute {}", name));
    }
    if (value < min || value > max) {
      return corrupt(where_,
                     fmt::format("attribute {}: {} is outside [{}, {}]", name, value, min, max));
    }
    return value;
  }

  Result<std::string> text(const std::string& name, std::size_t max_bytes) {
    FDMA_TRY(const Handle attribute, open(name));
    const Handle type(H5Aget_type(attribute.get()), H5Tclose);
    if (!type || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) {
      return corrupt(where_, fmt::format("attribute {}: expected a string of fixed length "
                                         "(numpy.bytes_ in h5py)",
                                         name));
    }
    const std::size_t size = H5Tget_size(type.get());
    if (size > max_bytes) {
      return corrupt(where_, fmt::format("attribute {}: {} bytes, expected {} at most", name, size,
                                         max_bytes));
    }
    std::string value(size, '\0');
    if (H5Aread(attribute.get(), type.get(), value.data()) < 0) {
      return hdf5_error(where_, fmt::format("attribute {}", name));
    }
    value.resize(std::min(value.find('\0'), size));
    return value;
  }

  Result<void> expect_no_more() const {
    if (names_.empty()) return {};
    return corrupt(where_, fmt::format("unknown attribute {}", *names_.begin()));
  }

 private:
  Attributes(hid_t object, const std::string& where) : object_(object), where_(where) {}

  Result<Handle> open(const std::string& name) {
    if (names_.erase(name) == 0) {
      return corrupt(where_, fmt::format("attribute {} is missing", name));
    }
    Handle attribute(H5Aopen(object_, name.c_str(), H5P_DEFAULT), H5Aclose);
    if (!attribute) return hdf5_error(where_, fmt::format("attribute {}", name));
    const Handle space(H5Aget_space(attribute.get()), H5Sclose);
    if (!space || H5Sget_simple_extent_npoints(space.get()) != 1) {
      return corrupt(where_, fmt::format("attribute {}: expected one value", name));
    }
    return attribute;
  }

  hid_t object_;
  std::string where_;
  std::set<std::string> names_;
};

// Reads the arrays of one HDF5 group and remembers which of its links were used.
class ArrayReader {
 public:
  static Result<ArrayReader> of(const InputFile& input, hid_t group, const std::string& where) {
    ArrayReader reader(input, group, where);
    FDMA_TRY(const std::vector<std::string> names, link_names(group, where));
    reader.names_.insert(names.begin(), names.end());
    return reader;
  }

  bool has(const std::string& name) const { return names_.contains(name); }
  void take(const std::string& name) { names_.erase(name); }

  Result<void> expect_no_more() const {
    if (names_.empty()) return {};
    return corrupt(where_, fmt::format("unknown object {}", *names_.begin()));
  }

  /// Reads dataset `name` into `array`, whose elements are rows of numbers of `type`.
  template <class T>
  Result<void> read(const std::string& name, std::vector<T>& array, ArrayType type,
                    ArrayShape shape) {
    FDMA_TRY(const DatasetInfo info, open(name));
    const std::string where = place(name);
    FDMA_TRY_VOID(check_type(info, type, where));
    const std::size_t rank = shape.width == kOneDimensional ? 1 : 2;
    const bool width_ok = rank == 1 || (info.extents.size() == 2 && info.extents[1] == shape.width);
    const bool rows_ok =
        info.extents.size() == rank && (shape.rows == kAnyRows ? info.extents[0] <= shape.max_rows
                                                               : info.extents[0] == shape.rows);
    if (!width_ok || !rows_ok) {
      const std::string rows = shape.rows == kAnyRows ? fmt::format("at most {}", shape.max_rows)
                                                      : fmt::format("{}", shape.rows);
      return corrupt(where, fmt::format("extents {}, expected [{}{}]", extents_text(info.extents),
                                        rows, rank == 1 ? "" : fmt::format(", {}", shape.width)));
    }
    FDMA_TRY_VOID(check_bytes(info, size_bytes(type), where));
    const auto numbers = static_cast<std::size_t>(info.num_elements);
    if constexpr (std::is_same_v<T, TileRun>) {
      std::vector<std::int64_t> columns(numbers);
      FDMA_TRY_VOID(read_values(info, H5T_NATIVE_INT64, columns.data(), where));
      return unpack_runs(columns, array, where);
    } else {
      const std::size_t per_element = sizeof(T) / static_cast<std::size_t>(size_bytes(type));
      array.resize(numbers / per_element);
      const hid_t memory = type == ArrayType::int32   ? H5T_NATIVE_INT32
                           : type == ArrayType::int64 ? H5T_NATIVE_INT64
                                                      : H5T_NATIVE_UINT64;
      return read_values(info, memory, array.data(), where);
    }
  }

  /// A spec too long for an attribute: a scalar dataset of one fixed-length string.
  Result<std::string> read_text(const std::string& name) {
    FDMA_TRY(const DatasetInfo info, open(name));
    const std::string where = place(name);
    const std::size_t size = H5Tget_size(info.type.get());
    if (H5Tget_class(info.type.get()) != H5T_STRING || H5Tis_variable_str(info.type.get()) != 0 ||
        info.num_elements != 1 || size > kMaxSpecBytes) {
      return corrupt(where, "expected one string of fixed length");
    }
    FDMA_TRY_VOID(check_bytes(info, static_cast<std::int64_t>(size), where));
    std::string value(size, '\0');
    FDMA_TRY_VOID(read_values(info, info.type.get(), value.data(), where));
    value.resize(std::min(value.find('\0'), size));
    return value;
  }

 private:
  ArrayReader(const InputFile& input, hid_t group, const std::string& where)
      : input_(input), group_(group), where_(where) {}

  std::string place(const std::string& name) const { return fmt::format("{}/{}", where_, name); }

  Result<DatasetInfo> open(const std::string& name) {
    if (names_.erase(name) == 0) return corrupt(where_, fmt::format("dataset {} is missing", name));
    Result<DatasetInfo> info = open_dataset(group_, name, place(name));
    if (!info) return as_corrupt(info.error());
    return info;
  }

  static Result<void> check_type(const DatasetInfo& info, ArrayType type,
                                 const std::string& where) {
    const hid_t stored = info.type.get();
    const bool is_signed = type != ArrayType::uint64;
    if (H5Tget_class(stored) != H5T_INTEGER ||
        H5Tget_size(stored) != static_cast<std::size_t>(size_bytes(type)) ||
        H5Tget_precision(stored) != static_cast<std::size_t>(size_bytes(type)) * 8 ||
        (H5Tget_sign(stored) == H5T_SGN_2) != is_signed) {
      return corrupt(where, fmt::format("type {}, expected {}int{}", type_text(stored),
                                        is_signed ? "" : "u", size_bytes(type) * 8));
    }
    return {};
  }

  // Only the two filters that the schema allows, once each, so that the bytes in the file bound the
  // bytes in memory.
  Result<void> check_bytes(const DatasetInfo& info, std::int64_t element_bytes,
                           const std::string& where) const {
    const int num_filters = H5Pget_nfilters(info.creation.get());
    int num_deflate = 0;
    for (int i = 0; i < num_filters; ++i) {
      unsigned flags = 0, config = 0;
      std::size_t num_values = 0;
      const H5Z_filter_t filter = H5Pget_filter2(info.creation.get(), static_cast<unsigned>(i),
                                                 &flags, &num_values, nullptr, 0, nullptr, &config);
      num_deflate += filter == H5Z_FILTER_DEFLATE ? 1 : 0;
      if ((filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE) || num_deflate > 1) {
        return corrupt(where, "its filters are not shuffle and deflate, once each");
      }
    }
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    const std::int64_t stored = std::min(info.storage_bytes, input_.size_bytes);
    const std::int64_t factor = num_deflate > 0 ? kMaxCompression : 1;
    const std::int64_t limit = stored > kMax / factor ? kMax : stored * factor;
    if (info.num_elements > limit / element_bytes) {
      return corrupt(where, fmt::format("extents {} need {} bytes each, but the file holds only {} "
                                        "bytes of it",
                                        extents_text(info.extents), element_bytes, stored));
    }
    if (!info.chunk.empty()) {
      std::int64_t chunk_bytes = element_bytes;
      for (const std::int64_t side : info.chunk) {
        chunk_bytes = chunk_bytes > kMaxChunkBytes / side ? kMaxChunkBytes + 1 : chunk_bytes * side;
      }
      if (chunk_bytes > kMaxChunkBytes) {
        return corrupt(where, fmt::format("chunks {} are larger than {} bytes",
                                          extents_text(info.chunk), kMaxChunkBytes));
      }
    }
    return {};
  }

  static Result<void> read_values(const DatasetInfo& info, hid_t memory, void* out,
                                  const std::string& where) {
    if (info.num_elements == 0) return {};
    if (H5Dread(info.dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
      return hdf5_error(where, "cannot read its values");
    }
    return {};
  }

  static Result<void> unpack_runs(const std::vector<std::int64_t>& columns,
                                  std::vector<TileRun>& runs, const std::string& where) {
    runs.resize(columns.size() / 5);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::int64_t* row = columns.data() + i * 5;
      for (int c = 0; c < 4; ++c) {
        if (row[c] < 0 || row[c] > std::numeric_limits<std::int32_t>::max()) {
          return corrupt(where,
                         fmt::format("row {}, column {}: {} is not a 32-bit count", i, c, row[c]));
        }
      }
      runs[i] = {static_cast<std::int32_t>(row[0]), static_cast<std::int32_t>(row[1]),
                 static_cast<std::int32_t>(row[2]), static_cast<std::int32_t>(row[3]), row[4]};
    }
    return {};
  }

  const InputFile& input_;
  hid_t group_;
  std::string where_;
  std::set<std::string> names_;
};

template <class Mask>
Result<void> read_groups(const InputFile& input, hid_t groups, const std::string& where,
                         BlockMask& mask) {
  FDMA_TRY(ArrayReader children, ArrayReader::of(input, groups, where));
  const std::int32_t num_groups = *std::max_element(mask.group_of.begin(), mask.group_of.end()) + 1;
  std::vector<std::size_t> first(static_cast<std::size_t>(num_groups), mask.group_of.size());
  for (std::size_t i = mask.group_of.size(); i-- > 0;) {
    first[static_cast<std::size_t>(mask.group_of[i])] = i;
  }
  std::vector<Mask> stored;
  for (std::int32_t g = 0; g < num_groups; ++g) {
    const std::string name = fmt::format("{}", g);
    const std::string place = fmt::format("{}/{}", where, name);
    if (first[static_cast<std::size_t>(g)] == mask.group_of.size()) {
      return corrupt(where, fmt::format("no batch element and head has group {}", g));
    }
    if (!children.has(name)) return corrupt(where, fmt::format("group {} is missing", name));
    children.take(name);
    Result<Handle> group = open_object(groups, name, place);
    if (!group) return as_corrupt(group.error());
    FDMA_TRY(ArrayReader arrays, ArrayReader::of(input, group->get(), place));

    const auto batch =
        static_cast<std::int64_t>(first[static_cast<std::size_t>(g)]) / mask.shape.num_heads;
    Mask& one = stored.emplace_back();
    one.q_len = mask.shape.q_len(batch);
    one.kv_len = mask.shape.kv_len(batch);
    if constexpr (requires { one.block; }) one.block = mask.block;
    if constexpr (std::is_same_v<Mask, ParametricMask>) {
      std::vector<std::int64_t> parameters;
      FDMA_TRY_VOID(arrays.read("parameters", parameters, ArrayType::int64,
                                exact_rows(std::ssize(kParameters))));
      for (std::size_t i = 0; i < parameters.size(); ++i) one.*kParameters[i] = parameters[i];
    }
    Result<void> status;
    for_each_array(one, [&](const char* array_name, auto& array, ArrayType type, ArrayShape shape) {
      if (status) status = arrays.read(array_name, array, type, shape);
    });
    FDMA_TRY_VOID(status);
    FDMA_TRY_VOID(arrays.expect_no_more());
  }
  FDMA_TRY_VOID(children.expect_no_more());
  mask.groups = std::move(stored);
  return {};
}

Result<std::vector<std::int64_t>> read_lengths(Attributes& attributes, ArrayReader& arrays,
                                               const std::string& attribute,
                                               const std::string& dataset, std::int64_t num_batches,
                                               const std::string& where) {
  if (attributes.has(attribute) && arrays.has(dataset)) {
    return corrupt(where, fmt::format("both attribute {} and dataset {}", attribute, dataset));
  }
  std::vector<std::int64_t> lengths;
  if (arrays.has(dataset)) {
    FDMA_TRY_VOID(arrays.read(dataset, lengths, ArrayType::int64, exact_rows(num_batches)));
    return lengths;
  }
  FDMA_TRY(const std::int64_t length, attributes.integer(attribute, 0, kMaxLength));
  lengths.push_back(length);
  return lengths;
}

bool is_hash(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<BlockMask> read_one(const InputFile& input, hid_t masks, const std::string& name) {
  const std::string where = fmt::format("'{}': /masks/{}", input.path, name);
  FDMA_TRY(const Handle group, open_object(masks, name, where));
  if (H5Iget_type(group.get()) != H5I_GROUP) return corrupt(where, "not a group");
  FDMA_TRY(Attributes attributes, Attributes::of(group.get(), where));
  FDMA_TRY(const std::int64_t version,
           attributes.integer("version", 1, std::numeric_limits<std::int64_t>::max()));
  if (version > kSchemaVersion) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: written by a newer FDMA (file format version {}; this one reads "
                             "up to {})",
                             where, version, kSchemaVersion)};
  }
  BlockMask mask;
  constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
  FDMA_TRY(const std::string format_name, attributes.text("format", 64));
  const Result<MaskFormat> format = parse_mask_format(format_name);
  if (!format) return corrupt(where, fmt::format("attribute format: {}", format.error().message));
  FDMA_TRY(mask.shape.num_batches, attributes.integer("num_batches", 1, kMaxCount));
  FDMA_TRY(mask.shape.num_heads, attributes.integer("num_heads", 1, kMaxCount));
  FDMA_TRY(const std::int64_t block_q, attributes.integer("block_q", 1, kMaxBlockSide));
  FDMA_TRY(const std::int64_t block_kv, attributes.integer("block_kv", 1, kMaxBlockSide));
  mask.block = {static_cast<std::int32_t>(block_q), static_cast<std::int32_t>(block_kv)};
  FDMA_TRY(mask.origin.q_offset, attributes.integer("q_offset", -kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.origin.kv_offset, attributes.integer("kv_offset", -kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.origin.batch_offset, attributes.integer("batch_offset", -kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.origin.head_offset, attributes.integer("head_offset", -kMaxOffset, kMaxOffset));
  FDMA_TRY(const std::string content, attributes.text("content_hash", 64));
  FDMA_TRY(const std::string cells, attributes.text("mask_hash", 64));
  if (!is_hash(content)) return corrupt(where, "attribute content_hash: not 32 hexadecimal digits");
  if (!is_hash(cells)) return corrupt(where, "attribute mask_hash: not 32 hexadecimal digits");

  FDMA_TRY(ArrayReader arrays, ArrayReader::of(input, group.get(), where));
  FDMA_TRY(mask.shape.q_lens,
           read_lengths(attributes, arrays, "q_len", "q_lens", mask.shape.num_batches, where));
  FDMA_TRY(mask.shape.kv_lens,
           read_lengths(attributes, arrays, "kv_len", "kv_lens", mask.shape.num_batches, where));
  if (attributes.has("spec")) {
    FDMA_TRY(mask.spec, attributes.text("spec", std::size_t{64} << 10));
  } else if (arrays.has("spec")) {
    FDMA_TRY(mask.spec, arrays.read_text("spec"));
  } else {
    return corrupt(where, "attribute spec is missing");
  }
  FDMA_TRY_VOID(attributes.expect_no_more());
  for (const Result<void>& valid : {validate(mask.shape), validate(mask.block)}) {
    if (!valid) return corrupt(where, valid.error().message);
  }

  FDMA_TRY_VOID(arrays.read(kGroupMapName, mask.group_of, ArrayType::int32,
                            exact_rows(mask.shape.num_batches, mask.shape.num_heads)));
  for (std::size_t i = 0; i < mask.group_of.size(); ++i) {
    if (mask.group_of[i] < 0 || static_cast<std::size_t>(mask.group_of[i]) > i) {
      return corrupt(where, fmt::format("{}: entry {} is {}, expected groups numbered by first "
                                        "occurrence",
                                        kGroupMapName, i, mask.group_of[i]));
    }
  }
  if (!arrays.has(kGroupsName)) return corrupt(where, "group groups is missing");
  arrays.take(kGroupsName);
  FDMA_TRY_VOID(arrays.expect_no_more());
  const std::string groups_place = fmt::format("{}/{}", where, kGroupsName);
  Result<Handle> groups = open_object(group.get(), kGroupsName, groups_place);
  if (!groups) return as_corrupt(groups.error());
  const hid_t id = groups->get();
  Result<void> status;
  switch (*format) {
    case MaskFormat::segment:
      status = read_groups<SegmentMask>(input, id, groups_place, mask);
      break;
    case MaskFormat::parametric:
      status = read_groups<ParametricMask>(input, id, groups_place, mask);
      break;
    case MaskFormat::bitset:
      status = read_groups<BlockBitset>(input, id, groups_place, mask);
      break;
    case MaskFormat::bcsr:
      status = read_groups<BcsrMask>(input, id, groups_place, mask);
      break;
    case MaskFormat::columns:
      status = read_groups<ColumnIntervals>(input, id, groups_place, mask);
      break;
    case MaskFormat::dense:
      status = read_groups<DenseBits>(input, id, groups_place, mask);
      break;
  }
  FDMA_TRY_VOID(status);
  const Result<void> valid = validate(mask, ValidationLevel::structure);
  if (!valid) return corrupt(where, valid.error().message);
  const std::string hash = to_string(content_hash(mask));
  if (hash != content) {
    return corrupt(where, fmt::format("content_hash is {}, but the arrays have {}", content, hash));
  }
  return mask;
}

}  // namespace
}  // namespace io

Result<std::vector<std::string>> list_masks(const std::string& path) {
  try {
    const io::Session session;
    FDMA_TRY(const io::InputFile input, io::open_input(path));
    FDMA_TRY(const io::Handle group, io::open_masks_group(input));
    return io::link_names(group.get(), fmt::format("'{}': /masks", path));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

Result<BlockMask> read_mask(const std::string& path, const std::string& name) {
  try {
    const io::Session session;
    FDMA_TRY(const io::InputFile input, io::open_input(path));
    FDMA_TRY(const io::Handle group, io::open_masks_group(input));
    FDMA_TRY(const std::vector<std::string> names,
             io::link_names(group.get(), fmt::format("'{}': /masks", path)));
    if (name.empty() && names.size() != 1) {
      return Error{names.empty() ? ErrorCode::corrupt_file : ErrorCode::invalid_argument,
                   names.empty() ? fmt::format("'{}' holds no mask", path)
                                 : fmt::format("'{}' holds {} masks, name one of: {}", path,
                                               names.size(), io::some_of(names))};
    }
    const std::string& chosen = name.empty() ? names[0] : name;
    if (!std::binary_search(names.begin(), names.end(), chosen)) {
      return Error{ErrorCode::io, fmt::format("'{}' holds no mask '{}'; it holds: {}", path, chosen,
                                              names.empty() ? "none" : io::some_of(names))};
    }
    return io::read_one(input, group.get(), chosen);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

}  // namespace fdma
