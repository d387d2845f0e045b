// libFuzzer: any bytes as the arrays of a mask file, as they are after HDF5 has decoded them, and as
// the message that an isolated reader sends. Segment masks may have patterns (file version 2).
//
// The checks of the reader (stored_mask.hpp, validate at level structure) must answer with an error
// that has words, or let a mask through that every operation takes: both hashes, conversion to
// every format with equal cells, crop, transpose, complement. Half of the inputs are a valid mask
// of the format whose arrays are changed in a few places, half are arrays made from the bytes
// alone.
//
// FDMA_FUZZ_V1=segment (parametric, bitset, bcsr, columns, dense, message, pattern) takes one format
// only; pattern is segment masks that have patterns.
// Run: fuzz_v1_arrays -max_len=4096 <corpus>
#include <tbb/global_control.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/formats/validate.hpp"
#include "fuzz_bytes.hpp"
#include "io/isolated/mask_message.hpp"
#include "stored/stored_mask.hpp"

namespace {

using fdma::BlockMask;
using fdma::BlockShape;
using fdma::MaskFormat;
using fdma::ValidationLevel;
using fdma::fuzz::Bytes;
using fdma::fuzz::require;

// The formats, in the order of kMaskFormats, messages, and segment masks with patterns.
constexpr const char* kTargets[] = {"segment", "parametric", "bitset",  "bcsr",
                                    "columns", "dense",      "message", "pattern"};
constexpr std::size_t kMessage = fdma::kMaskFormats.size();
constexpr std::size_t kPattern = kMessage + 1;
static_assert(std::size(kTargets) == kPattern + 1);

void check_error(const fdma::Error& error) {
  require(!error.message.empty(), "an error without words");
}

template <class T>
std::vector<std::byte> message_of(const T& value) {
  std::vector<std::byte> bytes;
  fdma::io::MessageWriter out([&](const void* data, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + count);
    return true;
  });
  write_message(out, value);
  require(out.flush(), "a message that cannot be written");
  return bytes;
}

// Sends a mask to itself.
fdma::Result<BlockMask> sent(const BlockMask& mask) {
  const std::vector<std::byte> bytes = message_of(mask);
  std::size_t at = 0;
  fdma::io::MessageReader in([&](void* data, std::size_t count) {
    if (count > bytes.size() - at) return false;
    if (count > 0) std::memcpy(data, bytes.data() + at, count);
    at += count;
    return true;
  });
  in.begin(static_cast<std::int64_t>(bytes.size()));
  auto received = fdma::io::read_mask_message(in);
  require(!received || at == bytes.size(), "a message that is not read to its end");
  return received;
}

// What every operation may be given.
void use(const BlockMask& mask) {
  require(to_string(fdma::content_hash(mask)).size() == 32, "no content hash");
  const fdma::Hash128 cells = fdma::mask_hash(mask);
  for (const MaskFormat format : fdma::kMaskFormats) {
    if (format == MaskFormat::parametric) continue;
    const auto converted = fdma::convert(mask, format, mask.block);
    require(converted.has_value(), "a valid mask that cannot be converted");
    if (format != mask.format()) {
      require(fdma::validate(*converted, ValidationLevel::structure).has_value(),
              "a conversion that is not valid");
    }
    require(fdma::equal_cells(mask, *converted), "a conversion with other cells");
    require(fdma::mask_hash(*converted) == cells, "a conversion with another hash");
  }
  const auto closed = fdma::convert(mask, MaskFormat::parametric, mask.block);
  require(!closed || fdma::equal_cells(mask, *closed), "a closed form of other cells");
  const auto other = fdma::complement(mask);
  require(other.has_value(), "a valid mask without a complement");
  const auto again = fdma::complement(*other);
  require(again.has_value() && fdma::equal_cells(mask, *again), "not not a mask is another one");
  const auto turned = fdma::transpose(mask);
  require(turned.has_value(), "a valid mask that cannot be transposed");
  const std::int64_t q = mask.shape.q_len(0) / 3, k = mask.shape.kv_len(0) / 3;
  const auto part = fdma::crop(mask, {q, 2 * q, k, 2 * k, 0, 1, 0, 1});
  require(part.has_value() && fdma::validate(*part, ValidationLevel::structure).has_value(),
          "a valid mask that cannot be cropped");
  const auto received = sent(mask);
  require(received.has_value() && received->groups == mask.groups, "a message changes a mask");
}

// Arrays made of the bytes, of the extents that a file must have.
class ByteArrays {
 public:
  explicit ByteArrays(Bytes& bytes) : bytes_(bytes) {}

