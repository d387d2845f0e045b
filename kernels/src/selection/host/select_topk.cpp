// There are two ways to one result.
//
// Where visible sets only grow (one_interval.hpp), a heap of the w best keys takes each key at its
// first query; a key that it drops never comes back (incremental_topk.cpp). Most keys of a long
// sequence fail one comparison there.
//
// For any other mask, one sweep goes over the queries. Keys are known by their rank (0 is the
// best). The visible keys are a set of ranks, and the kept keys are the w ranks up to a threshold:
//   a key appears     Below the threshold it is kept, and the key at the threshold is dropped if w
//                     are kept already. Above the threshold nothing happens.
//   a key disappears  If its rank is at most the threshold, the next visible rank above the
//                     threshold is kept instead.
// Each change of visibility thus changes at most two intervals. All changes at one query are made
// before the query is decided: a key that is dropped and kept again at one query was kept all
// along.
//
// Example (one interval a key)  causal, documents, prefixes: keys appear one by one and disappear
//                               all together.
// Example (several)             a window: whenever a key leaves, a worse one may come back.
#include "fdma/select/select_topk.hpp"

#include <fmt/format.h>
#include <hwy/contrib/sort/vqsort.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "fdma/select/one_interval.hpp"
#include "selection/host/rank_heap.hpp"
#include "selection/host/rank_set.hpp"
#include "selection/host/score_rank.hpp"

namespace fdma {
namespace {

// rank_of[key]: 0 for the highest score, ties by ascending key.
std::vector<std::int32_t> ranks(std::span<const float> scores, std::vector<std::int32_t>& key_of) {
  std::vector<std::uint64_t> order(scores.size());
  for (std::size_t key = 0; key < scores.size(); ++key) {
    order[key] = ~score_rank(scores[key], static_cast<std::int64_t>(key));
  }
  hwy::Sorter()(order.data(), order.size(), hwy::SortAscending());
  std::vector<std::int32_t> rank_of(scores.size());
  key_of.resize(scores.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const auto key = static_cast<std::uint32_t>(order[rank]);
    key_of[rank] = static_cast<std::int32_t>(key);
    rank_of[key] = static_cast<std::int32_t>(rank);
  }
  return rank_of;
}

// Ranks of the keys that appear (or disappear) at each query: events [offsets[q], offsets[q + 1]).
struct Events {
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> ranks;
};

template <class QueryOf>
Events events_by_query(const ColumnIntervals& among, const std::vector<std::int32_t>& rank_of,
                       QueryOf query_of) {
  Events events;
  events.offsets.assign(static_cast<std::size_t>(among.q_len) + 2, 0);
  for (const Interval& interval : among.intervals) {
    ++events.offsets[static_cast<std::size_t>(query_of(interval)) + 1];
  }
  for (std::size_t q = 1; q < events.offsets.size(); ++q)
    events.offsets[q] += events.offsets[q - 1];
  events.ranks.resize(among.intervals.size());
  std::vector<std::int64_t> next(events.offsets.begin(), events.offsets.end() - 1);
  for (std::int64_t key = 0; key < among.kv_len; ++key) {
    const auto at = static_cast<std::size_t>(key);
    for (std::int64_t i = among.offsets[at]; i < among.offsets[at + 1]; ++i) {
      const Interval& interval = among.intervals[static_cast<std::size_t>(i)];
      events.ranks[static_cast<std::size_t>(next[static_cast<std::size_t>(query_of(interval))]++)] =
          rank_of[at];
    }
  }
  return events;
}

// Intervals of queries in which ranks are kept, in the order in which they end.
class KeptIntervals {
 public:
  explicit KeptIntervals(std::size_t num_ranks) : begin_(num_ranks), last_(num_ranks, -1) {}

  void keep(std::int64_t rank, std::int64_t q) {
    const auto at = static_cast<std::size_t>(rank);
    const std::int64_t last = last_[at];
    // The rank was dropped at this very query: its interval goes on.
    if (last >= 0 && closed_[static_cast<std::size_t>(last)].queries.end == q) {
      begin_[at] = closed_[static_cast<std::size_t>(last)].queries.begin;
      closed_[static_cast<std::size_t>(last)].queries.end = begin_[at];  // empty: left out below
      return;
    }
    begin_[at] = static_cast<std::int32_t>(q);
  }

  void drop(std::int64_t rank, std::int64_t q) {
    const auto at = static_cast<std::size_t>(rank);
    if (begin_[at] == q) return;
    last_[at] = static_cast<std::int64_t>(closed_.size());
    closed_.push_back(
        {static_cast<std::int32_t>(rank), {begin_[at], static_cast<std::int32_t>(q)}});
  }

  // Sorts by key, then by query; intervals were closed in the order of queries.
  ColumnIntervals by_key(const ColumnIntervals& among,
                         const std::vector<std::int32_t>& key_of) const {
    ColumnIntervals result{among.q_len, among.kv_len, {}, {}};
    result.offsets.assign(static_cast<std::size_t>(among.kv_len) + 1, 0);
    for (const Closed& closed : closed_) {
      if (closed.queries.begin == closed.queries.end) continue;
      ++result.offsets[static_cast<std::size_t>(key_of[static_cast<std::size_t>(closed.rank)]) + 1];
    }
    for (std::size_t key = 1; key < result.offsets.size(); ++key) {
      result.offsets[key] += result.offsets[key - 1];
    }
    result.intervals.resize(static_cast<std::size_t>(result.offsets.back()));
    std::vector<std::int64_t> next(result.offsets.begin(), result.offsets.end() - 1);
    for (const Closed& closed : closed_) {
      if (closed.queries.begin == closed.queries.end) continue;
      const auto key = static_cast<std::size_t>(key_of[static_cast<std::size_t>(closed.rank)]);
      result.intervals[static_cast<std::size_t>(next[key]++)] = closed.queries;
    }
    return result;
  }

