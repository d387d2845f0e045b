// Both ends are one build of this program, so there is no version and no byte order. The file may
// have taken control of the sender, so nothing that it sends is trusted.
#include "io/isolated/mask_message.hpp"

#include <fmt/format.h>

#include <limits>

#include "fdma/formats/validate.hpp"
#include "stored/mask_schema.hpp"
#include "stored/stored_mask.hpp"

namespace fdma::io {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxNames = std::uint64_t{1} << 20;
constexpr std::size_t kMaxNameBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxErrorBytes = std::size_t{1} << 20;

Error wrong(std::string text) { return {ErrorCode::corrupt_file, std::move(text)}; }

// The least and greatest count of numbers of an array of that shape.
struct CountRange {
  std::int64_t low;
  std::int64_t high;
};
CountRange count_range(ArrayShape shape) {
  const std::int64_t width = shape.width == kOneDimensional ? 1 : shape.width;
  const std::int64_t high = limited_product(shape.max_rows, width);
  return {shape.rows == kAnyRows ? 0 : high, high};
}

// The arrays of one group, in the order of mask_schema.hpp.
class MessageArrays {
 public:
  explicit MessageArrays(MessageReader& in) : in_(in) {}

  template <class T>
  Result<void> read(const char* name, std::vector<T>& array, ArrayType type, ArrayShape shape) {
    if constexpr (std::is_same_v<T, TileRun>) {
      std::vector<std::int64_t> columns;
      FDMA_TRY_VOID(read(name, columns, type, shape));
      Result<std::vector<TileRun>> runs = unpack_runs(columns);
      if (!runs) return wrong(fmt::format("{}: {}", name, runs.error().message));
      array = *std::move(runs);
      return {};
    } else {
      // An element is one number, or all numbers of a row (intervals, segments).
      const auto numbers_per_element = static_cast<std::int64_t>(sizeof(T)) / size_bytes(type);
      const auto [low, high] = count_range(shape);
      const Result<void> status =
          in_.array(array, static_cast<std::uint64_t>(high / numbers_per_element));
      if (!status) {
        return Error{status.error().code, fmt::format("{}: {}", name, status.error().message)};
      }
      const std::int64_t numbers = std::ssize(array) * numbers_per_element;
      const std::int64_t width = shape.width == kOneDimensional ? 1 : shape.width;
      if (numbers < low || (width > 0 && numbers % width != 0)) {
        return wrong(fmt::format("{}: {} numbers, expected {} in rows of {}", name, numbers,
                                 shape.rows == kAnyRows ? "any" : fmt::format("{}", low), width));
      }
      return {};
    }
  }
  Result<bool> has_patterns() const { return true; }  // their arrays are sent, empty or not
  Result<void> expect_no_more() const { return {}; }

 private:
  MessageReader& in_;
};

bool is_dtype(std::uint64_t value) { return value <= static_cast<std::uint64_t>(DType::float64); }

}  // namespace

void write_message(MessageWriter& out, BlockMask mask) {
  out.number(static_cast<std::uint64_t>(mask.format()));
  out.integer(mask.shape.num_batches);
  out.integer(mask.shape.num_heads);
  out.integer(mask.block.block_q);
  out.integer(mask.block.block_kv);
  out.integer(mask.origin.q_offset);
  out.integer(mask.origin.kv_offset);
  out.integer(mask.origin.batch_offset);
  out.integer(mask.origin.head_offset);
  out.flag(mask.is_per_batch);
  out.flag(mask.is_per_head);
  out.text(mask.spec);
  out.array(mask.shape.q_lens);
  out.array(mask.shape.kv_lens);
  out.give_array(mask.group_of);
  std::visit(
      [&](auto& groups) {
        for (auto& group : groups) {
          if constexpr (std::is_same_v<std::decay_t<decltype(group)>, ParametricMask>) {
            std::vector<std::int64_t> parameters;
            for (const auto member : kParameters) parameters.push_back(group.*member);
            out.array(parameters);
          }
          const auto give = [&](const char*, auto& array, ArrayType, ArrayShape) {
            if constexpr (std::is_same_v<std::decay_t<decltype(array)>, std::vector<TileRun>>) {
              out.array(pack_runs(array));
            } else {
              out.give_array(array);
            }
          };
          for_each_array(group, give);
          if constexpr (std::is_same_v<std::decay_t<decltype(group)>, SegmentMask>) {
            for_each_pattern_array(group, give);
          }
        }
      },
      mask.groups);
}

