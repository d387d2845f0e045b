// The kept keys are a heap of at most w ranks, the worst first. Where the visible keys of a group
// of rows only grow, two events are enough:
//   a key appears   If fewer than w keys are kept, it is kept. If it beats the worst kept key, that
//                   key is dropped, for good, because the w keys that beat it stay visible.
//                   Otherwise the new key is dropped itself, for good.
//   a group ends    No later query sees its keys; the heap is emptied.
// Keys appear in the order of their indices (begins do not decrease). Those whose first query is
// still to come are therefore a queue, and among equal scores the key that came first stays.
//
// Example   causal, w = 2, scores 3 1 2: key 2 takes the place of key 1 at query 2:
//           [0, ..), [1, 2), [2, ..).
// Not one   a window: key 0 leaves while key 1 stays, and a key that both beat comes back. Such an
// M
//           is refused (one_interval.hpp).
#include "fdma/select/incremental_topk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "selection/host/rank_heap.hpp"
#include "selection/host/score_rank.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kMostRows = kOpenEnd - 1;

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

}  // namespace

Result<IncrementalTopk> IncrementalTopk::make(std::int64_t w) {
  if (w < 1) return invalid(fmt::format("w: expected at least 1, got {}", w));
  return IncrementalTopk(w);
}

Result<void> IncrementalTopk::append(std::span<const float> scores, std::span<const Interval> among,
                                     std::int64_t num_queries) {
  if (scores.size() != among.size()) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("among: expected {} intervals, one per score, got {}", scores.size(),
                             among.size())};
  }
  if (num_queries < 0 || num_queries > kMostRows - q_len_) {
    return invalid(fmt::format("num_queries: expected 0 to {} after {} queries, got {}",
                               kMostRows - q_len_, q_len_, num_queries));
  }
  const std::int64_t first_key = kv_len();
  if (static_cast<std::int64_t>(scores.size()) > kMostRows - first_key) {
    return invalid(fmt::format("scores: expected at most {} after {} keys, got {}",
                               kMostRows - first_key, first_key, scores.size()));
  }
  OneIntervalRule rule = rule_;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return invalid(fmt::format("scores[{}]: is NaN", i));
    const Interval queries = among[i];
    if (queries.begin > queries.end || queries.begin < 0) {
      return invalid(fmt::format("among[{}]: expected 0 <= begin <= end, got [{}, {})", i,
                                 queries.begin, queries.end));
    }
    if (queries.begin < queries.end && queries.begin < q_len_) {
      return invalid(
          fmt::format("among[{}]: begins at query {}, but queries up to {} have been decided", i,
                      queries.begin, q_len_));
    }
    FDMA_TRY_VOID(rule.accept(first_key + static_cast<std::int64_t>(i), queries));
  }
  rule_ = rule;
  dropped_.clear();
  // All queries of this call are decided together, because keys come in the order of their begins.
  const std::int64_t end = q_len_ + num_queries;
  for (; next_waiting_ < waiting_.size() && waiting_[next_waiting_].queries.begin < end;
       ++next_waiting_) {
    show(waiting_[next_waiting_]);
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto key = static_cast<std::int32_t>(first_key + static_cast<std::int64_t>(i));
    kept_.push_back({0, 0});
    if (among[i].begin == among[i].end) {
      dropped_.push_back(key);
      continue;
    }
    const Waiting next{score_rank(scores[i], key), among[i]};
    if (among[i].begin < end) {
      show(next);
    } else {
      waiting_.push_back(next);
    }
  }
  if (next_waiting_ > waiting_.size() / 2) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(next_waiting_));
    next_waiting_ = 0;
  }
  q_len_ = end;
  if (group_end_ <= q_len_) close_group(group_end_);
  return {};
}

Result<void> IncrementalTopk::append_causal(std::span<const float> scores) {
  std::vector<Interval> among(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    among[i] = {static_cast<std::int32_t>(q_len_ + static_cast<std::int64_t>(i)), kOpenEnd};
  }
  return append(scores, among, static_cast<std::int64_t>(scores.size()));
}

void IncrementalTopk::end_group() {
  dropped_.clear();
  close_group(static_cast<std::int32_t>(q_len_));
  for (; next_waiting_ < waiting_.size(); ++next_waiting_) {
    dropped_.push_back(key_of_rank(waiting_[next_waiting_].rank));
  }
  waiting_.clear();
  next_waiting_ = 0;
  rule_.end_group(q_len_);
}

// A key that reaches its first query.
void IncrementalTopk::show(const Waiting& key) {
  if (group_end_ <= key.queries.begin) close_group(group_end_);
  group_end_ = key.queries.end;
  const std::int32_t index = key_of_rank(key.rank);
  if (static_cast<std::int64_t>(heap_.size()) < w_) {
    push_rank(heap_, key.rank);
  } else if (key.rank > heap_.front()) {
    const std::int32_t loser = key_of_rank(heap_.front());
    Interval& lost = kept_[static_cast<std::size_t>(loser)];
    lost.end = key.queries.begin;
    if (lost.begin == lost.end) lost = {0, 0};
    dropped_.push_back(loser);
    replace_worst(heap_, key.rank);
  } else {
    dropped_.push_back(index);
    return;
  }
  kept_[static_cast<std::size_t>(index)] = {key.queries.begin, kOpenEnd};
}

