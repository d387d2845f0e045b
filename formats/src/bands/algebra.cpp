// Set operations on masks whose rows see intervals that move linearly.
//
// Combining. The rows are divided into ranges that one band of each mask (or none) covers. In such
// a range every bound is a line. Sorted by key, two neighbouring lines keep their order up to the
// row in which they meet, which takes one division for each pair. Up to that row the lines are
// swept once, from key 0 to kv_len; some of them bound the intervals in which the operation holds.
// A row in which different lines meet is a range of its own; BandSequence joins it to what it
// continues. Example: window over documents. In each document the window's lower bound meets the
// document's once, which gives two bands.
//
// Moving. The lines of the bands are moved, and the result is combined with the rectangle of the
// cells that exist.
//
// Transposing. One interval of one band with slopes 0 or 1 gives each key one interval of rows. It
// begins at the band's first row or, where the end moves, one after the row whose interval ended at
// the key. It ends at the band's end or at the last row whose interval begins at the key. Each
// interval is cut into at most three column runs where one of these rules takes over from the
// other. The column runs are sorted by first key and swept. Those that hold a key, in order of
// their rows, are its intervals, joined where a column run goes on in the next band. Example:
// causal & documents gives one column run for each document.
#include "bands/algebra.hpp"

#include <algorithm>
#include <vector>

#include "bands/sequence.hpp"

namespace fdma {
namespace {

// A bound of an interval, and the owner of the interval.
struct Line {
  std::int64_t base;
  std::int64_t slope;
  unsigned owner;   // bit 0: b, bit 1: a, bit 2: the keys that exist
  std::int64_t at;  // its key in the first row of the range
};
constexpr unsigned kOwnerB = 1, kOwnerA = 2, kExists = 4;

// The bands of one mask, row by row.
class BandWalker {
 public:
  explicit BandWalker(const RowBands& bands) : bands_(bands) {}

  /// Moves on to row q. Returns the first row from which other intervals hold.
  std::int64_t advance(std::int64_t q) {
    while (next_ < bands_.bands.size() && bands_.bands[next_].q_end <= q) ++next_;
    if (next_ == bands_.bands.size()) {
      intervals_ = {};
      return bands_.q_len;
    }
    const RowBand& band = bands_.bands[next_];
    if (band.q_begin > q) {
      intervals_ = {};
      return band.q_begin;
    }
    intervals_ = std::span(bands_.intervals)
                     .subspan(static_cast<std::size_t>(band.first_interval),
                              static_cast<std::size_t>(band.num_intervals));
    return band.q_end;
  }
  std::span<const AffineInterval> intervals() const { return intervals_; }

 private:
  const RowBands& bands_;
  std::size_t next_ = 0;
  std::span<const AffineInterval> intervals_;
};

class Combination {
 public:
  Combination(TruthTable table, std::int64_t q_len, std::int64_t kv_len)
      : q_len_(q_len), kv_len_(kv_len), result_(q_len, kv_len) {
    for (unsigned state = 0; state < 8; ++state) {
      is_true_[state] =
          (state & kExists) != 0 && holds(table, (state & kOwnerA) != 0, (state & kOwnerB) != 0);
    }
  }

  RowBands run(const RowBands& a, const RowBands& b) {
    BandWalker walker_a(a), walker_b(b);
    for (std::int64_t q = 0; q < q_len_;) {
      const std::int64_t end = std::min({walker_a.advance(q), walker_b.advance(q), q_len_});
      add_rows(q, end, walker_a.intervals(), walker_b.intervals());
      q = end;
    }
    return std::move(result_.bands());
  }

