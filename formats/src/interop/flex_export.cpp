// FlexAttention's arrays from a mask.
//
// create_block_mask sorts each row of 0/1 tile flags stably and descending, so a row of indices is
// a permutation: listed tiles ascending, then the others ascending. There a tile is full only if
// all block_q * block_kv of its cells are true. A tile that reaches past a length never is: it is
// listed among the partial ones, with a bitmap of the cells that exist.
#include <algorithm>

#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/interop/flex_block_mask.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

// The tables of all (batch, head) pairs, filled row by row.
struct Tables {
  FlexIndexTable partial, full;

  Tables(std::int64_t rows, std::int64_t width) {
    for (FlexIndexTable* table : {&partial, &full}) {
      table->width = width;
      table->num_blocks.assign(static_cast<std::size_t>(rows), 0);
      table->indices.resize(static_cast<std::size_t>(rows * width));
    }
  }
};

// Writes one row: `listed` ascending, then every other index below width.
void write_row(FlexIndexTable& table, std::int64_t row, const std::vector<std::int32_t>& listed) {
  std::int32_t* out = table.indices.data() + row * table.width;
  table.num_blocks[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(listed.size());
  out = std::copy(listed.begin(), listed.end(), out);
  std::int32_t next = 0;
  for (const std::int32_t index : listed) {
    while (next < index) *out++ = next++;
    next = index + 1;
  }
  while (next < table.width) *out++ = next++;
}

// Transposed lists of one pair: per column, ascending rows.
void write_transpose(FlexIndexTable& table, std::int64_t pair, std::int64_t columns,
                     const std::vector<std::vector<std::int32_t>>& rows_of) {
  for (std::int64_t col = 0; col < columns; ++col) {
    write_row(table, pair * columns + col, rows_of[static_cast<std::size_t>(col)]);
  }
}

class Exporter {
 public:
  Exporter(const BlockMask& mask, const FlexExportOptions& options)
      : mask_(mask),
        options_(options),
        q_len_(mask.shape.q_lens.front()),
        kv_len_(mask.shape.kv_lens.front()),
        rows_(ceil_div(q_len_, options.block.block_q)),
        cols_(ceil_div(kv_len_, options.block.block_kv)),
        pairs_(mask.shape.num_batches * mask.shape.num_heads) {}

  Result<FlexBlockMask> run() {
    FDMA_TRY_VOID(check_bytes());
    FlexBlockMask flex;
    flex.q_len = q_len_;
    flex.kv_len = kv_len_;
    flex.block_q = options_.block.block_q;
    flex.block_kv = options_.block.block_kv;
    flex.num_batches = mask_.shape.num_batches;
    flex.num_heads = mask_.shape.num_heads;
    Tables kv(pairs_ * rows_, cols_);
    Tables q(options_.with_transpose ? pairs_ * cols_ : 0, rows_);
    std::vector<BcsrMask> groups;
    for (std::int64_t g = 0; g < mask_.num_groups(); ++g) {
      groups.push_back(bcsr_from_segment(segment_of_group(mask_, g, options_.block)));
    }
    for (std::int64_t pair = 0; pair < pairs_; ++pair) {
      write_pair(groups[static_cast<std::size_t>(mask_.group_of[static_cast<std::size_t>(pair)])],
                 pair, kv, q);
    }
    flex.kv = std::move(kv.partial);
    if (options_.separate_full) flex.full_kv = std::move(kv.full);
    if (options_.with_transpose) flex.q = std::move(q.partial);
    if (options_.with_transpose && options_.separate_full) flex.full_q = std::move(q.full);
    if (options_.with_cells) flex.cells = std::move(cells_);
    return flex;
  }

 private:
  Result<void> check_bytes() const {
    // At most 2^24 pairs, 2^27 rows and columns: 2^78 would overflow, so divide.
    const std::int64_t tiles = rows_ * cols_;
    const std::int64_t tables =
        (options_.separate_full ? 2 : 1) * (options_.with_transpose ? 2 : 1);
    if (tiles == 0 || pairs_ <= options_.max_bytes / (4 * tables) / tiles) {
      return check_memory(4 * tables * tiles * pairs_, "FlexAttention's tables");
    }
    return Error{ErrorCode::out_of_memory,
                 fmt::format("FlexAttention's tables: {} pairs of {} x {} tiles take more than {} "
                             "bytes; larger blocks make them smaller",
                             pairs_, rows_, cols_, options_.max_bytes)};
  }

  bool is_ragged(std::int64_t row, std::int64_t col) const {
    return (row + 1) * options_.block.block_q > q_len_ ||
           (col + 1) * options_.block.block_kv > kv_len_;
  }

  void write_pair(const BcsrMask& group, std::int64_t pair, Tables& kv, Tables& q) {
    std::vector<std::int32_t> partial, full;
    std::vector<std::vector<std::int32_t>> partial_rows, full_rows;
    if (options_.with_transpose) {
      partial_rows.resize(static_cast<std::size_t>(cols_));
      full_rows.resize(static_cast<std::size_t>(cols_));
    }
    for (std::int64_t row = 0; row < rows_; ++row) {
      partial.clear();
      full.clear();
      for (auto i = static_cast<std::size_t>(group.row_offsets[static_cast<std::size_t>(row)]);
           i < static_cast<std::size_t>(group.row_offsets[static_cast<std::size_t>(row) + 1]);
           ++i) {
        const std::int32_t col = group.col_indices[i];
        const bool is_full = group.bitmap_index[i] == BcsrMask::kFullBlock;
        const bool is_apart = options_.separate_full && is_full && !is_ragged(row, col);
        (is_apart ? full : partial).push_back(col);
        if (!is_apart && options_.with_cells) append_bitmap(group, i, row, col);
        if (!options_.with_transpose) continue;
        (is_apart ? full_rows : partial_rows)[static_cast<std::size_t>(col)].push_back(
            static_cast<std::int32_t>(row));
      }
      write_row(kv.partial, pair * rows_ + row, partial);
      write_row(kv.full, pair * rows_ + row, full);
    }
    if (!options_.with_transpose) return;
    write_transpose(q.partial, pair, cols_, partial_rows);
    write_transpose(q.full, pair, cols_, full_rows);
  }

  void append_bitmap(const BcsrMask& group, std::size_t entry, std::int64_t row, std::int64_t col) {
    const std::int64_t words = std::int64_t{group.block.block_q} * group.block.block_kv / 64;
    const std::int32_t index = group.bitmap_index[entry];
    if (index != BcsrMask::kFullBlock) {
      cells_.bitmap_index.push_back(intern(group.bitmaps.data() + index * words, words));
      return;
    }
    scratch_.assign(static_cast<std::size_t>(words), 0);
    const std::int64_t last_q =
        std::min<std::int64_t>(group.block.block_q, q_len_ - row * group.block.block_q);
    const std::int64_t last_kv =
        std::min<std::int64_t>(group.block.block_kv, kv_len_ - col * group.block.block_kv);
    for (std::int64_t r = 0; r < last_q; ++r) {
      set_bits(scratch_.data(), r * group.block.block_kv, r * group.block.block_kv + last_kv);
    }
    cells_.bitmap_index.push_back(intern(scratch_.data(), words));
  }

  std::int32_t intern(const std::uint64_t* bits, std::int64_t words) {
    const std::uint64_t hash = hash_words(bits, words);
    std::int32_t index = known_.find(hash, [&](std::int32_t i) {
      return std::equal(bits, bits + words, cells_.bitmaps.data() + i * words);
    });
    if (index >= 0) return index;
    index = static_cast<std::int32_t>(static_cast<std::int64_t>(cells_.bitmaps.size()) / words);
    cells_.bitmaps.insert(cells_.bitmaps.end(), bits, bits + words);
    known_.insert(hash, index);
    return index;
  }

  const BlockMask& mask_;
  const FlexExportOptions& options_;
  const std::int64_t q_len_, kv_len_, rows_, cols_, pairs_;
  FlexCells cells_;
  DataIndex known_;
  std::vector<std::uint64_t> scratch_;
};

}  // namespace

Result<FlexBlockMask> flex_from_block_mask(const BlockMask& mask,
                                           const FlexExportOptions& options) {
  FDMA_TRY_VOID(validate(options.block));
  FDMA_TRY_VOID(interop::check_pairs(mask.shape.num_batches, mask.shape.num_heads));
  FDMA_TRY_VOID(interop::check_uniform(mask.shape, "a FlexAttention BlockMask"));
  return Exporter(mask, options).run();
}

}  // namespace fdma
