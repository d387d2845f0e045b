// Finds groups of rows in kv permutation and cuts them into key segments. A key that begins where
// the last group ended begins the next group. A group reaches from its first key to the next
// group's first key, so that key segments cover every key.
//   longer than a key segment   the group has its own key segments, cut from its first key on
//   short                 the group is packed with its neighbours: a key segment of many documents
//   is one
//                         sort, instead of as many thread blocks as documents
// Groups in a packed key segment differ in rank (ranking.hpp: later groups rank above). The key
// segment is then one sequence in which all later keys beat a key of an earlier group, and the end
// of its group comes first (evictions.cuh takes the earlier of the two).
#include "selection/topk/topk_segments.hpp"

#include <algorithm>

#include "fdma/select/one_interval.hpp"

namespace fdma::zoh {
namespace {

struct Group {
  std::int32_t first_key;
  std::int32_t end_key;
  std::int32_t num_seen;
  std::int32_t size() const { return end_key - first_key; }
};

std::vector<Group> groups_of(const std::vector<Interval>& queries) {
  std::vector<Group> groups;
  std::int32_t end_query = 0;
  for (std::size_t key = 0; key < queries.size(); ++key) {
    const Interval& seen = queries[key];
    if (seen.begin >= seen.end) continue;
    if (groups.empty() || seen.begin >= end_query) {
      const auto first = groups.empty() ? 0 : static_cast<std::int32_t>(key);
      if (!groups.empty()) groups.back().end_key = first;
      groups.push_back({first, 0, 0});
    }
    end_query = seen.end;
    ++groups.back().num_seen;
  }
  if (groups.empty()) groups.push_back({0, 0, 0});
  groups.back().end_key = static_cast<std::int32_t>(queries.size());
  return groups;
}

class Cutter {
 public:
  Cutter(CutMask& mask, std::int64_t w) : mask_(mask), w_(w) {}

  void cut(const std::vector<Group>& groups) {
    for (const Group& group : groups) {
      if (group.size() > kKeySegmentSize) {
        flush();
        cut_long(group);
        continue;
      }
      if (!packed_.empty() && group.end_key - packed_.front().first_key > kKeySegmentSize) flush();
      packed_.push_back(group);
    }
    flush();
  }

 private:
  void add(KeySegmentKind kind, std::int32_t first_key, std::int32_t end_key,
           std::int32_t num_before, std::int32_t num_after, std::int32_t num_seen,
           std::int32_t num_groups) {
    bool is_seen_whole = true;
    for (std::int32_t key = first_key; key < end_key; ++key) is_seen_whole &= is_seen(key);
    mask_.key_segments.push_back({0, 0, first_key, end_key - first_key, kind, num_before, num_after,
                                  num_seen, num_groups, is_seen_whole ? 1 : 0});
  }

  void cut_long(const Group& group) {
    const bool all_kept = group.num_seen <= w_;
    const auto count = static_cast<std::int32_t>(ceil_div(group.size(), kKeySegmentSize));
    std::int32_t num_seen = 0;
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t first = group.first_key + i * kKeySegmentSize;
      const std::int32_t end = i + 1 == count ? group.end_key : first + kKeySegmentSize;
      for (std::int32_t key = first; key < end; ++key) num_seen += is_seen(key) ? 1 : 0;
      add(all_kept ? KeySegmentKind::all_kept : KeySegmentKind::part, first, end, i, count - 1 - i,
          num_seen, 1);
    }
  }

  void flush() {
    if (packed_.empty()) return;
    const bool all_kept = std::all_of(packed_.begin(), packed_.end(),
                                      [&](const Group& group) { return group.num_seen <= w_; });
    std::int32_t num_seen = 0;
    std::uint16_t ordinal = 0;
    for (const Group& group : packed_) {
      ++ordinal;
      std::fill(mask_.ordinals.begin() + group.first_key, mask_.ordinals.begin() + group.end_key,
                ordinal);
      num_seen += group.num_seen;
    }
    const std::int32_t first = packed_.front().first_key, end = packed_.back().end_key;
    if (first < end) {
      add(all_kept ? KeySegmentKind::all_kept : KeySegmentKind::packed, first, end, 0, 0, num_seen,
          static_cast<std::int32_t>(packed_.size()));
    }
    packed_.clear();
  }

  bool is_seen(std::int32_t key) const {
    const Interval& seen = mask_.queries[static_cast<std::size_t>(key)];
    return seen.begin < seen.end;
  }

  CutMask& mask_;
  std::int64_t w_;
  std::vector<Group> packed_;
};

}  // namespace

Result<CutMask> cut_mask(const ColumnIntervals& among, std::int64_t w) {
  CutMask mask;
  FDMA_TRY(mask.queries, one_interval_per_key(among));
  mask.ordinals.assign(mask.queries.size(), 0);
  Cutter(mask, w).cut(groups_of(mask.queries));
  return mask;
}

}  // namespace fdma::zoh
