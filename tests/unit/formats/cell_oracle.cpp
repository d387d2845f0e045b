#include "cell_oracle.hpp"

#include <algorithm>

namespace fdma::testing {
namespace {

// Copies the bits of a tile to the cells. Every bit of a cell that does not exist must be 0.
void put_tile(Cells& cells, BlockShape block, std::int64_t row, std::int64_t col,
              const std::uint64_t* words) {
  for (std::int64_t r = 0; r < block.block_q; ++r) {
    for (std::int64_t c = 0; c < block.block_kv; ++c) {
      const std::int64_t bit = r * block.block_kv + c;
      if ((words[bit / 64] >> (bit % 64) & 1) == 0) continue;
      cells.at(row * block.block_q + r, col * block.block_kv + c) = 1;
    }
  }
}

void fill_tile(Cells& cells, BlockShape block, std::int64_t row, std::int64_t col) {
  for (std::int64_t q = row * block.block_q; q < std::min((row + 1) * block.block_q, cells.q_len);
       ++q) {
    for (std::int64_t k = col * block.block_kv;
         k < std::min((col + 1) * block.block_kv, cells.kv_len); ++k) {
      cells.at(q, k) = 1;
    }
  }
}

}  // namespace

DenseBits dense_of(const Cells& cells) {
  DenseBits dense;
  dense.q_len = cells.q_len;
  dense.kv_len = cells.kv_len;
  dense.words.resize(static_cast<std::size_t>(cells.q_len * dense.words_per_row()));
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    for (std::int64_t k = 0; k < cells.kv_len; ++k) {
      if (!cells.get(q, k)) continue;
      dense.words[static_cast<std::size_t>(q * dense.words_per_row() + k / 64)] |= std::uint64_t{1}
                                                                                   << (k % 64);
    }
  }
  return dense;
}

Cells cells_of(const SegmentMask& mask) {
  Cells cells(mask.q_len, mask.kv_len);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(mask.words_per_bitmap()));
  for (const TileRun& run : mask.runs) {
    for (std::int32_t i = 0; i < run.num_rows; ++i) {
      const std::int32_t row = run.first_row + i * run.row_stride;
      for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
        TileSegment segment = mask.segments[static_cast<std::size_t>(s)];
        segment.first_tile += i * segment.step_first;
        segment.end_tile += i * segment.step_end;
        for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
          tile_cells(mask, segment, row, col, words.data());
          put_tile(cells, mask.block, row, col, words.data());
        }
      }
    }
  }
  return cells;
}

Cells cells_of(const ParametricMask& mask) {
  return make_cells(mask.q_len, mask.kv_len, [&](std::int64_t q, std::int64_t k) {
    const std::int64_t pos = q + mask.pos_offset;
    bool same_document = mask.cu_seqlens.empty();
    for (std::size_t d = 0; d + 1 < mask.cu_seqlens.size(); ++d) {
      const std::int64_t begin = mask.cu_seqlens[d], end = mask.cu_seqlens[d + 1];
      same_document = same_document || (begin <= pos && pos < end && begin <= k && k < end);
    }
    // k <= pos + right and k >= pos - left do not overflow in this form, because k - pos is small.
    const bool sees_right = k - pos <= mask.right;
    const bool sees_left = mask.left >= pos - k;
    return mask.kv_begin <= k && k < mask.kv_end && same_document &&
           (k < mask.prefix || (sees_right && (sees_left || k < mask.sink)));
  });
}

Cells cells_of(const BlockBitset& mask) {
  Cells cells(mask.q_len, mask.kv_len);
  const std::int64_t words_per_bitmap = std::int64_t{mask.block.block_q} * mask.block.block_kv / 64;
  std::size_t next = 0;
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    for (std::int64_t col = 0; col < mask.num_tile_cols(); ++col) {
      const auto word = static_cast<std::size_t>(row * mask.words_per_row() + col / 64);
      if ((mask.active[word] >> (col % 64) & 1) == 0) continue;
      if ((mask.full[word] >> (col % 64) & 1) != 0) {
        fill_tile(cells, mask.block, row, col);
      } else {
        put_tile(cells, mask.block, row, col,
                 mask.bitmaps.data() + mask.bitmap_index[next++] * words_per_bitmap);
      }
    }
  }
  return cells;
}

Cells cells_of(const BcsrMask& mask) {
  Cells cells(mask.q_len, mask.kv_len);
  const std::int64_t words_per_bitmap = std::int64_t{mask.block.block_q} * mask.block.block_kv / 64;
  for (std::size_t row = 0; row + 1 < mask.row_offsets.size(); ++row) {
    for (auto i = static_cast<std::size_t>(mask.row_offsets[row]);
         i < static_cast<std::size_t>(mask.row_offsets[row + 1]); ++i) {
      const auto tile_row = static_cast<std::int64_t>(row);
      if (mask.bitmap_index[i] == BcsrMask::kFullBlock) {
        fill_tile(cells, mask.block, tile_row, mask.col_indices[i]);
      } else {
        put_tile(cells, mask.block, tile_row, mask.col_indices[i],
                 mask.bitmaps.data() + mask.bitmap_index[i] * words_per_bitmap);
      }
    }
  }
  return cells;
}

Cells cells_of(const ColumnIntervals& mask) {
  Cells cells(mask.q_len, mask.kv_len);
  for (std::int64_t k = 0; k < mask.kv_len; ++k) {
    const auto key = static_cast<std::size_t>(k);
    for (std::int64_t i = mask.offsets[key]; i < mask.offsets[key + 1]; ++i) {
      const Interval queries = mask.intervals[static_cast<std::size_t>(i)];
      for (std::int64_t q = queries.begin; q < queries.end; ++q) cells.at(q, k) = 1;
    }
  }
  return cells;
}