 private:
  void add_rows(std::int64_t q_begin, std::int64_t q_end, std::span<const AffineInterval> a,
                std::span<const AffineInterval> b) {
    lines_.clear();
    add_lines(a, kOwnerA);
    add_lines(b, kOwnerB);
    lines_.push_back({0, 0, kExists, 0});
    lines_.push_back({kv_len_, 0, kExists, 0});
    for (std::int64_t q = q_begin; q < q_end;) {
      for (Line& line : lines_) line.at = line.base + line.slope * q;
      sort_lines();
      const std::int64_t rows = std::min(q_end - q, rows_in_order());
      sweep();
      result_.add(q, q + rows, intervals_);
      q += rows;
    }
  }

  void add_lines(std::span<const AffineInterval> intervals, unsigned owner) {
    for (const AffineInterval& i : intervals) {
      lines_.push_back({i.lo_base, i.lo_slope, owner, 0});
      lines_.push_back({i.hi_base, i.hi_slope, owner, 0});
    }
  }

  void sort_lines() {  // by insertion: they are few, and in order except those that met
    for (std::size_t i = 1; i < lines_.size(); ++i) {
      const Line line = lines_[i];
      std::size_t j = i;
      for (; j > 0 && lines_[j - 1].at > line.at; --j) lines_[j] = lines_[j - 1];
      lines_[j] = line;
    }
  }

  // The number of rows in which neighbouring lines stay apart, or one.
  std::int64_t rows_in_order() const {
    std::int64_t rows = INT64_MAX;
    for (std::size_t i = 1; i < lines_.size(); ++i) {
      const std::int64_t gap = lines_[i].at - lines_[i - 1].at;
      const std::int64_t step = lines_[i].slope - lines_[i - 1].slope;
      if (gap == 0 && step != 0) return 1;
      if (gap > 0 && step < 0) rows = std::min(rows, (gap - 1) / -step + 1);
    }
    return rows;
  }

  // Sets intervals_ to the intervals in which the operation holds.
  void sweep() {
    intervals_.clear();
    unsigned state = 0;
    bool was_true = false;
    for (std::size_t i = 0; i < lines_.size();) {
      const Line& line = lines_[i];
      for (; i < lines_.size() && lines_[i].at == line.at; ++i) state ^= lines_[i].owner;
      if (is_true_[state] == was_true) continue;
      was_true = !was_true;
      const auto slope = static_cast<std::int32_t>(line.slope);
      if (was_true) {
        intervals_.push_back({line.base, 0, slope, 0});
      } else {
        intervals_.back().hi_base = line.base;
        intervals_.back().hi_slope = slope;
      }
    }
  }

