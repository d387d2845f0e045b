// The one-interval class: masks among which selection keeps one interval per key. In them visible
// sets only grow inside a group of rows.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/column_intervals.hpp"

namespace fdma {

/// The end of a query interval that is not known yet.
inline constexpr std::int32_t kOpenEnd = std::numeric_limits<std::int32_t>::max();

/// The query interval of every key, {0, 0} for none, where `among` belongs to the one-interval
/// class. Three rules define the class:
///   each key is visible to at most one query interval
///   in kv permutation the begins do not decrease
///   intervals that meet end together, at the end of their group of rows
///
/// Example     causal, documents, prefixes and padding at any alignment are members; a window is
///             not, because key 0 ends before key 1 does while both are visible
/// Errors      unsupported, naming the first key that breaks a rule, and the rule
/// Cost        one pass over the keys
Result<std::vector<Interval>> one_interval_per_key(const ColumnIntervals& among);

/// The rules above for a stream of keys.
///
/// Example     OneIntervalRule rule; rule.accept(0, {0, 9}); rule.accept(1, {1, 8}) is an error
class OneIntervalRule {
 public:
  /// Takes the interval of the next key; empty ones are accepted anywhere.
  Result<void> accept(std::int64_t key, Interval queries) {
    if (queries.begin >= queries.end) return {};
    if (!fits(queries)) return refuse(key, queries);
    last_key_ = key;
    last_ = queries;
    return {};
  }
  /// No later query sees the keys so far: intervals with an open end are taken to end at `q`.
  void end_group(std::int64_t q);

  /// The whole state of the rule: the last key with an interval that is not empty (-1 before the
  /// first), and its interval.
  std::int64_t last_key() const { return last_key_; }
  Interval last() const { return last_; }
  static OneIntervalRule after(std::int64_t last_key, Interval last) {
    OneIntervalRule rule;
    rule.last_key_ = last_key;
    rule.last_ = last;
    return rule;
  }

 private:
  bool fits(Interval queries) const {
    return queries.begin >= last_.begin && (queries.begin >= last_.end || queries.end == last_.end);
  }
  Error refuse(std::int64_t key, Interval queries) const;

  std::int64_t last_key_ = -1;
  Interval last_{0, 0};
};

}  // namespace fdma