Cells cells_of(const DenseBits& mask) {
  return make_cells(mask.q_len, mask.kv_len,
                    [&](std::int64_t q, std::int64_t k) { return mask.at(q, k); });
}

Cells cells_of(const BlockMask& mask, std::int64_t group) {
  return std::visit(
      [&](const auto& masks) { return cells_of(masks[static_cast<std::size_t>(group)]); },
      mask.groups);
}

Cells crop_cells(const Cells& cells, std::int64_t q_begin, std::int64_t q_end,
                 std::int64_t kv_begin, std::int64_t kv_end) {
  return make_cells(q_end - q_begin, kv_end - kv_begin, [&](std::int64_t q, std::int64_t k) {
    return cells.get(q_begin + q, kv_begin + k);
  });
}

std::int64_t pick(std::mt19937& rng, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(rng);
}

BlockShape random_block(std::mt19937& rng) {
  static constexpr BlockShape kBlocks[] = {{16, 16},   {16, 32},   {32, 16},  {48, 80},
                                           {80, 48},   {64, 64},   {64, 128}, {128, 64},
                                           {128, 128}, {16, 1024}, {256, 16}, {112, 144}};
  return kBlocks[pick(rng, 0, static_cast<std::int64_t>(std::size(kBlocks)) - 1)];
}

Cells random_cells(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  const std::int64_t offset = kv_len - q_len;
  switch (pick(rng, 0, 8)) {
    case 0: {  // noise
      const std::int64_t odds = std::int64_t{1} << pick(rng, 0, 10);
      const bool inverted = pick(rng, 0, 1) == 1;
      return make_cells(q_len, kv_len, [&](std::int64_t, std::int64_t) {
        return (pick(rng, 0, odds) == 0) != inverted;
      });
    }
    case 1: {  // window, perhaps with a sink
      const std::int64_t left = pick(rng, 0, 100), right = pick(rng, -20, 60);
      const std::int64_t sink = pick(rng, 0, 1) * pick(rng, 0, 70);
      return make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
        const std::int64_t pos = q + offset;
        return k <= pos + right && (k >= pos - left || k < sink);
      });
    }
    case 2: {  // documents, perhaps causal, interleaved or in order
      const std::int64_t length = pick(rng, 1, 100), ways = pick(rng, 1, 4);
      const bool causal = pick(rng, 0, 1) == 1;
      return make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
        const std::int64_t pos = q + offset;
        if (pos < 0) return false;
        return pos / length % ways == k / length % ways && (!causal || k <= pos);
      });
    }
    case 3: {  // a stride in keys
      const std::int64_t step = pick(rng, 2, 90), phase = pick(rng, 0, 1);
      return make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
        return (k + phase * q) % step == 0;
      });
    }
    case 4: {  // random live range per key
      std::vector<Interval> lives;
      for (std::int64_t k = 0; k < kv_len; ++k) {
        const auto begin = static_cast<std::int32_t>(pick(rng, 0, q_len));
        lives.push_back({begin, static_cast<std::int32_t>(begin + pick(rng, 0, 100))});
      }
      return make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
        return lives[static_cast<std::size_t>(k)].begin <= q &&
               q < lives[static_cast<std::size_t>(k)].end;
      });
    }
    case 5:
      return make_cells(q_len, kv_len, [](std::int64_t, std::int64_t) { return true; });
    case 6:
      return Cells(q_len, kv_len);
    case 7: {  // one cell of its own in an otherwise full or empty mask
      const bool inverted = pick(rng, 0, 1) == 1;
      Cells cells = make_cells(q_len, kv_len, [&](std::int64_t, std::int64_t) { return inverted; });
      if (q_len > 0 && kv_len > 0) {
        cells.at(pick(rng, 0, q_len - 1), pick(rng, 0, kv_len - 1)) = inverted ? 0 : 1;
      }
      return cells;
    }
    default: {  // tiles of noise of random sizes
      const std::int64_t side_q = pick(rng, 1, 70), side_k = pick(rng, 1, 70);
      const auto salt = static_cast<std::uint64_t>(rng());
      return make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
        std::uint64_t x = static_cast<std::uint64_t>(q / side_q) * 1000003 +
                          static_cast<std::uint64_t>(k / side_k) * 7919 + salt;
        x *= 0x9E3779B97F4A7C15;
        return (x >> 60) < 5;
      });
    }
  }
}

BlockMask block_mask_of(const Cells& cells, BlockShape block) {
  MaskShape shape;
  shape.q_lens = {cells.q_len};
  shape.kv_lens = {cells.kv_len};
  return make_block_mask(shape, block, {segment_from_dense(dense_of(cells), block)});
}

BlockMask random_block_mask(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len,
                            BlockShape block) {
  MaskShape shape;
  shape.num_batches = pick(rng, 1, 3);
  shape.num_heads = pick(rng, 1, 3);
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  std::vector<SegmentMask> masks;
  for (std::int64_t i = pick(rng, 1, 3); i > 0; --i) {
    masks.push_back(segment_from_dense(dense_of(random_cells(rng, q_len, kv_len)), block));
  }
  std::vector<std::int32_t> mask_of;
  for (std::int64_t i = 0; i < shape.num_batches * shape.num_heads; ++i) {
    mask_of.push_back(
        static_cast<std::int32_t>(pick(rng, 0, static_cast<std::int64_t>(masks.size()) - 1)));
  }
  return make_block_mask(shape, block, masks, mask_of);
}

}  // namespace fdma::testing
