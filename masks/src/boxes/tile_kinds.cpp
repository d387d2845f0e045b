#include "boxes/tile_kinds.hpp"

#include <algorithm>
#include <bit>

namespace fdma::box {
namespace {

/// New tiles that are always evaluated before a thread judges whether numbers help.
constexpr std::int64_t kMinNew = 64;
constexpr std::int64_t kNewShare = 256;
constexpr std::int64_t kMaxBytes = std::int64_t{32} << 20;

}  // namespace

TileKinds::TileKinds(const TileNumbers& numbers, BlockShape block, std::int64_t num_tiles,
                     std::atomic<std::int32_t>& next_number)
    : numbers_(numbers),
      bitmap_bytes_(std::int64_t{block.block_q} * block.block_kv / 8),
      max_new_(std::max(kMinNew, num_tiles / kNewShare)),
      next_number_(next_number) {}

void TileKinds::begin_row(std::int32_t tile_row, bool is_cut_below) {
  is_cut_below_ = is_cut_below;
  numbers_.begin_row(tile_row);
}

TileKind* TileKinds::add(State state, std::span<const std::uint64_t> words) {
  ++num_new_;
  TileKind* kind = nullptr;
  if (state == State::partial) {
    kind = &kinds_.emplace_back();
    kind->words.assign(words.begin(), words.end());
    kind->hash = hash_words(words.data(), std::ssize(words));
    kind->number = next_number_.fetch_add(1, std::memory_order_relaxed);
  }
  is_useful_ = is_useful_ && std::ssize(kinds_) * bitmap_bytes_ <= kMaxBytes &&
               (num_new_ <= max_new_ || num_new_ <= num_found_);
  if (number_ != TileNumbers::Worker::kNone) {
    const std::size_t at = place_of(number_);
    if (at >= entries_.size()) {
      entries_.resize(std::max(at + 4, 4 * static_cast<std::size_t>(numbers_.num_numbers())));
    }
    entries_[at] = {state, kind};
  }
  return kind;
}

std::span<const PartialRun::NumberedTiles> KindRun::numbers() {
  numbers_.clear();
  for (std::size_t tile = 0; tile < kinds_.size();) {
    const TileKind* kind = kinds_[tile];
    while (tile < kinds_.size() && kinds_[tile] == kind) ++tile;
    numbers_.push_back({kind->number, static_cast<std::int32_t>(tile)});
  }
  return numbers_;
}

std::int32_t KindRun::intern(std::int64_t tile, std::uint64_t hash) {
  TileKind& kind = at(tile);
  if (kind.bitmap < 0) kind.bitmap = builder_.intern_bitmap(kind.words.data(), hash);
  return kind.bitmap;
}

// Calls visit(row, begin, end) for every key interval of every row. Stops when visit returns false.
template <class Visit>
void KindRun::for_each_interval(Visit&& visit) const {
  const std::int64_t block_kv = block_.block_kv;
  for (std::int64_t r = 0; r < block_.block_q; ++r) {
    std::int64_t open = -1;  // first key of the current interval
    for (std::int64_t tile = 0; tile < std::ssize(kinds_); ++tile) {
      for (std::int64_t c = 0; c < block_kv; c += 64) {
        const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
        const std::uint64_t bits = read_bits(at(tile).words.data(), r * block_kv + c, width);
        const std::int64_t key = tile * block_kv + c;
        for (int i = 0; i < width;) {
          // The next place where a bit differs from what is open.
          const std::uint64_t rest = (open >= 0 ? ~bits : bits) >> i;
          i = rest == 0 ? width : i + std::countr_zero(rest);
          if (i >= width) break;
          if (open < 0) {
            open = key + i;
          } else {
            if (!visit(r, open, key + i)) return;
            open = -1;
          }
        }
      }
    }
    if (open >= 0 && !visit(r, open, std::ssize(kinds_) * block_kv)) return;
  }
}

std::int64_t KindRun::num_intervals(std::int64_t limit) {
  std::int64_t count = 0;
  for_each_interval([&](std::int64_t, std::int64_t, std::int64_t) { return ++count <= limit; });
  return count;
}

void KindRun::write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) {
  for_each_interval([&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    ++offsets[static_cast<std::size_t>(r) + 1];
    intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
    return true;
  });
  for (std::size_t r = 1; r < offsets.size(); ++r) offsets[r] += offsets[r - 1];
}

}  // namespace fdma::box
