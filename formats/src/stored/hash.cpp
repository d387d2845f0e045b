// Hashes of masks: XXH3, 128 bits, over a byte stream of fixed layout.
//
// Every number is little-endian; every array is preceded by its number of elements, so that no two
// structures give the same stream. The stream begins with a word that names what is hashed and the
// version of this layout: hashes are stored in files and must not change.
#include "fdma/formats/hash.hpp"

#include <fmt/format.h>

#include <bit>
#include <memory>
#include <type_traits>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fdma/base/parallel.hpp"
#include "stored/cell_sum.hpp"

namespace fdma {
namespace {

enum class Subject : std::uint64_t {  // "FDMA", what, layout version
  content = 0x0001'0001'414D'4446,
  cells = 0x0002'0002'414D'4446,  // version 1 hashed the segments of blocks of 128 x 128
};

class HashStream {
 public:
  explicit HashStream(Subject subject) : state_(XXH3_createState()) {
    XXH3_128bits_reset(state_.get());
    add(static_cast<std::uint64_t>(subject));
  }

  template <class T>
  requires std::is_integral_v<T>
  void add(T value) {
    if constexpr (std::endian::native == std::endian::little) {
      XXH3_128bits_update(state_.get(), &value, sizeof value);
    } else {
      unsigned char bytes[sizeof value];
      for (std::size_t i = 0; i < sizeof value; ++i) {
        bytes[i] = static_cast<unsigned char>(static_cast<std::make_unsigned_t<T>>(value) >> 8 * i);
      }
      XXH3_128bits_update(state_.get(), bytes, sizeof bytes);
    }
  }
  void add(const Interval& i) {
    add(i.begin);
    add(i.end);
  }
  void add(const TileRun& run) {
    add(run.first_row);
    add(run.row_stride);
    add(run.num_rows);
    add(run.num_segments);
    add(run.first_segment);
  }
  void add(const TileSegment& segment) {
    add(segment.first_tile);
    add(segment.end_tile);
    add(segment.step_first);
    add(segment.step_end);
    add(static_cast<std::int32_t>(segment.kind));
    add(segment.data_index);
  }

  void add(const PatternTile& tile) {
    add(tile.column);
    add(tile.bitmap);
  }

  template <class T>
  void add(const std::vector<T>& values) {
    add(static_cast<std::uint64_t>(values.size()));
    // Elements without padding lie in memory in the layout of the stream.
    if constexpr (std::endian::native == std::endian::little &&
                  std::has_unique_object_representations_v<T>) {
      XXH3_128bits_update(state_.get(), values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) add(value);
    }
  }

  Hash128 finish() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.high64, hash.low64};
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

void add_fields(HashStream& out, BlockShape block) {
  out.add(block.block_q);
  out.add(block.block_kv);
}

void add_fields(HashStream& out, const SegmentMask& mask) {
  add_fields(out, mask.block);
  out.add(mask.runs);
  out.add(mask.segments);
  out.add(mask.bitmaps);
  out.add(mask.row_offsets);
  out.add(mask.row_intervals);
  out.add(mask.column_offsets);
  out.add(mask.column_intervals);
  if (!mask.has_patterns()) return;
  for (const TilePattern& pattern : mask.patterns) {
    out.add(pattern.num_rows);
    out.add(pattern.num_cols);
    out.add(pattern.skew);
    out.add(pattern.first_row);
  }
  out.add(mask.pattern_offsets);
  out.add(mask.pattern_tiles);
}

void add_fields(HashStream& out, const ParametricMask& mask) {
  for (const std::int64_t value : {mask.pos_offset, mask.left, mask.right, mask.prefix, mask.sink,
                                   mask.kv_begin, mask.kv_end}) {
    out.add(value);
  }
  out.add(mask.cu_seqlens);
}

void add_fields(HashStream& out, const BlockBitset& mask) {
  add_fields(out, mask.block);
  out.add(mask.active);
  out.add(mask.full);
  out.add(mask.partial_offsets);
  out.add(mask.bitmap_index);
  out.add(mask.bitmaps);
}

void add_fields(HashStream& out, const BcsrMask& mask) {
  add_fields(out, mask.block);
  out.add(mask.row_offsets);
  out.add(mask.col_indices);
  out.add(mask.bitmap_index);
  out.add(mask.bitmaps);
}

void add_fields(HashStream& out, const ColumnIntervals& mask) {
  out.add(mask.offsets);
  out.add(mask.intervals);
}

void add_fields(HashStream& out, const DenseBits& mask) { out.add(mask.words); }

}  // namespace

std::string to_string(const Hash128& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

Hash128 content_hash(const BlockMask& mask) {
  HashStream out(Subject::content);
  out.add(static_cast<std::uint64_t>(mask.groups.index()));
  add_fields(out, mask.block);
  out.add(mask.shape.num_batches);
  out.add(mask.shape.num_heads);
  out.add(mask.shape.q_lens);
  out.add(mask.shape.kv_lens);
  for (const std::int64_t offset : {mask.origin.q_offset, mask.origin.kv_offset,
                                    mask.origin.batch_offset, mask.origin.head_offset}) {
    out.add(offset);
  }
  out.add(mask.group_of);
  out.add(mask.num_groups());
  std::visit(
      [&](const auto& groups) {
        for (const auto& group : groups) {
          out.add(group.q_len);
          out.add(group.kv_len);
          add_fields(out, group);
        }
      },
      mask.groups);
  return out.finish();
}

Hash128 mask_hash(const BlockMask& mask) {
  std::vector<Residues> sums(static_cast<std::size_t>(mask.num_groups()));
  std::visit(
      [&](const auto& groups) {
        const auto add = [&](std::size_t g) { sums[g] = cell_sum(groups[g]); };
        if (groups.size() == 1) {  // most masks: no other thread is asked
          add(0);
        } else {
          parallel_for(std::size_t{0}, groups.size(), add);
        }
      },
      mask.groups);
  HashStream out(Subject::cells);
  out.add(mask.shape.num_batches);
  out.add(mask.shape.num_heads);
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    out.add(mask.shape.q_len(b));
    out.add(mask.shape.kv_len(b));
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
      const Residues& sum = sums[static_cast<std::size_t>(mask.group(b, h))];
      out.add(sum.first);
      out.add(sum.second);
    }
  }
  return out.finish();
}

}  // namespace fdma
