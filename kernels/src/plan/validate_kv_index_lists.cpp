// Validates kv index lists and kv permutations of a plan.
#include "plan/validate_kv_index_lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace fdma {
namespace {

Error wrong(std::string message) { return Error{ErrorCode::internal, std::move(message)}; }

// Computes the last key of each kv permutation.
Result<void> check_each_permutation(const PlanHeader& header, const SegmentPlan& plan,
                                    std::vector<std::int64_t>& last_keys) {
  const AttentionShape& shape = header.shape;
  const auto num_keys = static_cast<std::int64_t>(plan.permuted_keys.size());
  std::vector<bool> is_there;
  for (std::size_t i = 0; i < plan.kv_permutations.size(); ++i) {
    const KvPermutation& order = plan.kv_permutations[i];
    if (order.first_key < 0 || order.num_keys < 0 || order.num_keys > num_keys ||
        order.first_key > num_keys - order.num_keys) {
      return wrong(fmt::format("kv_permutations[{}]: keys {} + {} of {}", i, order.first_key,
                               order.num_keys, num_keys));
    }
    last_keys.push_back(-1);
    is_there.assign(static_cast<std::size_t>(shape.max_kv_len()), false);
    for (std::int64_t k = order.first_key; k < order.first_key + order.num_keys; ++k) {
      const std::int32_t key = plan.permuted_keys[static_cast<std::size_t>(k)];
      if (key < 0 || key >= shape.max_kv_len() || is_there[static_cast<std::size_t>(key)]) {
        return wrong(fmt::format("permuted_keys[{}]: expected another key of {}, got {}", k,
                                 shape.max_kv_len(), key));
      }
      is_there[static_cast<std::size_t>(key)] = true;
      last_keys.back() = std::max<std::int64_t>(last_keys.back(), key);
    }
  }
  return {};
}

// Checks that the keys of a permutation exist in every element that uses it.
Result<void> check_uses(const PlanHeader& header, const SegmentPlan& plan,
                        const std::vector<std::int64_t>& last_keys) {
  const AttentionShape& shape = header.shape;
  const auto num_heads = plan.kv_permutations.empty() ? 0 : shape.batch * shape.heads_kv;
  if (static_cast<std::int64_t>(plan.permutation_of.size()) != num_heads) {
    return wrong(fmt::format("permutation_of: expected {} entries, got {}", num_heads,
                             plan.permutation_of.size()));
  }
  for (std::size_t i = 0; i < plan.permutation_of.size(); ++i) {
    const std::int32_t order = plan.permutation_of[i];
    if (order < -1 || order >= static_cast<std::int32_t>(plan.kv_permutations.size())) {
      return wrong(fmt::format("permutation_of[{}]: {} of {} permutations", i, order,
                               plan.kv_permutations.size()));
    }
    if (order < 0) continue;
    const std::int64_t kv_len = shape.kv_len(static_cast<std::int64_t>(i) / shape.heads_kv);
    const std::int64_t last_key = last_keys[static_cast<std::size_t>(order)];
    if (last_key >= kv_len) {
      return wrong(fmt::format("order_of[{}]: key {} of {}", i, last_key, kv_len));
    }
  }
  return {};
}

}  // namespace

Result<void> check_kv_index_arrays(const SegmentPlan& plan) {
  if (plan.kv_index_entries.size() % kKvIndexAlignment != 0) {
    return wrong(fmt::format("kv_index_entries: expected a multiple of {}, got {}",
                             kKvIndexAlignment, plan.kv_index_entries.size()));
  }
  for (std::size_t i = 0; i < plan.kv_index_lists.size(); ++i) {
    const KvIndexList& list = plan.kv_index_lists[i];
    if (list.first_entry < 0 || list.first_entry % kKvIndexAlignment != 0 || list.num_entries < 0 ||
        list.num_full < 0 || list.num_full > list.num_entries ||
        list.first_entry + list.num_entries >
            static_cast<std::int64_t>(plan.kv_index_entries.size())) {
      return wrong(fmt::format("kv_index_lists[{}]: entries {} + {} ({} full) of {}", i,
                               list.first_entry, list.num_entries, list.num_full,
                               plan.kv_index_entries.size()));
    }
  }
  return {};
}

Result<void> check_kv_index_list(const SegmentPlan& plan, std::int64_t index, std::int64_t num_rows,
                                 std::int64_t kv_len) {
  const KvIndexList& list = plan.kv_index_lists[static_cast<std::size_t>(index)];
  for (std::int32_t i = 0; i < list.num_entries; ++i) {
    const KvIndexEntry& entry =
        plan.kv_index_entries[static_cast<std::size_t>(list.first_entry + i)];
    const bool is_full = entry.row_begin == 0 && entry.row_end == num_rows;
    if (entry.key < 0 || entry.key >= kv_len || entry.row_begin >= entry.row_end ||
        entry.row_end > num_rows || is_full != (i < list.num_full)) {
      return wrong(
          fmt::format("kv index list {}, entry {}: key {} rows [{}, {}) of {} keys and {} rows",
                      index, i, entry.key, entry.row_begin, entry.row_end, kv_len, num_rows));
    }
    // Kernels recognise runs of keys by their first and last key.
    if (i == 0 || i == list.num_full) continue;
    const std::int32_t before = (&entry)[-1].key;
    if (entry.key < before || (is_full && entry.key == before)) {
      return wrong(fmt::format("kv index list {}, entry {}: key {} behind key {}", index, i,
                               entry.key, before));
    }
  }
  for (std::int32_t i = list.num_entries; i % kKvIndexAlignment != 0; ++i) {
    const KvIndexEntry& gap = plan.kv_index_entries[static_cast<std::size_t>(list.first_entry + i)];
    if (gap != KvIndexEntry{}) {
      return wrong(fmt::format("kv index list {}: expected zeros behind entry {}, got key {}",
                               index, list.num_entries, gap.key));
    }
  }
  return {};
}

Result<void> check_permutations(const PlanHeader& header, const SegmentPlan& plan) {
  std::vector<std::int64_t> last_keys;
  FDMA_TRY_VOID(check_each_permutation(header, plan, last_keys));
  return check_uses(header, plan, last_keys);
}

}  // namespace fdma