  template <class T>
  fdma::Result<void> read(const char*, std::vector<T>& array, fdma::io::ArrayType type,
                          fdma::io::ArrayShape shape) {
    if constexpr (std::is_same_v<T, fdma::TileRun>) {
      std::vector<std::int64_t> columns;
      FDMA_TRY_VOID(read("", columns, type, shape));
      FDMA_TRY(array, fdma::io::unpack_runs(columns));
      return {};
    } else {
      using fdma::io::kAnyRows;
      const std::int64_t width = shape.width == fdma::io::kOneDimensional ? 1 : shape.width;
      const std::int64_t rows = shape.rows == kAnyRows
                                    ? std::min<std::int64_t>(shape.max_rows, bytes_.below(12))
                                    : shape.rows;
      constexpr std::int64_t kMost = 1 << 20;
      if (rows > 0 && width > kMost / rows) return fdma::Error{fdma::ErrorCode::io, "too large"};
      const std::int64_t numbers = rows * width;
      array.resize(static_cast<std::size_t>(numbers * size_bytes(type)) / sizeof(T));
      fill(array, numbers);
      return {};
    }
  }
  fdma::Result<bool> has_patterns() { return bytes_.flag(); }
  fdma::Result<void> expect_no_more() const { return {}; }

 private:
  template <class T>
  void fill(std::vector<T>& array, std::int64_t numbers) {
    const std::uint8_t style = bytes_.next();
    auto* out = reinterpret_cast<std::byte*>(array.data());
    const std::size_t step =
        array.empty() ? 1 : array.size() * sizeof(T) / static_cast<std::size_t>(numbers);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < numbers; ++i) {
      // Bits, offsets that ascend, or whatever comes.
      std::int64_t value = 0;
      if (style % 3 == 0) {
        value = static_cast<std::int64_t>(0x0101010101010101u * bytes_.next());
      } else if (style % 3 == 1) {
        value = sum;
        sum += bytes_.next() & 7;
      } else {
        value = bytes_.wide_number();
      }
      std::memcpy(out + static_cast<std::size_t>(i) * step, &value, step);
    }
  }

  Bytes& bytes_;
};

BlockMask header(Bytes& bytes) {
  BlockMask mask;
  mask.block = {static_cast<std::int32_t>(16 * (1 + bytes.below(4))),
                static_cast<std::int32_t>(16 * (1 + bytes.below(4)))};
  mask.shape.num_batches = 1 + bytes.below(2);
  mask.shape.num_heads = 1 + bytes.below(2);
  const bool is_uniform = bytes.flag();
  for (std::int64_t b = 0; b < (is_uniform ? 1 : mask.shape.num_batches); ++b) {
    mask.shape.q_lens.push_back(bytes.below(100));
    mask.shape.kv_lens.push_back(bytes.below(100));
  }
  for (std::int64_t i = 0; i < mask.shape.num_batches * mask.shape.num_heads; ++i) {
    mask.group_of.push_back(static_cast<std::int32_t>(bytes.below(4)));
  }
  mask.origin.q_offset = bytes.below(3);
  return mask;
}

// A valid mask of that format; cells come from the bytes.
BlockMask valid_mask(MaskFormat format, Bytes& bytes) {
  BlockMask mask = header(bytes);
  mask.shape.q_lens.resize(1);
  mask.shape.kv_lens.resize(1);
  fdma::DenseBits bits;
  bits.q_len = mask.shape.q_lens[0];
  bits.kv_len = mask.shape.kv_lens[0];
  const std::uint8_t style = bytes.next();
  for (std::int64_t q = 0; q < bits.q_len; ++q) {
    for (std::int64_t w = 0; w < bits.words_per_row(); ++w) {
      const std::int64_t left = std::min<std::int64_t>(64, bits.kv_len - 64 * w);
      std::uint64_t word = 0;
      if (style % 3 == 0) {
        word = 0x0101010101010101u * bytes.next();
      } else {  // causal or a window, all the same
        for (std::int64_t k = 0; k < left; ++k) {
          const std::int64_t distance = q - (64 * w + k);
          if (distance >= 0 && (style % 3 == 1 || distance < style)) word |= std::uint64_t{1} << k;
        }
      }
      bits.words.push_back(left == 64 ? word : word & ((std::uint64_t{1} << left) - 1));
    }
  }
  mask.group_of.assign(mask.group_of.size(), 0);
  mask.groups = std::vector<fdma::DenseBits>{std::move(bits)};
  auto converted = fdma::convert(mask, format, mask.block);
  return converted ? *std::move(converted) : mask;
}

