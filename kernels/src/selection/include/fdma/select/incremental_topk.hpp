// Top-k selection that follows a growing sequence: decode, chunked prefill.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/select/one_interval.hpp"

namespace fdma {

/// The selection of select_topk for one row of scores, kept up to date while keys and queries are
/// appended, and the keys that later queries may still keep. It serves masks M of the one-interval
/// class (one_interval.hpp).
///
/// Example     auto topk = *IncrementalTopk::make(1);       one key a query
///             topk.append_causal({{3, 1}});                 intervals {[0, 2), none}; live {0}
///             topk.append_causal({{5}});                    {[0, 2), none, [2, 3)};   live {2}
/// Invariants  after every append intervals() equals select_topk(all scores, w, M cut off at
///             q_len())
///             no later query keeps a key that is not live, whatever is appended
/// Errors      a failed append changes nothing
/// Cost        O(log w) a key; 8 B a key appended, 8 B a live key, 16 B a key that waits for its
///             first query
/// Method      a key that w visible keys beat never comes back
class IncrementalTopk {
 public:
  /// Errors: invalid_argument (w < 1).
  static Result<IncrementalTopk> make(std::int64_t w);

  /// Appends keys [kv_len(), kv_len() + scores.size()), then `num_queries` queries. M shows the
  /// i-th of these keys to the queries among[i]. Its begin is at least q_len(), the first query to
  /// come. A begin past q_len() + num_queries is allowed; the key then waits. The end kOpenEnd
  /// means until end_group().
  ///
  /// Errors      shape_mismatch: the numbers of intervals and scores differ
  ///             invalid_argument: a NaN score, an interval that begins at a query that has been
  ///             decided or ends before it begins, num_queries < 0, lengths past 2^31 - 2
  ///             unsupported: an M beyond the one-interval class
  Result<void> append(std::span<const float> scores, std::span<const Interval> among,
                      std::int64_t num_queries);

  /// Appends as many queries as keys, each key visible from its own query on. This is causal
  /// attention; with end_group() between documents it is causal attention inside each.
  Result<void> append_causal(std::span<const float> scores);

  /// No later query sees the keys so far. For the end of a document or a new sequence.
  void end_group();

  std::int64_t w() const { return w_; }
  std::int64_t q_len() const { return q_len_; }
  std::int64_t kv_len() const { return static_cast<std::int64_t>(kept_.size()); }

  /// The queries so far that keep `key`: one interval, {0, 0} where there are none. Cost: O(1).
  Interval interval_of(std::int64_t key) const;
  /// All intervals so far. Cost: O(kv_len).
  ColumnIntervals intervals() const;

  /// The keys that a query from q_len() on may keep, ascending: the best visible ones, at most w,
  /// and those that wait for their first query. A cache needs no others. Cost: O(w log w).
  std::vector<std::int32_t> live_keys() const;
  std::int64_t num_live_keys() const;
  /// The keys that the last append or end_group() evicted, in this order, including new keys that
  /// are not kept. A cache frees their places.
  std::span<const std::int32_t> dropped_keys() const { return dropped_; }

  /// Bytes held.
  std::int64_t size_bytes() const;

  /// A key that waits for its first query.
  struct Waiting {
    std::uint64_t rank;  ///< score and key as one number for comparisons
    Interval queries;
  };
  /// The whole state, to be stored and restored; appends then go on as if nothing had happened.
  ///
  /// Example     IncrementalTopk::restore(topk.state())->live_keys() == topk.live_keys()
  struct State {
    std::int64_t w = 1;
    std::int64_t q_len = 0;
    std::vector<Interval> kept;       ///< of every key; end kOpenEnd while it is live and visible
    std::vector<std::uint64_t> heap;  ///< ranks of the kept keys, the worst one first
    std::vector<Waiting> waiting;     ///< by ascending key
    std::int32_t group_end = kOpenEnd;
    std::int64_t last_key = -1;  ///< OneIntervalRule::last_key; `last` is OneIntervalRule::last
    Interval last{0, 0};
    std::vector<std::int32_t> dropped;
  };
  State state() const;
  /// Errors: invalid_argument for a state that no appends lead to, as far as its parts show.
  static Result<IncrementalTopk> restore(State state);

 private:
  explicit IncrementalTopk(std::int64_t w) : w_(w) {}
  void show(const Waiting& key);
  void close_group(std::int64_t q);

  std::int64_t w_;
  std::int64_t q_len_ = 0;
  std::vector<Interval> kept_;       ///< of every key; end kOpenEnd while it is live and visible
  std::vector<std::uint64_t> heap_;  ///< ranks of the kept keys, the worst one first
  std::vector<Waiting> waiting_;     ///< keys with a first query to come, from next_waiting_ on
  std::size_t next_waiting_ = 0;
  std::int32_t group_end_ = kOpenEnd;  ///< end of the group of the keys in the heap
  OneIntervalRule rule_;
  std::vector<std::int32_t> dropped_;
};

}  // namespace fdma
