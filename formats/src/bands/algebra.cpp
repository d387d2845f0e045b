// Set operations on masks whose rows see intervals that move linearly.
//
// Combining. The rows are divided into ranges that one band of each mask (or none) covers. In such
// a range every bound is a line. The lines of one mask keep their order; those of two are merged by
// key and swept once, and some of them bound the intervals in which the operation holds. Two
// neighbouring lines keep their order up to the row in which they meet, which takes one division
// for each pair; so long the intervals are linear. A row in which different lines meet is a range of its
// own; BandSequence joins it to what it continues. Example: window over documents. In each document
// the window's lower bound meets the document's once, which gives two bands.
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
#include <algorithm>
#include <utility>
#include <vector>

#include "fdma/formats/band_algebra.hpp"
#include "fdma/formats/band_sequence.hpp"

namespace fdma {
namespace {

constexpr unsigned kOwnerB = 1, kOwnerA = 2, kExists = 4;
constexpr std::int64_t kNever = INT64_MAX;

// The bounds of a list of intervals by their keys in one row.
class LineWalker {
 public:
  LineWalker(std::span<const AffineInterval> intervals, std::int64_t q)
      : next_(intervals.data()), end_(intervals.data() + intervals.size()), q_(q) {
    at_ = next_ == end_ ? kNever : lo_at(*next_, q);
  }
  /// The key of the current bound, kNever after the last one.
  std::int64_t at() const { return at_; }
  std::int64_t base() const { return is_end_ ? next_->hi_base : next_->lo_base; }
  std::int32_t slope() const { return is_end_ ? next_->hi_slope : next_->lo_slope; }
  void advance() {
    next_ += is_end_ ? 1 : 0;
    is_end_ = !is_end_;
    at_ = next_ == end_ ? kNever : is_end_ ? hi_at(*next_, q_) : lo_at(*next_, q_);
  }

 private:
  const AffineInterval* next_;
  const AffineInterval* end_;
  std::int64_t q_;
  std::int64_t at_;
  bool is_end_ = false;
};

// The bands of one mask, row by row.
class BandWalker {
 public:
  explicit BandWalker(const RowBands& bands) : bands_(bands) {}

  /// Moves on to row q. Returns the first row from which other intervals hold.
  std::int64_t advance(std::int64_t q) {
    while (next_ < bands_.bands.size() && bands_.bands[next_].q_end <= q) ++next_;
    intervals_ = {};
    if (next_ == bands_.bands.size()) return kNever;
    const RowBand& band = bands_.bands[next_];
    if (band.q_begin > q) return band.q_begin;
    intervals_ = std::span(bands_.intervals)
                     .subspan(static_cast<std::size_t>(band.first_interval),
                              static_cast<std::size_t>(band.num_intervals));
    return band.q_end;
  }
  bool is_done() const { return next_ == bands_.bands.size(); }
  std::span<const AffineInterval> intervals() const { return intervals_; }

 private:
  const RowBands& bands_;
  std::size_t next_ = 0;
  std::span<const AffineInterval> intervals_;
};

class Combination {
 public:
  Combination(TruthTable table, std::int64_t q_len, std::int64_t kv_len, BandBudget* budget)
      : table_(table), q_len_(q_len), kv_len_(kv_len), budget_(budget), result_(q_len, kv_len) {}

  /// False if the budget ended the work.
  bool run(const RowBands& a, const RowBands& b) { return combine(a, b) && ask(); }
  RowBands& result() { return result_.bands(); }

 private:
  static constexpr std::size_t kStepsBetweenQuestions = 256;

  bool combine(const RowBands& a, const RowBands& b) {
    result_.reserve(std::max(a.bands.size(), b.bands.size()));
    BandWalker walker_a(a), walker_b(b);
    const bool fills_gaps = holds(table_, false, false);
    for (std::int64_t q = 0;;) {
      std::int64_t end = std::min(walker_a.advance(q), walker_b.advance(q));
      if (fills_gaps) end = std::min(end, q_len_);
      if (fills_gaps ? q >= q_len_ : walker_a.is_done() && walker_b.is_done()) return true;
      if (table_ == kIntersection && (walker_a.is_done() || walker_b.is_done())) return true;
      if (!add_rows(q, end, walker_a.intervals(), walker_b.intervals())) return false;
      q = end;
    }
  }

  bool spend(std::size_t steps) {
    pending_ += steps;
    return pending_ < kStepsBetweenQuestions || ask();
  }
  bool ask() {
    return budget_ == nullptr || budget_->spend(std::exchange(pending_, 0), result_.bands());
  }

