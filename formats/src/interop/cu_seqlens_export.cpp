// A mask as FlashAttention's packed sequences, exactly or not at all.
//
// Row x of the diagonal sees [max(k_begin, x - left), min(k_end, x + right + 1)) of its sequence. x
// grows by one per row and is the last key in the last row.
//
// Sequences. Rows of one sequence that see anything are neighbours and share keys with the next row
// (unless both windows are 0: then each such row may as well be a sequence). No key belongs to two
// sequences. The sequences are therefore the sets of connected rows, found in one pass over the
// rows' intervals.
//
// Windows. The last row gives k_end and with it every x; then each row bounds the windows. A row
// whose first key is that of its sequence says that left is at least that distance; a row whose
// first key is a later one gives left. Right likewise. The windows fit iff all bounds agree.
//
// Example that fits: causal documents; x - left never shows, so left is open; right is 0. Example
// that does not: a prefix of keys that all rows see beside a causal rest; the first row asks for
// some right, the row after the prefix for another.
//
// Where every row sees one key, that of its diagonal, both windows may be 0; adjacent rows then
// become one sequence.
//
// Rows and keys that meet nothing lie before, between or after sequences. Where the windows hide
// them anyway (rows above a causal diagonal that starts below the first row) they join the sequence
// after them. Otherwise they are a sequence of rows or of keys alone.
#include <algorithm>

#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/interop/cu_seqlens.hpp"
#include "interop/cell_text.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

constexpr auto kRowBytes = static_cast<std::int64_t>(sizeof(Interval));

constexpr std::int64_t kOpen = 4 * kMaxLength;  // farther than any key

// The bounds that rows give for one window: at least `low`, at most `high`.
struct Window {
  std::int64_t low = 0;
  std::int64_t high = kOpen;
  bool is_open() const { return high == kOpen; }
  bool restrict(std::int64_t at_least, std::int64_t at_most) {
    low = std::max(low, at_least);
    high = std::min(high, at_most);
    return low <= high;
  }
};

// Consecutive query rows that see something, and the keys that they see.
struct Component {
  std::int64_t q_begin = 0;
  std::int64_t k_begin = 0, k_end = 0;
  std::vector<Interval> rows;
  std::int64_t q_end() const { return q_begin + static_cast<std::int64_t>(rows.size()); }
};

class Exporter {
 public:
  explicit Exporter(const BlockMask& mask) : mask_(mask) {}

  Result<CuSeqlens> run() {
    CuSeqlens result;
    result.is_packed = mask_.shape.num_batches == 1;
    result.num_heads = mask_.shape.num_heads;
    for (batch_ = 0; batch_ < mask_.shape.num_batches; ++batch_) {
      FDMA_TRY_VOID(read_components());
      if (!result.is_packed) FDMA_TRY_VOID(read_whole_element());
      for (const Component& component : components_) FDMA_TRY_VOID(bound_windows(component));
    }
    if (result.is_packed) join_single_cells();
    result.window_left = left_.is_open() ? -1 : left_.high;
    result.window_right = right_.is_open() ? -1 : right_.high;
    result.is_causal = result.window_right == 0;
    result.cu_seqlens_q = {0};
    result.cu_seqlens_k = {0};
    if (result.is_packed) {
      write_packed(result);
    } else {
      FDMA_TRY_VOID(write_elements(result));
    }
    return result;
  }

 private:
  Error misfit(std::int64_t q, std::int64_t k, std::string_view why) const {
    return interop::unsupported(
        fmt::format("no window over sequences one after another has these cells: {} {}",
                    interop::cell_text({batch_, 0, q, k}), why));
  }

  // The components of this batch element, ascending.
  Result<void> read_components() {
    const SegmentMask segment = segment_of_group(mask_, mask_.group(batch_, 0), mask_.block);
    std::vector<Interval> row;
    components_.clear();
    for (std::int64_t q = 0; q < segment.q_len; ++q) {
      row_intervals_of(segment, q, row);
      if (row.empty()) continue;
      if (row.size() > 1) {
        return misfit(q, row[0].end, "is masked between keys that its row sees");
      }
      const Interval keys = row[0];
      const bool is_new = components_.empty() || keys.begin >= components_.back().k_end;
      if (is_new) components_.push_back({q, keys.begin, keys.end, {}});
      Component& component = components_.back();
      if (component.q_end() != q) {
        return misfit(q, keys.begin, "is seen again after a row without keys");
      }
      if (keys.end <= component.k_begin) {
        return misfit(q, keys.begin, "lies before the keys of the rows above");
      }
      if (component.rows.size() == component.rows.capacity()) {  // it doubles, and is copied
        FDMA_TRY_VOID(check_memory(2 * std::ssize(component.rows) * kRowBytes, "cu_seqlens"));
      }
      component.rows.push_back(keys);
      component.k_begin = std::min<std::int64_t>(component.k_begin, keys.begin);
      component.k_end = std::max<std::int64_t>(component.k_end, keys.end);
    }
    return {};
  }

  // A batch element is one sequence: its rows and keys in use, as one component with all rows from
  // the first on, including those without keys.
  Result<void> read_whole_element() {
    const std::int64_t q_len = mask_.shape.q_len(batch_), kv_len = mask_.shape.kv_len(batch_);
    if (components_.empty()) {
      used_.push_back({q_len, q_len > 0 ? 0 : kv_len});
      return {};
    }
    const std::int64_t used_q = components_.back().q_end();
    FDMA_TRY_VOID(check_memory(used_q * kRowBytes, "cu_seqlens"));
    Component whole{0, 0, components_.back().k_end, {}};
    whole.rows.resize(static_cast<std::size_t>(used_q), Interval{0, 0});
    for (const Component& part : components_) {
      std::copy(part.rows.begin(), part.rows.end(), whole.rows.begin() + part.q_begin);
    }
    used_.push_back({used_q, whole.rows.back().end});
    components_.clear();
    components_.push_back(std::move(whole));
    return {};
  }

