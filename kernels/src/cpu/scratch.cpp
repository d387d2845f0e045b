// Sizes and allocates the scratch memory of a CPU thread.
#include "cpu/scratch.hpp"

#include <cstddef>

namespace fdma::cpu {
namespace {

std::int64_t num_row_words(BlockShape tile) { return kChunkColumns * ceil_div(tile.block_q, 64); }

std::int64_t num_tile_words(BlockShape tile) {
  return 2 * (std::int64_t{tile.block_q} * tile.block_kv / 64);
}

}  // namespace

Chunk::Chunk(BlockShape mask_tile, bool has_dropout)
    : columns(kChunkColumns),
      row_bits(static_cast<std::size_t>(num_row_words(mask_tile))),
      kept_bits(has_dropout ? row_bits.size() : 0),
      tile_words(static_cast<std::size_t>(num_tile_words(mask_tile))) {}

std::int64_t Chunk::bytes(BlockShape mask_tile) {
  return 4 * kChunkColumns + 8 * (2 * num_row_words(mask_tile) + num_tile_words(mask_tile));
}

void FloatBlock::add(float*& array, std::int64_t count) {
  helper_tasks_.push_back({&array, num_floats_});
  num_floats_ += ceil_div(count, kCacheLine) * kCacheLine;
}

void FloatBlock::allocate() {
  memory_.resize(static_cast<std::size_t>(num_floats_ + kCacheLine));
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) / sizeof(float);
  float* const begin = memory_.data() + (kCacheLine - address % kCacheLine) % kCacheLine;
  for (const Request& request : helper_tasks_) *request.array = begin + request.offset;
  helper_tasks_.clear();
}

}  // namespace fdma::cpu
