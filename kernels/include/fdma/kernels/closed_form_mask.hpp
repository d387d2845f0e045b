// ClosedFormMask: a closed-form mask as kernels read it, and the tiles and keys that follow from it
// by arithmetic. Host and device run the same code.
//
// A query at position pos sees key k iff lo <= k < hi and (k < near_end or
// pos - left <= k <= pos + right). [lo, hi) is the query's document cut to the keys that exist;
// near_end is the larger of the prefix and of the part of the sink that is not in the future. Rows
// of a tile are consecutive and every one of these bounds grows with the row. The first and last
// row of a tile therefore decide which keys all of its rows see, and which keys any of them sees.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// Lengths in a closed-form plan, and shifts of positions, are at most kClosedFormMaxLength, so
/// positions lie in (-2^29, 3 * 2^28). A distance beyond +-kClosedFormUnbounded reaches no key, and
/// the sum of a position and a distance fits in 32 bits.
inline constexpr std::int32_t kClosedFormUnbounded = std::int32_t{1} << 30;
inline constexpr std::int32_t kClosedFormMaxLength = (std::int32_t{1} << 28) - 1;

/// A ParametricMask (formats/parametric_mask.hpp) for lengths that a call may lower.
///
/// Invariants  left and right lie in [-kClosedFormUnbounded, kClosedFormUnbounded]
///             pos_shift lies in [-kClosedFormMaxLength, kClosedFormMaxLength]
///             the other fields lie in [0, kClosedFormUnbounded]
///             borders, which the plan holds, lie in [-kClosedFormUnbounded, kClosedFormUnbounded]
struct ClosedFormMask {
  std::int32_t pos_shift = 0;  ///< pos = q + kv_len - q_len + pos_shift
  std::int32_t left = kClosedFormUnbounded;
  std::int32_t right = kClosedFormUnbounded;
  std::int32_t prefix = 0;
  std::int32_t sink = 0;
  std::int32_t kv_begin = 0;
  std::int32_t kv_end = kClosedFormUnbounded;
  std::int32_t first_border = 0;  ///< index into the plan's borders
  std::int32_t num_borders = 0;   ///< number of documents + 1; 0: no documents
  friend bool operator==(const ClosedFormMask&, const ClosedFormMask&) = default;
};

/// [begin, end) of keys or tiles; empty if begin >= end.
struct ClosedFormRange {
  std::int32_t begin;
  std::int32_t end;
  FDMA_HOST_DEVICE bool is_empty() const { return begin >= end; }
};

/// Key intervals of consecutive rows that move by one key a row, between bounds of at most two
/// documents. Row i has [max(bounds.begin, begin + i), min(bounds.end, end + i)), where bounds are
/// `first` before `last_row` and `last` from it on. The mask fragments of a tile follow from it
/// without another look at the closed form.
struct alignas(16) ClosedFormBand {
  std::int32_t begin;
  std::int32_t end;
  ClosedFormRange first;
  ClosedFormRange last;
  std::int32_t last_row;
  std::int32_t is_valid;  ///< 0: the rows are not of this kind, and nothing else is set

  FDMA_HOST_DEVICE ClosedFormRange operator[](std::int32_t i) const {
    const ClosedFormRange& bounds = i < last_row ? first : last;
    return {bounds.begin > begin + i ? bounds.begin : begin + i,
            bounds.end < end + i ? bounds.end : end + i};
  }
};