// Only the queries before `q` see the keys in the heap.
void IncrementalTopk::close_group(std::int64_t q) {
  for (const std::uint64_t rank : heap_) {
    const std::int32_t key = key_of_rank(rank);
    kept_[static_cast<std::size_t>(key)].end = static_cast<std::int32_t>(q);
    dropped_.push_back(key);
  }
  heap_.clear();
  group_end_ = kOpenEnd;
}

Interval IncrementalTopk::interval_of(std::int64_t key) const {
  Interval queries = kept_[static_cast<std::size_t>(key)];
  if (queries.end == kOpenEnd) queries.end = static_cast<std::int32_t>(q_len_);
  return queries;
}

ColumnIntervals IncrementalTopk::intervals() const {
  ColumnIntervals result{q_len_, kv_len(), {0}, {}};
  result.offsets.reserve(kept_.size() + 1);
  for (std::int64_t key = 0; key < kv_len(); ++key) {
    const Interval queries = interval_of(key);
    if (queries.begin < queries.end) result.intervals.push_back(queries);
    result.offsets.push_back(static_cast<std::int64_t>(result.intervals.size()));
  }
  return result;
}

std::vector<std::int32_t> IncrementalTopk::live_keys() const {
  std::vector<std::int32_t> keys;
  keys.reserve(static_cast<std::size_t>(num_live_keys()));
  for (const std::uint64_t rank : heap_) keys.push_back(key_of_rank(rank));
  for (std::size_t i = next_waiting_; i < waiting_.size(); ++i) {
    keys.push_back(key_of_rank(waiting_[i].rank));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::int64_t IncrementalTopk::num_live_keys() const {
  return static_cast<std::int64_t>(heap_.size() + waiting_.size() - next_waiting_);
}

IncrementalTopk::State IncrementalTopk::state() const {
  const auto first = waiting_.begin() + static_cast<std::ptrdiff_t>(next_waiting_);
  return {w_,         q_len_,           kept_,        heap_,   {first, waiting_.end()},
          group_end_, rule_.last_key(), rule_.last(), dropped_};
}

Result<IncrementalTopk> IncrementalTopk::restore(State state) {
  FDMA_TRY(IncrementalTopk topk, make(state.w));
  const auto num_keys = static_cast<std::int64_t>(state.kept.size());
  const auto is_key = [&](std::int32_t key) { return key >= 0 && key < num_keys; };
  const auto wrong = [](std::string_view part) {
    return invalid(fmt::format("state: its {} cannot be", part));
  };
  if (state.q_len < 0 || state.q_len > kMostRows || num_keys > kMostRows) return wrong("lengths");
  std::int64_t num_open = 0;
  for (const Interval& queries : state.kept) {
    const bool is_open = queries.end == kOpenEnd;
    num_open += static_cast<std::int64_t>(is_open);
    if (queries.begin < 0 || queries.begin > queries.end ||
        (queries.begin < queries.end && queries.begin >= state.q_len) ||
        (!is_open && queries.end > state.q_len)) {
      return wrong("intervals");
    }
  }
  // There are as many open intervals as ranks and each rank has another key: the heap is those
  // keys.
  const auto is_live = [&](std::uint64_t rank) {
    const std::int32_t key = key_of_rank(rank);
    return is_key(key) && state.kept[static_cast<std::size_t>(key)].end == kOpenEnd;
  };
  std::vector<std::uint64_t> sorted = state.heap;
  std::sort(sorted.begin(), sorted.end(),
            [](std::uint64_t a, std::uint64_t b) { return key_of_rank(a) < key_of_rank(b); });
  const bool is_twice =
      std::adjacent_find(sorted.begin(), sorted.end(), [](std::uint64_t a, std::uint64_t b) {
        return key_of_rank(a) == key_of_rank(b);
      }) != sorted.end();
  if (static_cast<std::int64_t>(state.heap.size()) != num_open || num_open > state.w || is_twice ||
      !std::all_of(state.heap.begin(), state.heap.end(), is_live) ||
      !std::is_heap(state.heap.begin(), state.heap.end(), std::greater<>())) {
    return wrong("live keys");
  }
  std::int32_t previous = -1;
  for (const Waiting& next : state.waiting) {
    const std::int32_t key = key_of_rank(next.rank);
    if (!is_key(key) || key <= previous || next.queries.begin < state.q_len ||
        next.queries.begin >= next.queries.end ||
        state.kept[static_cast<std::size_t>(key)].end != 0) {
      return wrong("waiting keys");
    }
    previous = key;
  }
  if (state.group_end <= state.q_len || state.last_key < -1 || state.last_key >= num_keys ||
      state.last.begin < 0 || state.last.begin > state.last.end ||
      !std::all_of(state.dropped.begin(), state.dropped.end(), is_key)) {
    return wrong("groups");
  }
  topk.q_len_ = state.q_len;
  topk.kept_ = std::move(state.kept);
  topk.heap_ = std::move(state.heap);
  topk.waiting_ = std::move(state.waiting);
  topk.group_end_ = state.group_end;
  topk.rule_ = OneIntervalRule::after(state.last_key, state.last);
  topk.dropped_ = std::move(state.dropped);
  return topk;
}

std::int64_t IncrementalTopk::size_bytes() const {
  return static_cast<std::int64_t>(
      kept_.capacity() * sizeof(Interval) + heap_.capacity() * sizeof(std::uint64_t) +
      waiting_.capacity() * sizeof(Waiting) + dropped_.capacity() * sizeof(std::int32_t));
}

}  // namespace fdma
