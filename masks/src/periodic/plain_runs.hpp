// Partial tiles of one tile row that are known as runs of equal bitmaps, for SegmentBuilder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_builder.hpp"
#include "periodic/tiles.hpp"

namespace fdma::periodic {

/// Tiles [first, end) with the same contents.
struct PlainRun {
  std::int32_t first;
  std::int32_t end;
  Contents contents;
};

/// Neighbouring partial runs as the builder wants them. Cost: that of the distinct bitmaps; a row
/// panel, which the builder asks for where it is small, costs its tiles.
class StoredRuns final : public PartialRun {
 public:
  StoredRuns(SegmentBuilder& builder, const TileStore& store, BlockShape block,
             std::span<const PlainRun> runs)
      : builder_(builder), store_(store), block_(block), runs_(runs) {}

  std::int64_t num_intervals(std::int64_t limit) override;
  std::int64_t run_end(std::int64_t tile) override { return run_at(tile).end - runs_[0].first; }
  std::uint64_t bitmap_hash(std::int64_t tile) override {
    return store_.hash(run_at(tile).contents);
  }
  std::int32_t intern(std::int64_t tile, std::uint64_t hash) override {
    return builder_.intern_bitmap(store_.words(run_at(tile).contents), hash);
  }
  void write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) override;

 private:
  const PlainRun& run_at(std::int64_t tile) const;

  SegmentBuilder& builder_;
  const TileStore& store_;
  const BlockShape block_;
  const std::span<const PlainRun> runs_;
};

}  // namespace fdma::periodic