/// The document of pos, which is the number of borders that are not above pos, less one: -1 before
/// the first document, num_borders - 1 after the last.
FDMA_HOST_DEVICE inline std::int32_t closed_form_document(const std::int32_t* borders,
                                                          std::int32_t num_borders,
                                                          std::int32_t pos) {
  std::int32_t low = 0, high = num_borders;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (borders[middle] <= pos) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

/// As above, for a position between two whose documents are known.
FDMA_HOST_DEVICE inline std::int32_t closed_form_document(const std::int32_t* borders,
                                                          std::int32_t pos, std::int32_t first,
                                                          std::int32_t last) {
  if (first == last) return first;
  // Borders first + 1 .. last decide.
  return first + 1 + closed_form_document(borders + first + 1, last - first, pos);
}

/// A closed form with the lengths of one batch element and its borders.
class ClosedFormRows {
 public:
  /// `borders` are the element's own, num_borders of them.
  FDMA_HOST_DEVICE ClosedFormRows(const ClosedFormMask& closed_form, const std::int32_t* borders,
                                  std::int32_t q_len, std::int32_t kv_len)
      : closed_form_(closed_form), borders_(borders), q_len_(q_len), kv_len_(kv_len) {}

  FDMA_HOST_DEVICE std::int32_t pos(std::int32_t q) const {
    return q + kv_len_ - q_len_ + closed_form_.pos_shift;
  }

  /// The document of row q; 0 without documents.
  FDMA_HOST_DEVICE std::int32_t document(std::int32_t q) const {
    return closed_form_.num_borders == 0
               ? 0
               : closed_form_document(borders_, closed_form_.num_borders, pos(q));
  }
  /// As above, for a row between two whose documents are known.
  FDMA_HOST_DEVICE std::int32_t document(std::int32_t q, std::int32_t first,
                                         std::int32_t last) const {
    return closed_form_document(borders_, pos(q), first, last);
  }

  /// The keys [lo, hi) that document, padding and length leave to a row of `document`.
  FDMA_HOST_DEVICE ClosedFormRange bounds(std::int32_t document) const {
    ClosedFormRange keys{closed_form_.kv_begin,
                         closed_form_.kv_end < kv_len_ ? closed_form_.kv_end : kv_len_};
    if (closed_form_.num_borders > 0) {
      const std::int32_t last = closed_form_.num_borders - 1;
      const std::int32_t begin = borders_[document < 0 ? 0 : document];
      const std::int32_t end = document < 0 || document >= last ? begin : borders_[document + 1];
      if (begin > keys.begin) keys.begin = begin;
      if (end < keys.end) keys.end = end;
    }
    return keys;
  }

  /// False iff near_keys is empty for every row.
  FDMA_HOST_DEVICE bool has_near_keys() const {
    return closed_form_.prefix > 0 || closed_form_.sink > 0;
  }

  /// near_keys: the keys [lo, near_end) of row q. band_keys: those from pos - left to pos + right.
  FDMA_HOST_DEVICE ClosedFormRange near_keys(std::int32_t q, ClosedFormRange bounds) const {
    const std::int32_t reach = pos(q) + closed_form_.right + 1;
    std::int32_t end = closed_form_.sink < reach ? closed_form_.sink : reach;
    if (closed_form_.prefix > end) end = closed_form_.prefix;
    return {bounds.begin, end < bounds.end ? end : bounds.end};
  }
  FDMA_HOST_DEVICE ClosedFormRange band_keys(std::int32_t q, ClosedFormRange bounds) const {
    const std::int32_t begin = pos(q) - closed_form_.left, end = pos(q) + closed_form_.right + 1;
    return {begin > bounds.begin ? begin : bounds.begin, end < bounds.end ? end : bounds.end};
  }

  /// The keys of rows from q_begin on. is_valid is 0 if rows may have keys that hit L2, or if the
  /// rows are of more than two documents. `first` and `last` are the documents of the first and
  /// last row.
  FDMA_HOST_DEVICE ClosedFormBand band(std::int32_t q_begin, std::int32_t first,
                                       std::int32_t last) const {
    ClosedFormBand band{};
    if (has_near_keys() || last > first + 1) return band;
    band.begin = pos(q_begin) - closed_form_.left;
    band.end = pos(q_begin) + closed_form_.right + 1;
    band.first = bounds(first);
    band.last = last == first ? band.first : bounds(last);
    band.last_row = last == first ? kClosedFormUnbounded : borders_[last] - pos(q_begin);
    band.is_valid = 1;
    return band;
  }

 private:
  friend class ClosedFormWalk;
  ClosedFormMask closed_form_;
  const std::int32_t* borders_;
  std::int32_t q_len_;
  std::int32_t kv_len_;
};

/// The key tiles of query rows [q_begin, q_end), ascending, in two segments. The middle of each
/// segment holds the tiles that every row sees whole. Tiles outside the segments are empty; tiles
/// at their edges may be.
class ClosedFormWalk {
 public:
  struct TileRun {
    std::int32_t first, end;            ///< tiles; first <= end
    std::int32_t full_first, full_end;  ///< tiles that every row sees whole, cut to the segment
    FDMA_HOST_DEVICE std::int32_t num_full() const {
      const std::int32_t low = full_first > first ? full_first : first;
      const std::int32_t high = full_end < end ? full_end : end;
      return high > low ? high - low : 0;
    }
  };

  /// `first` and `last` are the documents of the first and the last row; q_begin < q_end.
  FDMA_HOST_DEVICE ClosedFormWalk(const ClosedFormRows& rows, std::int32_t q_begin,
                                  std::int32_t q_end, std::int32_t first, std::int32_t last,
                                  std::int32_t block_kv) {
    const ClosedFormRange first_bounds = rows.bounds(first), last_bounds = rows.bounds(last);
    const ClosedFormRange near_first = rows.near_keys(q_begin, first_bounds);
    const ClosedFormRange near_last = rows.near_keys(q_end - 1, last_bounds);
    const ClosedFormRange band_first = rows.band_keys(q_begin, first_bounds);
    const ClosedFormRange band_last = rows.band_keys(q_end - 1, last_bounds);
    // _any: keys that any row sees. _all: keys that every row sees.
    ClosedFormRange near_any{near_first.begin, near_last.end};
    ClosedFormRange near_all{near_last.begin, near_first.end};
    ClosedFormRange band_any{band_first.begin, band_last.end};
    ClosedFormRange band_all{band_last.begin, band_first.end};
    if (rows.closed_form_.left < -rows.closed_form_.right)
      band_any = {0, 0};  // no row has a window
    if (!near_any.is_empty() && !near_all.is_empty() && !band_all.is_empty() &&
        near_all.end >= band_all.begin) {
      // For every row the two are one interval.
      if (near_all.end > band_all.end) band_all.end = near_all.end;
      band_all.begin = near_all.begin;
      if (near_any.end > band_any.end) band_any.end = near_any.end;
      if (near_any.begin < band_any.begin) band_any.begin = near_any.begin;
      near_any = {0, 0};
    }
    set(0, near_any, near_all, block_kv, rows.kv_len_, 0);
    set(1, band_any, band_all, block_kv, rows.kv_len_, tile_runs_[0].end);
    tile_run_ = tile_runs_[0];
  }

  /// The tiles of `block` columns that `any` meets, as one segment; a tile is full where it lies in
  /// `all`, as far as columns exist. `any` and `all` lie in [0, length) or are empty.
  FDMA_HOST_DEVICE ClosedFormWalk(ClosedFormRange any, ClosedFormRange all, std::int32_t length,
                                  std::int32_t block) {
    tile_runs_[0] = {0, 0, 0, 0};
    set(1, any, all, block, length, 0);
    tile_run_ = tile_runs_[0];
  }

  FDMA_HOST_DEVICE std::int32_t num_tiles() const {
    return tile_runs_[0].end - tile_runs_[0].first + tile_runs_[1].end - tile_runs_[1].first;
  }

  /// Goes on as if next had been called `count` times, at most the number of tiles left.
  FDMA_HOST_DEVICE void skip(std::int32_t count) {
    const std::int32_t here = tile_run_.end - tile_run_.first;
    if (count <= here) {
      tile_run_.first += count;
    } else {
      tile_run_ = tile_runs_[1];
      tile_run_.first += count - here;
    }
  }

  /// Segment 0 or 1 as a whole, regardless of what has been walked.
  FDMA_HOST_DEVICE const TileRun& tile_run(int index) const { return tile_runs_[index]; }

  /// The next tile and whether every row sees all of it; false after the last.
  FDMA_HOST_DEVICE bool next(std::int32_t& tile, bool& is_full) {
    if (tile_run_.first >= tile_run_.end) {
      if (tile_run_.end == tile_runs_[1].end) return false;
      tile_run_ = tile_runs_[1];
      if (tile_run_.first >= tile_run_.end) return false;
    }
    tile = tile_run_.first++;
    is_full = tile >= tile_run_.full_first && tile < tile_run_.full_end;
    return true;
  }

 private:
  /// Tiles before `first_tile` belong to the other segment.
  FDMA_HOST_DEVICE void set(int index, ClosedFormRange any, ClosedFormRange all,
                            std::int32_t block_kv, std::int32_t kv_len, std::int32_t first_tile) {
    TileRun& tile_run = tile_runs_[index];
    if (any.is_empty()) {
      tile_run = {first_tile, first_tile, 0, 0};
      return;
    }
    tile_run.first = any.begin / block_kv;
    tile_run.end = (any.end - 1) / block_kv + 1;
    if (tile_run.first < first_tile) tile_run.first = first_tile;
    if (tile_run.end < tile_run.first) tile_run.end = tile_run.first;
    tile_run.full_first = 0;
    tile_run.full_end = 0;
    if (!all.is_empty()) {
      tile_run.full_first = (all.begin + block_kv - 1) / block_kv;
      tile_run.full_end = all.end >= kv_len ? (kv_len - 1) / block_kv + 1 : all.end / block_kv;
    }
  }

  TileRun tile_runs_[2];
  TileRun tile_run_;
};

}  // namespace fdma