// A valid segment mask with patterns. Bitmaps keep clear of cells that do not exist.
BlockMask pattern_mask(Bytes& bytes) {
  using fdma::SegmentKind;
  BlockMask mask = header(bytes);
  mask.shape.q_lens.resize(1);
  mask.shape.kv_lens.resize(1);
  mask.group_of.assign(mask.group_of.size(), 0);
  const std::int64_t q_len = ++mask.shape.q_lens[0], kv_len = ++mask.shape.kv_lens[0];
  const BlockShape block = mask.block;
  fdma::SegmentBuilder builder(q_len, kv_len, block);
  const std::int64_t rows = (q_len - 1) % block.block_q + 1,
                     keys = (kv_len - 1) % block.block_kv + 1;
  std::vector<std::int32_t> choices{fdma::kEmptyTile, fdma::kFullTile};
  for (int i = 0; i < 3; ++i) {
    std::vector<std::uint64_t> words(
        static_cast<std::size_t>(std::int64_t{block.block_q} * block.block_kv / 64));
    for (int cells = 0; cells < 4; ++cells) {
      const std::int64_t at = bytes.below(rows) * block.block_kv + bytes.below(keys);
      fdma::set_bits(words.data(), at, at + 1);
    }
    choices.push_back(builder.intern_bitmap(words.data()));
  }
  std::vector<fdma::SegmentBuilder::PatternContent> contents;
  for (int i = 0; i < 2; ++i) {
    const auto num_rows = static_cast<std::int32_t>(1 + bytes.below(4));
    const auto num_cols = static_cast<std::int32_t>(2 + bytes.below(4));
    const auto skew = static_cast<std::int32_t>(bytes.below(num_cols));
    std::vector<std::int32_t> tiles;
    for (std::int32_t t = 0; t < num_rows * num_cols; ++t) {
      tiles.push_back(choices[static_cast<std::size_t>(bytes.below(std::ssize(choices)))]);
    }
    tiles[0] = fdma::kEmptyTile, tiles[1] = fdma::kFullTile;
    contents.push_back(builder.add_pattern(num_rows, num_cols, skew, tiles));
  }
  const auto num_cols = static_cast<std::int32_t>(fdma::ceil_div(kv_len, block.block_kv));
  const auto num_rows = static_cast<std::int32_t>(fdma::ceil_div(q_len, block.block_q));
  const std::uint8_t style = bytes.next();
  for (std::int32_t row = 0; row < num_rows; ++row) {
    const std::int32_t border =
        std::min(num_cols, style % 3 == 0 ? row + 1 : static_cast<std::int32_t>(1 + style % 5));
    const auto& left = contents[0];
    const auto& right = contents[row < style / 64 ? 0 : 1];
    std::vector<fdma::TileSegment> segments{{0, border, 0, 0, left.kind, left.data_index}};
    if (border < num_cols) {
      segments.push_back({border, num_cols, 0, 0, right.kind, right.data_index});
    }
    builder.add_rows(row, 1, segments);
    builder.skip_to(row + 1);
  }
  mask.groups = std::vector<fdma::SegmentMask>{builder.finish()};
  return mask;
}

// Changes the arrays of a mask in a few places.
void change(BlockMask& mask, Bytes& bytes) {
  std::visit(
      [&](auto& groups) {
        for (int edits = 0; edits < 8 && !bytes.empty(); ++edits) {
          using Mask = std::decay_t<decltype(groups[0])>;
          constexpr bool kHasPatterns = std::is_same_v<Mask, fdma::SegmentMask>;
          const std::int64_t chosen = bytes.below(kHasPatterns ? 10 : 8);
          std::int64_t number = 0;
          const auto edit = [&](const char*, auto& array, fdma::io::ArrayType,
                                fdma::io::ArrayShape) {
            if (number++ != chosen) return;
            const std::uint8_t what = bytes.next();
            if (what == 0 && !array.empty()) return array.pop_back();
            if (what == 1) return array.push_back({});
            if (array.empty()) return;
            auto* raw = reinterpret_cast<std::byte*>(array.data());
            const std::size_t size = array.size() * sizeof(array[0]);
            const std::size_t step = sizeof(array[0]) % 8 == 0 && what % 2 == 0 ? 8 : 4;
            const std::size_t at = static_cast<std::size_t>(bytes.number()) % (size / step) * step;
            std::int64_t value = 0;
            std::memcpy(&value, raw + at, step);
            if (what % 4 < 2) {
              value = bytes.wide_number();
            } else {  // a little off; past the largest number to the smallest
              value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) +
                                                static_cast<std::uint64_t>(bytes.below(5) - 2));
            }
            std::memcpy(raw + at, &value, step);
          };
          fdma::io::for_each_array(groups[0], edit);
          if constexpr (kHasPatterns) fdma::io::for_each_pattern_array(groups[0], edit);
        }
      },
      mask.groups);
}

