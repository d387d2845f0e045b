// Reading masks. A file is untrusted. Before memory is taken for an array, its type and extents are
// checked against what the lengths imply and its bytes against what the file can hold. The arrays
// are then validated and their hash compared, so that no inconsistent mask is returned.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>

#include "fdma/formats/hash.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/io/mask_file.hpp"
#include "io/hdf5/checked_group.hpp"
#include "io/hdf5/untrusted_file.hpp"
#include "io/masks/masks_group.hpp"
#include "stored/mask_schema.hpp"
#include "stored/stored_mask.hpp"

namespace fdma {
namespace io {

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

Error no_such_mask(const std::string& path, const std::string& name,
                   const std::vector<std::string>& names) {
  return {ErrorCode::io, fmt::format("'{}' holds no mask '{}'; it holds: {}", path, name,
                                     names.empty() ? "none" : some_of(names))};
}

namespace {

// The arrays of one group of a mask, and the handle that keeps them open.
class GroupArrays {
 public:
  static Result<GroupArrays> of(const InputFile& input, hid_t groups, std::int64_t number,
                                const std::string& where, std::int64_t version) {
    const std::string name = fmt::format("{}", number);
    const std::string place = fmt::format("{}/{}", where, name);
    Result<Handle> group = open_object(groups, name, place);
    if (!group) return as_corrupt(group.error());
    FDMA_TRY(CheckedArrays arrays, CheckedArrays::of(input, group->get(), place));
    return GroupArrays(*std::move(group), std::move(arrays), version >= kPatternVersion);
  }

  template <class T>
  Result<void> read(const char* name, std::vector<T>& array, ArrayType type, ArrayShape shape) {
    return arrays_.read(name, array, type, shape);
  }
  Result<bool> has_patterns() const { return may_have_patterns_ && arrays_.has("patterns"); }
  Result<void> expect_no_more() const { return arrays_.expect_no_more(); }

 private:
  GroupArrays(Handle group, CheckedArrays arrays, bool may_have_patterns)
      : group_(std::move(group)),
        arrays_(std::move(arrays)),
        may_have_patterns_(may_have_patterns) {}

  Handle group_;
  CheckedArrays arrays_;
  bool may_have_patterns_;
};

Result<void> read_stored(const InputFile& input, hid_t groups, const std::string& where,
                         MaskFormat format, std::int64_t version, BlockMask& mask) {
  FDMA_TRY(CheckedArrays children, CheckedArrays::of(input, groups, where));
  FDMA_TRY_VOID(read_groups(format, mask, [&](std::int64_t g) -> Result<GroupArrays> {
    const std::string name = fmt::format("{}", g);
    if (!children.has(name)) return corrupt(where, fmt::format("group {} is missing", name));
    children.take(name);
    return GroupArrays::of(input, groups, g, where, version);
  }));
  return children.expect_no_more();
}

Result<std::vector<std::int64_t>> read_lengths(CheckedAttributes& attributes, CheckedArrays& arrays,
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

// An attribute that is 1 or absent.
Result<bool> read_mark(CheckedAttributes& attributes, const char* name) {
  if (!attributes.has(name)) return false;
  FDMA_TRY_VOID(attributes.integer(name, 1, 1));
  return true;
}

bool is_hash(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<BlockMask> read_one(const InputFile& input, hid_t masks, const std::string& name) {
  const std::string where = fmt::format("'{}': /masks/{}", input.path, name);
  FDMA_TRY(const Handle group, open_object(masks, name, where));
  if (H5Iget_type(group.get()) != H5I_GROUP) return corrupt(where, "not a group");
  FDMA_TRY(CheckedAttributes attributes, CheckedAttributes::of(group.get(), where));
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
  FDMA_TRY(mask.is_per_batch, read_mark(attributes, kPerBatchName));
  FDMA_TRY(mask.is_per_head, read_mark(attributes, kPerHeadName));
  FDMA_TRY(const std::string content, attributes.text("content_hash", 64));
  FDMA_TRY(const std::string cells, attributes.text("mask_hash", 64));
  if (!is_hash(content)) return corrupt(where, "attribute content_hash: not 32 hexadecimal digits");
  if (!is_hash(cells)) return corrupt(where, "attribute mask_hash: not 32 hexadecimal digits");

  FDMA_TRY(CheckedArrays arrays, CheckedArrays::of(input, group.get(), where));
  FDMA_TRY(mask.shape.q_lens,
           read_lengths(attributes, arrays, "q_len", "q_lens", mask.shape.num_batches, where));
  FDMA_TRY(mask.shape.kv_lens,
           read_lengths(attributes, arrays, "kv_len", "kv_lens", mask.shape.num_batches, where));
  if (attributes.has("spec")) {
    FDMA_TRY(mask.spec, attributes.text("spec", std::size_t{64} << 10));
  } else if (arrays.has("spec")) {
    FDMA_TRY(mask.spec, arrays.read_text("spec", kMaxSpecBytes));
  } else {
    return corrupt(where, "attribute spec is missing");
  }
  FDMA_TRY_VOID(attributes.expect_no_more());
  for (const Result<void>& valid : {validate(mask.shape), validate(mask.block)}) {
    if (!valid) return corrupt(where, valid.error().message);
  }

  FDMA_TRY_VOID(arrays.read(kGroupMapName, mask.group_of, ArrayType::int32,
                            exact_rows(mask.shape.num_batches, mask.shape.num_heads)));
  const auto numbered = first_pairs(mask.group_of);
  if (!numbered) return corrupt(where, numbered.error().message);
  if (!arrays.has(kGroupsName)) return corrupt(where, "group groups is missing");
  arrays.take(kGroupsName);
  FDMA_TRY_VOID(arrays.expect_no_more());
  const std::string groups_place = fmt::format("{}/{}", where, kGroupsName);
  Result<Handle> groups = open_object(group.get(), kGroupsName, groups_place);
  if (!groups) return as_corrupt(groups.error());
  FDMA_TRY_VOID(read_stored(input, groups->get(), groups_place, *format, version, mask));
  const Result<void> valid = validate(mask, ValidationLevel::structure);
  if (!valid) return corrupt(where, valid.error().message);
  const std::string hash = to_string(content_hash(mask));
  if (hash != content) {
    return corrupt(where, fmt::format("content_hash is {}, but the arrays have {}", content, hash));
  }
  if (version >= kMaskHashVersion) {
    const std::string hash_of_cells = to_string(mask_hash(mask));
    if (hash_of_cells != cells) {
      return corrupt(where,
                     fmt::format("mask_hash is {}, but the cells have {}", cells, hash_of_cells));
    }
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
      return io::no_such_mask(path, chosen, names);
    }
    return io::read_one(input, group.get(), chosen);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)};
  }
}

}  // namespace fdma
