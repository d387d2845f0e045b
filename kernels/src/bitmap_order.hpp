// Bitmaps in the order in which a backend reads them.
#pragma once

#include <cstdint>

#include "fdma/formats/interval.hpp"

namespace fdma {

/// Writes bit r * block_kv + c of `row_major` to bit c * block_q + r of `key_major`; both have
/// block_q * block_kv / 64 words. Cost: one 8 x 8 transposition per 64 cells.
void key_major_from_row_major(const std::uint64_t* row_major, BlockShape block,
                              std::uint64_t* key_major);

}  // namespace fdma
