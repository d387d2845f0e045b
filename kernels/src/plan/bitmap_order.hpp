// Converts bitmaps to the order in which a backend reads them.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"

namespace fdma {

/// Writes bit r * block_kv + c of `row_major` to bit c * block_q + r of `key_major`; both have
/// block_q * block_kv / 64 words. Cost: one 8 x 8 transposition per 64 cells.
void key_major_from_row_major(const std::uint64_t* row_major, BlockShape block,
                              std::uint64_t* key_major);

/// A tile of 128 x 128 in the order of the sm90 kernels: for thread t of 256 its 32-bit words 2t
/// and 2t + 1 (thread_cells.hpp: mask_cell; thread t % 128 of warpgroup t / 128). Both have 256
/// words of 64 bits.
void thread_fragments_from_row_major(const std::uint64_t* row_major,
                                     std::uint64_t* thread_fragments);

/// The same for a mask tile of 128 / heads_per_tile x 128 whose rows several heads share. Row r of
/// the tile is row r / heads_per_tile of `row_major`, which has 256 / heads_per_tile words.
void packed_thread_fragments_from_row_major(const std::uint64_t* row_major, int heads_per_tile,
                                            std::uint64_t* thread_fragments);

}  // namespace fdma