void fuzz_format(MaskFormat format, bool with_patterns, Bytes& bytes) {
  BlockMask mask;
  if (bytes.flag()) {
    mask = with_patterns ? pattern_mask(bytes) : valid_mask(format, bytes);
    require(fdma::validate(mask, ValidationLevel::structure).has_value(), "a mask is not valid");
    change(mask, bytes);
  } else {
    mask = header(bytes);
    const auto read = fdma::io::read_groups(
        format, mask, [&](std::int64_t) -> fdma::Result<ByteArrays> { return ByteArrays(bytes); });
    if (!read) return check_error(read.error());
  }
  const auto canonical = fdma::validate(mask, ValidationLevel::canonical);
  const auto valid = fdma::validate(mask, ValidationLevel::structure);
  if (!valid) {
    check_error(valid.error());
    require(!canonical, "canonical, but not valid");
    const auto received = sent(mask);
    require(!received, "a message lets a mask through that is not valid");
    return check_error(received.error());
  }
  use(mask);
}

fdma::InteropGroup interop_group(Bytes& bytes) {
  fdma::InteropGroup group;
  for (const char* name : {"a", "b"}) {
    fdma::OwnedTable table;
    table.dtype = static_cast<fdma::DType>(bytes.below(13));
    table.rank = static_cast<int>(bytes.below(fdma::kMaxRank + 1));
    std::int64_t size = size_bytes(table.dtype);
    for (int d = 0; d < table.rank; ++d) size *= table.extents[d] = bytes.below(5);
    table.bytes.resize(static_cast<std::size_t>(size), std::byte{1});
    group.arrays.emplace(name, std::move(table));
  }
  return group;
}

// A message as it should be, with a few numbers changed; or bytes without a plan.
void fuzz_message(Bytes& bytes) {
  const std::int64_t kind = bytes.below(6);
  std::vector<std::byte> message;
  if (kind == 0) {
    const auto format = static_cast<std::size_t>(bytes.below(std::ssize(fdma::kMaskFormats) + 1));
    message = message_of(format == fdma::kMaskFormats.size()
                             ? pattern_mask(bytes)
                             : valid_mask(fdma::kMaskFormats[format], bytes));
  } else if (kind == 1) {
    message = message_of(interop_group(bytes));
  } else {
    for (int i = 0; i < 512; ++i) message.push_back(static_cast<std::byte>(bytes.next()));
  }
  for (int edits = 0; edits < 6 && !bytes.empty() && message.size() >= 8; ++edits) {
    const std::size_t at =
        static_cast<std::size_t>(bytes.number()) % (message.size() / 8) * sizeof(std::int64_t);
    const std::int64_t value = bytes.wide_number();
    std::memcpy(message.data() + at, &value, sizeof value);
  }
  std::size_t at = 0;
  fdma::io::MessageReader in([&](void* data, std::size_t count) {
    if (count > message.size() - at) return false;
    if (count > 0) std::memcpy(data, message.data() + at, count);
    at += count;
    return true;
  });
  in.begin(1 << 20);
  if (kind % 2 == 0 && kind < 4) {
    const auto mask = fdma::io::read_mask_message(in);
    mask ? use(*mask) : check_error(mask.error());
  } else if (kind % 2 == 1 && kind < 4) {
    const auto group = fdma::io::read_interop_message(in);
    if (!group) check_error(group.error());
  } else if (kind == 4) {
    const auto names = fdma::io::read_names_message(in);
    if (!names) check_error(names.error());
  } else {
    const auto options = fdma::io::read_dense_options_message(in);
    if (!options) check_error(options.error());
  }
}

}  // namespace

// One thread: a run of many processes has no others to give, and inputs are small.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  static const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::size_t> chosen =
      fdma::fuzz::chosen_targets("FDMA_FUZZ_V1", kTargets);
  Bytes bytes(data, size);
  const std::size_t target = chosen[bytes.next() % chosen.size()];
  if (target == kMessage) {
    fuzz_message(bytes);
  } else {
    const bool with_patterns = target == kPattern;
    fuzz_format(with_patterns ? MaskFormat::segment : fdma::kMaskFormats[target], with_patterns,
                bytes);
  }
  return 0;
}