Result<BlockMask> read_mask_message(MessageReader& in) {
  BlockMask mask;
  FDMA_TRY(const std::uint64_t format, in.number(kMaskFormats.size() - 1));
  FDMA_TRY(mask.shape.num_batches, in.integer(1, kMaxCount));
  FDMA_TRY(mask.shape.num_heads, in.integer(1, kMaxCount));
  FDMA_TRY(const std::int64_t block_q, in.integer(1, kMaxBlockSide));
  FDMA_TRY(const std::int64_t block_kv, in.integer(1, kMaxBlockSide));
  mask.block = {static_cast<std::int32_t>(block_q), static_cast<std::int32_t>(block_kv)};
  FDMA_TRY(mask.origin.q_offset, in.integer(-kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.origin.kv_offset, in.integer(-kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.origin.batch_offset, in.integer(-kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.origin.head_offset, in.integer(-kMaxOffset, kMaxOffset));
  FDMA_TRY(mask.is_per_batch, in.flag());
  FDMA_TRY(mask.is_per_head, in.flag());
  FDMA_TRY(mask.spec, in.text(kMaxSpecBytes));
  const auto num_batches = static_cast<std::uint64_t>(mask.shape.num_batches);
  FDMA_TRY_VOID(in.array(mask.shape.q_lens, num_batches));
  FDMA_TRY_VOID(in.array(mask.shape.kv_lens, num_batches));
  for (const Result<void>& valid : {validate(mask.shape), validate(mask.block)}) {
    if (!valid) return wrong(valid.error().message);
  }
  const std::uint64_t num_pairs = num_batches * static_cast<std::uint64_t>(mask.shape.num_heads);
  FDMA_TRY_VOID(in.array(mask.group_of, num_pairs));
  if (mask.group_of.size() != num_pairs) {
    return wrong(
        fmt::format("{}: {} entries, expected {}", kGroupMapName, mask.group_of.size(), num_pairs));
  }
  FDMA_TRY_VOID(
      read_groups(static_cast<MaskFormat>(format), mask,
                  [&](std::int64_t) -> Result<MessageArrays> { return MessageArrays(in); }));
  const Result<void> valid = validate(mask, ValidationLevel::structure);
  if (!valid) return wrong(valid.error().message);
  return mask;
}

void write_message(MessageWriter& out, OwnedTable table) {
  out.number(static_cast<std::uint64_t>(table.dtype));
  out.integer(table.rank);
  for (const std::int64_t extent : table.extents) out.integer(extent);
  out.give_array(table.bytes);
}

Result<OwnedTable> read_table_message(MessageReader& in) {
  OwnedTable table;
  FDMA_TRY(const std::uint64_t dtype, in.number(std::numeric_limits<std::uint8_t>::max()));
  if (!is_dtype(dtype)) return wrong(fmt::format("element type {}", dtype));
  table.dtype = static_cast<DType>(dtype);
  FDMA_TRY(const std::int64_t rank, in.integer(0, kMaxRank));
  table.rank = static_cast<int>(rank);
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;
  std::int64_t bytes = size_bytes(table.dtype);
  for (int d = 0; d < kMaxRank; ++d) {
    FDMA_TRY(table.extents[d], in.integer(d < rank ? 0 : 1, d < rank ? kMaxBytes : 1));
  }
  for (const std::int64_t extent : table.extents) {
    if (extent == 0) bytes = 0;
  }
  for (const std::int64_t extent : table.extents) {
    if (bytes != 0 && extent > kMaxBytes / bytes) return wrong("extents beyond 2^62 bytes");
    bytes *= extent;
  }
  FDMA_TRY_VOID(in.array(table.bytes, static_cast<std::uint64_t>(bytes)));
  if (std::ssize(table.bytes) != bytes) {
    return wrong(fmt::format("{} bytes, but the extents need {}", table.bytes.size(), bytes));
  }
  if (table.dtype == DType::boolean) {
    for (const std::byte value : table.bytes) {
      if (value > std::byte{1}) return wrong("a boolean that is neither 0 nor 1");
    }
  }
  return table;
}

void write_message(MessageWriter& out, InteropGroup group) {
  auto arrays = std::move(group.arrays);
  out.number(arrays.size());
  for (auto& [name, table] : arrays) {
    out.text(name);
    write_message(out, std::move(table));
  }
}

Result<InteropGroup> read_interop_message(MessageReader& in) {
  InteropGroup group;
  FDMA_TRY(const std::uint64_t count, in.number(kMaxNames));
  for (std::uint64_t i = 0; i < count; ++i) {
    FDMA_TRY(std::string name, in.text(kMaxNameBytes));
    FDMA_TRY(OwnedTable table, read_table_message(in));
    if (!group.arrays.emplace(std::move(name), std::move(table)).second) {
      return wrong("two arrays of one name");
    }
  }
  return group;
}

void write_message(MessageWriter& out, const std::vector<std::string>& names) {
  out.number(names.size());
  for (const std::string& name : names) out.text(name);
}

Result<std::vector<std::string>> read_names_message(MessageReader& in) {
  std::vector<std::string> names;
  FDMA_TRY(const std::uint64_t count, in.number(kMaxNames));
  for (std::uint64_t i = 0; i < count; ++i) {
    FDMA_TRY(std::string name, in.text(kMaxNameBytes));
    names.push_back(std::move(name));
  }
  return names;
}

void write_message(MessageWriter& out, const FileContents& contents) {
  out.flag(contents.is_complete);
  out.number(contents.datasets.size());
  for (const DatasetEntry& entry : contents.datasets) {
    out.text(entry.path);
    out.text(entry.type);
    out.array(entry.extents);
  }
}

Result<FileContents> read_contents_message(MessageReader& in) {
  constexpr std::uint64_t kMaxExtents = 32;  // of HDF5
  FileContents contents;
  FDMA_TRY(contents.is_complete, in.flag());
  FDMA_TRY(const std::uint64_t count, in.number(kMaxNames));
  for (std::uint64_t i = 0; i < count; ++i) {
    DatasetEntry entry;
    FDMA_TRY(entry.path, in.text(kMaxErrorBytes));
    FDMA_TRY(entry.type, in.text(kMaxNameBytes));
    FDMA_TRY_VOID(in.array(entry.extents, kMaxExtents));
    contents.datasets.push_back(std::move(entry));
  }
  return contents;
}

void write_message(MessageWriter& out, const Error& error) {
  out.number(static_cast<std::uint64_t>(error.code));
  out.text(std::string_view(error.message).substr(0, kMaxErrorBytes));
}

Result<void> read_error_message(MessageReader& in, Error& error) {
  FDMA_TRY(const std::uint64_t code, in.number(static_cast<std::uint64_t>(ErrorCode::internal)));
  FDMA_TRY(error.message, in.text(kMaxErrorBytes));
  error.code = static_cast<ErrorCode>(code);
  return {};
}

void write_message(MessageWriter& out, const DenseReadOptions& options) {
  out.number(options.dims ? 1 + static_cast<std::uint64_t>(*options.dims) : 0);
  out.flag(options.true_means_attend);
  out.flag(options.drop_below.has_value());
  out.real(options.drop_below.value_or(0));
  out.flag(options.ones_keep);
  out.integer(options.q_len);
  out.integer(options.block.block_q);
  out.integer(options.block.block_kv);
  out.integer(options.num_threads);
  out.flag(options.allow_plugins);
  out.flag(options.reads_directly);
  out.integer(options.max_result_bytes);
}

Result<DenseReadOptions> read_dense_options_message(MessageReader& in) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int32_t>::max();
  DenseReadOptions options;
  FDMA_TRY(const std::uint64_t dims, in.number(1 + static_cast<std::uint64_t>(DenseDims::bk)));
  if (dims > 0) options.dims = static_cast<DenseDims>(dims - 1);
  FDMA_TRY(options.true_means_attend, in.flag());
  FDMA_TRY(const bool has_drop_below, in.flag());
  FDMA_TRY(const double drop_below, in.real());
  if (has_drop_below) options.drop_below = drop_below;
  FDMA_TRY(options.ones_keep, in.flag());
  FDMA_TRY(options.q_len, in.integer(-kMaxOffset, kMaxOffset));
  FDMA_TRY(const std::int64_t block_q, in.integer(kLow, kHigh));
  FDMA_TRY(const std::int64_t block_kv, in.integer(kLow, kHigh));
  FDMA_TRY(const std::int64_t num_threads, in.integer(kLow, kHigh));
  options.block = {static_cast<std::int32_t>(block_q), static_cast<std::int32_t>(block_kv)};
  options.num_threads = static_cast<int>(num_threads);
  FDMA_TRY(options.allow_plugins, in.flag());
  FDMA_TRY(options.reads_directly, in.flag());
  FDMA_TRY(options.max_result_bytes, in.integer(0, kMaxOffset));
  return options;
}

}  // namespace fdma::io