 private:
  struct Closed {
    std::int32_t rank;
    Interval queries;
  };
  std::vector<std::int32_t> begin_;  ///< the first query of a kept rank
  std::vector<std::int64_t> last_;   ///< the last closed interval of a rank, or -1
  std::vector<Closed> closed_;
};

// True iff one_interval_per_key accepts the mask.
bool is_growing(const ColumnIntervals& among) {
  if (static_cast<std::int64_t>(among.intervals.size()) > among.kv_len) return false;
  OneIntervalRule rule;
  for (std::size_t key = 0; key < static_cast<std::size_t>(among.kv_len); ++key) {
    const std::int64_t first = among.offsets[key], count = among.offsets[key + 1] - first;
    if (count > 1) return false;
    if (count == 0) continue;
    if (!rule.accept(static_cast<std::int64_t>(key),
                     among.intervals[static_cast<std::size_t>(first)])) {
      return false;
    }
  }
  return true;
}

// The selection by heap: `kept` holds the rest of a key's group as its interval until it is
// dropped. The result is empty where `among` is beyond the one-interval class.
std::optional<ColumnIntervals> select_growing(std::span<const float> scores, std::int64_t w,
                                              const ColumnIntervals& among) {
  if (!is_growing(among)) return std::nullopt;
  const auto width = static_cast<std::size_t>(w);
  std::vector<Interval> kept(scores.size(), Interval{0, 0});
  std::vector<std::uint64_t> heap;
  heap.reserve(std::min(width, scores.size()));
  std::int32_t group_end = 0;
  std::uint64_t worst = 0;
  std::int64_t num_intervals = 0;
  for (std::size_t key = 0; key < scores.size(); ++key) {
    if (among.offsets[key] == among.offsets[key + 1]) continue;
    const Interval queries = among.intervals[static_cast<std::size_t>(among.offsets[key])];
    if (queries.begin >= group_end) heap.clear();
    group_end = queries.end;
    const std::uint64_t rank = score_rank(scores[key], static_cast<std::int64_t>(key));
    if (heap.size() < width) {
      push_rank(heap, rank);
    } else if (rank < worst) {
      continue;
    } else {
      Interval& lost = kept[static_cast<std::size_t>(key_of_rank(worst))];
      lost.end = queries.begin;
      if (lost.begin == lost.end) --num_intervals;
      replace_worst(heap, rank);
    }
    worst = heap.front();
    kept[key] = queries;
    ++num_intervals;
  }
  ColumnIntervals result{among.q_len, among.kv_len, {}, {}};
  result.offsets.resize(scores.size() + 1);
  result.intervals.resize(static_cast<std::size_t>(num_intervals));
  std::int64_t next = 0;
  for (std::size_t key = 0; key < kept.size(); ++key) {
    result.offsets[key] = next;
    if (kept[key].begin < kept[key].end) {
      result.intervals[static_cast<std::size_t>(next++)] = kept[key];
    }
  }
  result.offsets.back() = next;
  return result;
}

}  // namespace

Result<ColumnIntervals> select_topk(std::span<const float> scores, std::int64_t w,
                                    const ColumnIntervals& among) {
  if (static_cast<std::int64_t>(scores.size()) != among.kv_len) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("scores: expected {} (kv_len), got {}", among.kv_len, scores.size())};
  }
  if (w < 1) {
    return Error{ErrorCode::invalid_argument, fmt::format("w: expected at least 1, got {}", w)};
  }
  for (std::size_t key = 0; key < scores.size(); ++key) {
    if (std::isnan(scores[key])) {
      return Error{ErrorCode::invalid_argument, fmt::format("scores[{}]: is NaN", key)};
    }
  }
  if (std::optional<ColumnIntervals> growing = select_growing(scores, w, among)) {
    return *std::move(growing);
  }
  std::vector<std::int32_t> key_of;
  const std::vector<std::int32_t> rank_of = ranks(scores, key_of);
  const Events appear =
      events_by_query(among, rank_of, [](const Interval& interval) { return interval.begin; });
  const Events disappear =
      events_by_query(among, rank_of, [](const Interval& interval) { return interval.end; });

  RankSet visible(among.kv_len);
  KeptIntervals kept(scores.size());
  std::int64_t num_kept = 0;
  std::int64_t threshold = -1;  // the worst kept rank
  for (std::int64_t q = 0; q <= among.q_len; ++q) {
    const auto at = static_cast<std::size_t>(q);
    for (std::int64_t i = disappear.offsets[at]; i < disappear.offsets[at + 1]; ++i) {
      const std::int64_t rank = disappear.ranks[static_cast<std::size_t>(i)];
      visible.erase(rank);
      if (rank > threshold) continue;
      kept.drop(rank, q);
      const std::int64_t substitute = num_kept == w ? visible.next(threshold) : RankSet::kNone;
      if (substitute != RankSet::kNone) {
        kept.keep(substitute, q);
        threshold = substitute;
      } else {
        --num_kept;
        if (rank == threshold) threshold = visible.previous(rank);
      }
    }
    for (std::int64_t i = appear.offsets[at]; i < appear.offsets[at + 1]; ++i) {
      const std::int64_t rank = appear.ranks[static_cast<std::size_t>(i)];
      visible.insert(rank);
      if (num_kept < w) {
        kept.keep(rank, q);
        ++num_kept;
        if (rank > threshold) threshold = rank;
      } else if (rank < threshold) {
        kept.keep(rank, q);
        kept.drop(threshold, q);
        threshold = visible.previous(threshold);
      }
    }
  }
  return kept.by_key(among, key_of);
}

}  // namespace fdma
