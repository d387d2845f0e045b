#include "fdma/select/one_interval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace fdma {
namespace {

std::string text_of(Interval queries) {
  return queries.end == kOpenEnd ? fmt::format("[{}, ..)", queries.begin)
                                 : fmt::format("[{}, {})", queries.begin, queries.end);
}

Error beyond(std::int64_t key, const std::string& what) {
  return {ErrorCode::unsupported,
          fmt::format("among: key {} {}, so keys may come back after they were dropped; only masks "
                      "whose visible keys grow inside a group of rows (causal, documents, "
                      "prefixes, padding) keep one interval a key; use select_topk for others",
                      key, what)};
}

}  // namespace

Error OneIntervalRule::refuse(std::int64_t key, Interval queries) const {
  if (queries.begin < last_.begin) {
    return beyond(key, fmt::format("is visible to queries {}, from before key {}, {}",
                                   text_of(queries), last_key_, text_of(last_)));
  }
  return beyond(key, fmt::format("is visible to queries {}, and ends apart from key {}, {}",
                                 text_of(queries), last_key_, text_of(last_)));
}

void OneIntervalRule::end_group(std::int64_t q) {
  const auto end = static_cast<std::int32_t>(q);
  if (last_.end > end) last_ = {std::min(last_.begin, end), end};
}

Result<std::vector<Interval>> one_interval_per_key(const ColumnIntervals& among) {
  std::vector<Interval> queries(static_cast<std::size_t>(among.kv_len), Interval{0, 0});
  OneIntervalRule rule;
  for (std::int64_t key = 0; key < among.kv_len; ++key) {
    const auto at = static_cast<std::size_t>(key);
    const std::int64_t first = among.offsets[at];
    const std::int64_t count = among.offsets[at + 1] - first;
    if (count == 0) continue;
    if (count > 1) return beyond(key, fmt::format("is visible to {} query intervals", count));
    queries[at] = among.intervals[static_cast<std::size_t>(first)];
    FDMA_TRY_VOID(rule.accept(key, queries[at]));
  }
  return queries;
}

}  // namespace fdma