  const std::int64_t q_len_, kv_len_;
  bool is_true_[8];
  std::vector<Line> lines_;
  std::vector<AffineInterval> intervals_;
  BandSequence result_;
};

// Keys [k_begin, k_end) of one interval of one band, and the rows that see them.
struct ColumnRun {
  std::int64_t k_begin;
  std::int64_t k_end;
  AffineInterval queries;  // as a function of the key
};

// The most column runs, summed over the keys at which they change; above this number
// tiles are the better form.
constexpr std::int64_t kMaxRunsSwept = 100000;

bool append_column_runs(const RowBand& band, const AffineInterval& keys,
                        std::vector<ColumnRun>& runs) {
  const std::int64_t q_begin = band.q_begin, q_end = band.q_end;
  const bool is_row = q_end - q_begin == 1;
  const auto can_move = [&](std::int32_t slope) { return is_row || slope == 0 || slope == 1; };
  if (!can_move(keys.lo_slope) || !can_move(keys.hi_slope)) return false;
  const bool lo_moves = !is_row && keys.lo_slope == 1, hi_moves = !is_row && keys.hi_slope == 1;
  const std::int64_t k_begin = lo_at(keys, q_begin), k_end = hi_at(keys, q_end - 1);
  // From key after_first on the first row has ended; from key from_last on the last has begun.
  const std::int64_t after_first = hi_moves ? std::min(hi_at(keys, q_begin), k_end) : k_end;
  const std::int64_t from_last = lo_moves ? std::max(lo_at(keys, q_end - 1), k_begin) : k_begin;
  std::int64_t at = k_begin;
  for (const std::int64_t cut :
       {std::min(after_first, from_last), std::max(after_first, from_last), k_end}) {
    if (at >= cut) continue;
    AffineInterval queries{q_begin, q_end, 0, 0};
    if (at >= after_first) {
      queries.lo_base = 1 - keys.hi_base;
      queries.lo_slope = 1;
    }
    if (at < from_last) {
      queries.hi_base = 1 - keys.lo_base;
      queries.hi_slope = 1;
    }
    runs.push_back({at, cut, queries});
    at = cut;
  }
  return true;
}

}  // namespace

RowBands combine_bands(TruthTable table, const RowBands& a, const RowBands& b) {
  return Combination(table, a.q_len, a.kv_len).run(a, b);
}

RowBands move_bands(const RowBands& mask, std::int64_t dq, std::int64_t dk, std::int64_t q_len,
                    std::int64_t kv_len) {
  RowBands moved;
  moved.q_len = q_len;
  moved.kv_len = kv_len;
  moved.intervals = mask.intervals;
  for (AffineInterval& keys : moved.intervals) {
    keys.lo_base += dk - keys.lo_slope * dq;
    keys.hi_base += dk - keys.hi_slope * dq;
  }
  moved.bands.reserve(mask.bands.size());
  for (const RowBand& band : mask.bands) {
    const std::int64_t begin = std::clamp<std::int64_t>(band.q_begin + dq, 0, q_len);
    const std::int64_t end = std::clamp<std::int64_t>(band.q_end + dq, 0, q_len);
    if (begin >= end) continue;
    moved.bands.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                           band.first_interval, band.num_intervals});
  }
  constexpr TruthTable kIsA = 0b1100;
  const RowBands nothing{q_len, kv_len, {}, {}};
  return Combination(kIsA, q_len, kv_len).run(moved, nothing);
}

std::optional<RowBands> transpose_bands(const RowBands& mask) {
  std::vector<ColumnRun> runs;
  runs.reserve(mask.intervals.size() + mask.intervals.size() / 2);
  for (const RowBand& band : mask.bands) {
    for (std::int32_t i = 0; i < band.num_intervals; ++i) {
      const auto at = static_cast<std::size_t>(band.first_interval + i);
      if (!append_column_runs(band, mask.intervals[at], runs)) return std::nullopt;
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const ColumnRun& a, const ColumnRun& b) { return a.k_begin < b.k_begin; });
  BandSequence result(mask.kv_len, mask.q_len);
  std::vector<ColumnRun> live;
  std::vector<AffineInterval> queries;
  std::int64_t num_swept = 0;
  auto next = runs.begin();
  for (std::int64_t k = 0; next != runs.end() || !live.empty();) {
    if (live.empty()) k = next->k_begin;
    for (; next != runs.end() && next->k_begin == k; ++next) live.push_back(*next);
    std::sort(live.begin(), live.end(), [k](const ColumnRun& a, const ColumnRun& b) {
      return lo_at(a.queries, k) < lo_at(b.queries, k);
    });
    std::int64_t end = next == runs.end() ? INT64_MAX : next->k_begin;
    queries.clear();
    for (const ColumnRun& run : live) {
      end = std::min(end, run.k_end);
      if (!queries.empty() && queries.back().hi_base == run.queries.lo_base &&
          queries.back().hi_slope == run.queries.lo_slope) {
        queries.back().hi_base = run.queries.hi_base;
        queries.back().hi_slope = run.queries.hi_slope;
      } else {
        queries.push_back(run.queries);
      }
    }
    num_swept += std::ssize(live);
    if (num_swept > kMaxRunsSwept) return std::nullopt;
    result.add(k, end, queries);
    k = end;
    live.erase(std::remove_if(live.begin(), live.end(),
                              [k](const ColumnRun& run) { return run.k_end == k; }),
               live.end());
  }
  return std::move(result.bands());
}

}  // namespace fdma
