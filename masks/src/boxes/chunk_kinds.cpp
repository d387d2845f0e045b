#include "boxes/chunk_kinds.hpp"

#include <algorithm>

namespace fdma::box {
namespace {

/// New chunks before a thread judges whether they help, and the most that it keeps.
constexpr std::int64_t kMinNew = 256;
constexpr std::int64_t kMostKept = std::int64_t{1} << 14;

}  // namespace

void ChunkKinds::begin_row(std::int32_t tile_row, bool is_cut_below) {
  is_cut_below_ = is_cut_below;
  numbers_.begin_row(tile_row);
}

const ChunkTiles* ChunkKinds::find(std::int32_t chunk) {
  const bool is_cut_right = (std::int64_t{chunk} + 1) * chunk_keys_ > kv_len_;
  std::int32_t number = TileNumbers::Worker::kNone;
  numbers_.number(chunk, chunk + 1, &number);
  at_ = number == TileNumbers::Worker::kNone
            ? -1
            : 4 * std::int64_t{number} + (is_cut_below_ ? 2 : 0) + (is_cut_right ? 1 : 0);
  if (at_ < 0 || at_ >= std::ssize(indices_)) return nullptr;
  const std::int32_t index = indices_[static_cast<std::size_t>(at_)];
  if (index < 0) return nullptr;
  ++num_found_;
  return &chunks_[static_cast<std::size_t>(index)];
}

void ChunkKinds::add(std::span<const TileRange> ranges, std::int32_t first_tile,
                     std::span<TileKind* const> kinds) {
  ++num_new_;
  is_useful_ = std::ssize(chunks_) < kMostKept && (num_new_ <= kMinNew || num_new_ <= num_found_);
  if (at_ < 0) return;
  if (at_ >= std::ssize(indices_)) {
    indices_.resize(static_cast<std::size_t>(
                        std::max(at_ + 4, 4 * static_cast<std::int64_t>(numbers_.num_numbers()))),
                    -1);
  }
  indices_[static_cast<std::size_t>(at_)] = static_cast<std::int32_t>(chunks_.size());
  ChunkTiles& chunk = chunks_.emplace_back();
  for (const TileRange& range : ranges) {
    chunk.ranges.push_back({range.first - first_tile, range.end - first_tile, range.is_full});
  }
  chunk.kinds.assign(kinds.begin(), kinds.end());
}

}  // namespace fdma::box