  bool add_rows(std::int64_t q_begin, std::int64_t q_end, std::span<const AffineInterval> a,
                std::span<const AffineInterval> b) {
    if (!holds(table_, false, false)) {
      if (b.empty()) return copy_rows(q_begin, q_end, a, holds(table_, true, false));
      if (a.empty()) return copy_rows(q_begin, q_end, b, holds(table_, false, true));
    }
    if (q_end - q_begin == 1 && a.size() == 1 && b.size() == 1 && table_ == kIntersection) {
      const AffineInterval both{std::max(lo_at(a[0], q_begin), lo_at(b[0], q_begin)),
                                std::min(hi_at(a[0], q_begin), hi_at(b[0], q_begin)), 0, 0};
      if (both.lo_base < both.hi_base) result_.add(q_begin, q_end, {&both, 1});
      return spend(2);
    }
    for (std::int64_t q = q_begin; q < q_end;) {
      const std::int64_t rows = sweep(q, q_end - q, a, b);
      result_.add(q, q + rows, intervals_);
      if (!spend(1 + 2 * (a.size() + b.size()))) return false;
      q += rows;
    }
    return true;
  }

  bool copy_rows(std::int64_t q_begin, std::int64_t q_end, std::span<const AffineInterval> rows,
                 bool is_kept) {
    if (is_kept) result_.add(q_begin, q_end, rows);
    return spend(1 + rows.size());
  }

  // Sets intervals_ to the intervals of row q in which the operation holds. Returns the number of
  // rows from q on, at most `most_rows`, in which the lines keep their order: neighbours stay
  // apart, or lie on each other.
  std::int64_t sweep(std::int64_t q, std::int64_t most_rows, std::span<const AffineInterval> a,
                     std::span<const AffineInterval> b) {
    const bool fills_gaps = holds(table_, false, false);
    const AffineInterval keys{0, kv_len_, 0, 0};
    const bool has_keys = fills_gaps && kv_len_ > 0;
    LineWalker line_a(a, q), line_b(b, q), line_keys({&keys, has_keys ? 1u : 0u}, q);
    intervals_.clear();
    std::int64_t rows = most_rows, before = 0, slope_before = 0;
    unsigned state = fills_gaps ? 0 : kExists;
    bool was_true = false, is_first = true;
    for (;;) {
      const std::int64_t at = std::min({line_a.at(), line_b.at(), line_keys.at()});
      if (at == kNever) return rows;
      const LineWalker& line = line_a.at() == at ? line_a : line_b.at() == at ? line_b : line_keys;
      const std::int64_t base = line.base();
      const std::int32_t slope = line.slope();
      const auto take = [&](LineWalker& walker, unsigned owner) {
        if (walker.at() != at) return;
        state ^= owner;
        const std::int64_t gap = at - before, step = walker.slope() - slope_before;
        if (rows > 1 && !is_first && step != 0) {
          if (gap == 0) rows = 1;
          if (gap > 0 && step < 0) rows = std::min(rows, (gap - 1) / -step + 1);
        }
        before = at;
        slope_before = walker.slope();
        is_first = false;
        walker.advance();
      };
      take(line_a, kOwnerA);
      take(line_b, kOwnerB);
      take(line_keys, kExists);
      const bool is_true =
          (state & kExists) != 0 && holds(table_, (state & kOwnerA) != 0, (state & kOwnerB) != 0);
      if (is_true == was_true) continue;
      was_true = is_true;
      if (was_true) {
        intervals_.push_back({base, 0, slope, 0});
      } else {
        intervals_.back().hi_base = base;
        intervals_.back().hi_slope = slope;
      }
    }
  }

  const TruthTable table_;
  const std::int64_t q_len_, kv_len_;
  BandBudget* const budget_;
  std::size_t pending_ = 0;  // steps since the budget was asked
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
  Combination combination(table, a.q_len, a.kv_len, nullptr);
  combination.run(a, b);
  return std::move(combination.result());
}

std::optional<RowBands> combine_bands(TruthTable table, const RowBands& a, const RowBands& b,
                                      BandBudget& budget) {
  Combination combination(table, a.q_len, a.kv_len, &budget);
  if (!combination.run(a, b)) return std::nullopt;
  return std::move(combination.result());
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
  if (q_len == 0 || kv_len == 0) return {q_len, kv_len, {}, {}};
  const RowBands cells{
      q_len, kv_len, {{0, static_cast<std::int32_t>(q_len), 0, 1}}, {{0, kv_len, 0, 0}}};
  return combine_bands(kIntersection, moved, cells);
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