  Result<void> bound_windows(const Component& component) {
    const std::int64_t k_end = component.rows.back().end;
    std::int64_t x = k_end - static_cast<std::int64_t>(component.rows.size());
    for (std::size_t i = 0; i < component.rows.size(); ++i, ++x) {
      const Interval& keys = component.rows[i];
      const std::int64_t q = component.q_begin + static_cast<std::int64_t>(i);
      if (keys.begin == keys.end) {
        if (!right_.restrict(0, -x - 1)) return misfit(q, 0, "is masked");
        continue;
      }
      if (keys.end > k_end) return misfit(q, k_end, "lies after the keys of the sequence's end");
      const bool is_first = keys.begin == component.k_begin, is_last = keys.end == k_end;
      const std::int64_t left = x - keys.begin, right = keys.end - 1 - x;
      if (!left_.restrict(left, is_first ? kOpen : left)) {
        return misfit(q, left < left_.low ? keys.begin - 1 : keys.begin,
                      "does not keep the distance of other rows to their first key");
      }
      if (!right_.restrict(right, is_last ? kOpen : right)) {
        return misfit(q, right < right_.low ? keys.end : keys.end - 1,
                      "does not keep the distance of other rows to their last key");
      }
    }
    return {};
  }

  // If all components are single cells, those along one diagonal become one, with windows of 0.
  void join_single_cells() {
    const auto is_cell = [](const Component& component) {
      return component.rows.size() == 1 && component.k_end == component.k_begin + 1;
    };
    if (!std::all_of(components_.begin(), components_.end(), is_cell)) return;
    std::vector<Component> joined;
    for (Component& cell : components_) {
      const bool is_next = !joined.empty() && cell.q_begin == joined.back().q_end() &&
                           cell.k_begin == joined.back().k_end;
      if (!is_next) {
        joined.push_back(std::move(cell));
        continue;
      }
      joined.back().rows.push_back(cell.rows[0]);
      joined.back().k_end = cell.k_end;
    }
    if (joined.size() < components_.size()) left_ = right_ = {0, 0};
    components_ = std::move(joined);
  }

  void write_packed(CuSeqlens& result) const {
    std::int64_t q_at = 0, k_at = 0;
    const auto add = [&](std::int64_t q_end, std::int64_t k_end) {
      result.cu_seqlens_q.push_back(static_cast<std::int32_t>(q_end));
      result.cu_seqlens_k.push_back(static_cast<std::int32_t>(k_end));
      q_at = q_end;
      k_at = k_end;
    };
    for (const Component& component : components_) {
      std::int64_t q_begin = component.q_begin, k_begin = component.k_begin;
      const std::int64_t k_end = component.k_end;
      const std::int64_t x = k_end - static_cast<std::int64_t>(component.rows.size());
      if (!left_.is_open() && x - left_.high >= k_begin) k_begin = k_at;
      if (!right_.is_open() && x + right_.high <= k_begin) q_begin = q_at;
      if (q_begin > q_at) add(q_begin, k_at);
      if (k_begin > k_at) add(q_at, k_begin);
      add(component.q_end(), k_end);
    }
    const std::int64_t q_len = mask_.shape.q_lens.front(), kv_len = mask_.shape.kv_lens.front();
    if (q_at < q_len) add(q_len, k_at);
    if (k_at < kv_len || result.cu_seqlens_q.size() == 1) add(q_len, kv_len);
  }

  Result<void> write_elements(CuSeqlens& result) const {
    std::vector<std::int32_t> used_q, used_k;
    bool has_unused_q = false, has_unused_k = false;
    std::int64_t q_at = 0, k_at = 0;
    for (std::size_t b = 0; b < used_.size(); ++b) {
      const std::int64_t q_len = mask_.shape.q_len(static_cast<std::int64_t>(b));
      const std::int64_t kv_len = mask_.shape.kv_len(static_cast<std::int64_t>(b));
      q_at += q_len;
      k_at += kv_len;
      for (const auto& [at, name] : {std::pair{q_at, "query rows"}, std::pair{k_at, "keys"}}) {
        if (at <= kMaxLength) continue;
        return interop::unsupported(
            fmt::format("sequences one after another: {} {} up to batch element {}, more than {}",
                        at, name, b, kMaxLength));
      }
      result.cu_seqlens_q.push_back(static_cast<std::int32_t>(q_at));
      result.cu_seqlens_k.push_back(static_cast<std::int32_t>(k_at));
      used_q.push_back(static_cast<std::int32_t>(used_[b].q));
      used_k.push_back(static_cast<std::int32_t>(used_[b].k));
      has_unused_q = has_unused_q || used_[b].q != q_len;
      has_unused_k = has_unused_k || used_[b].k != kv_len;
    }
    if (has_unused_q) result.seqused_q = std::move(used_q);
    if (has_unused_k) result.seqused_k = std::move(used_k);
    return {};
  }

  struct Used {
    std::int64_t q, k;
  };

  const BlockMask& mask_;
  std::int64_t batch_ = 0;
  std::vector<Component> components_;  // of this batch element
  std::vector<Used> used_;             // of each batch element, unless packed
  Window left_, right_;
};

}  // namespace

Result<CuSeqlens> cu_seqlens_from_block_mask(const BlockMask& mask) {
  FDMA_TRY_VOID(interop::check_pairs(mask.shape.num_batches, mask.shape.num_heads));
  FDMA_TRY_VOID(interop::check_equal_heads(mask, "a window over sequences"));
  return Exporter(mask).run();
}

}  // namespace fdma
