#include "bind/derived_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace fdma {
namespace {

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

template <class T>
void own(IrTable& table, const std::vector<std::int64_t>& values) {
  auto copy = std::make_shared<std::vector<T>>();
  copy->reserve(values.size() + 1);
  for (const std::int64_t value : values) copy->push_back(static_cast<T>(value));
  table.data = copy->data();  // reserved, so not null even without entries
  table.owner = std::move(copy);
}

// Collects documents one after the other into runs.
class DocumentRuns {
 public:
  DocumentRuns(const std::string& name, std::int64_t kv_len) : kv_len_(kv_len) {
    table_.name = name;
    table_.rank = 1;
    table_.extents[0] = kv_len;
  }
  std::int64_t end() const { return end_; }
  std::int64_t room() const { return kv_len_ - end_; }
  void add(std::int64_t length) {
    if (length == 0) return;
    append(length, num_documents_++);
  }
  IrTable finish() && {
    if (end_ < kv_len_) append(kv_len_ - end_, -1);
    if (kv_len_ == 0) return make_owned_table(table_.name, DType::int64, {});
    return std::move(table_);
  }

 private:
  void append(std::int64_t length, std::int64_t value) {
    end_ += length;
    table_.run_ends.push_back(end_);
    table_.run_values.push_back(value);
  }

  IrTable table_;
  std::int64_t kv_len_;
  std::int64_t end_ = 0;
  std::int64_t num_documents_ = 0;
};

}  // namespace

IrTable make_owned_table(std::string name, DType dtype, const std::vector<std::int64_t>& values) {
  IrTable table;
  table.name = std::move(name);
  table.rank = 1;
  table.extents[0] = static_cast<std::int64_t>(values.size());
  table.dtype = dtype;
  if (dtype == DType::boolean)
    own<std::uint8_t>(table, values);
  else if (dtype == DType::int32)
    own<std::int32_t>(table, values);
  else
    own<std::int64_t>(table, values);
  return table;
}

Result<IrTable> documents_from_lengths(const std::string& name, const IrTable& lengths,
                                       std::int64_t kv_len) {
  DocumentRuns runs(name, kv_len);
  for (std::int64_t d = 0; d < lengths.extents[0]; ++d) {
    const std::int64_t length = lengths.at(d);
    if (length < 0)
      return invalid(fmt::format("{}: length {} of document {} is negative", name, length, d));
    if (length > runs.room())
      return invalid(
          fmt::format("{}: documents 0 to {} have more than kv_len = {} keys (document {} has {}, "
                      "and {} are left)",
                      name, d, kv_len, d, length, runs.room()));
    runs.add(length);
  }
  return std::move(runs).finish();
}

Result<IrTable> documents_from_bounds(const std::string& name, const IrTable& cu_seqlens,
                                      std::int64_t kv_len) {
  if (cu_seqlens.extents[0] == 0)
    return invalid(name + ": expected [docs + 1] bounds that begin with 0, got none");
  if (cu_seqlens.at(0) != 0)
    return invalid(fmt::format("{}: bounds begin with 0, got {}", name, cu_seqlens.at(0)));
  DocumentRuns runs(name, kv_len);
  for (std::int64_t d = 1; d < cu_seqlens.extents[0]; ++d) {
    const std::int64_t bound = cu_seqlens.at(d);
    if (bound < runs.end())
      return invalid(fmt::format("{}: bounds do not descend, got {} after {} (entry {})", name,
                                 bound, runs.end(), d));
    if (bound > kv_len)
      return invalid(
          fmt::format("{}: bound {} (entry {}) is beyond kv_len = {}", name, bound, d, kv_len));
    runs.add(bound - runs.end());
  }
  return std::move(runs).finish();
}

Result<IrTable> document_prefixes(const std::string& name, const IrTable& ids,
                                  const IrTable& prefix) {
  const std::int64_t kv_len = ids.extents[0], num_documents = prefix.extents[0];
  std::vector<std::int64_t> left(static_cast<std::size_t>(num_documents));
  for (std::int64_t d = 0; d < num_documents; ++d) {
    const std::int64_t length = prefix.at(d);
    if (length < 0 || length > kv_len)
      return invalid(fmt::format("{}: prefix of document {}: expected 0 to kv_len = {}, got {}",
                                 name, d, kv_len, length));
    left[static_cast<std::size_t>(d)] = length;
  }
  const auto too_large = [&](std::int64_t id, std::int64_t k) {
    return invalid(fmt::format("{}: id {} of key {} is not below docs = {}, the extent of prefix",
                               name, id, k, num_documents));
  };
  if (!ids.is_runs()) {
    std::vector<std::int64_t> flags(static_cast<std::size_t>(kv_len), 0);
    for (std::int64_t k = 0; k < kv_len; ++k) {
      const std::int64_t id = ids.at(k);
      if (id < 0) continue;
      if (id >= num_documents) return too_large(id, k);
      std::int64_t& more = left[static_cast<std::size_t>(id)];
      if (more > 0) flags[static_cast<std::size_t>(k)] = 1;
      more -= more > 0 ? 1 : 0;
    }
    return make_owned_table(name, DType::boolean, flags);
  }
  IrTable flags;
  flags.name = name;
  flags.rank = 1;
  flags.extents[0] = kv_len;
  flags.dtype = DType::boolean;
  const auto append = [&](std::int64_t end, std::int64_t flag) {
    const std::int64_t begin = flags.run_ends.empty() ? 0 : flags.run_ends.back();
    if (end == begin) return;
    if (!flags.run_values.empty() && flags.run_values.back() == flag) {
      flags.run_ends.back() = end;
    } else {
      flags.run_ends.push_back(end);
      flags.run_values.push_back(flag);
    }
  };
  std::int64_t begin = 0;
  for (std::size_t run = 0; run < ids.run_ends.size(); ++run) {
    const std::int64_t id = ids.run_values[run], end = ids.run_ends[run];
    if (id >= num_documents) return too_large(id, begin);
    if (id >= 0) {
      std::int64_t& more = left[static_cast<std::size_t>(id)];
      const std::int64_t taken = std::min(more, end - begin);
      more -= taken;
      append(begin + taken, 1);
    }
    append(end, 0);
    begin = end;
  }
  return flags;
}

Result<TreeOrder> tree_order(const std::string& name, const IrTable& parents) {
  const std::int64_t count = parents.extents[0];
  const auto size = static_cast<std::size_t>(count);
  // Children are linked lists, in ascending order because nodes are added from the last one.
  std::vector<std::int64_t> first_child(size, -1), next_sibling(size, -1);
  std::int64_t first_root = -1;
  for (std::int64_t x = count - 1; x >= 0; --x) {
    const std::int64_t parent = parents.at(x);
    if (parent < -1 || parent >= count)
      return invalid(fmt::format("{}: parent {} of node {} is neither -1 nor a node below {}", name,
                                 parent, x, count));
    std::int64_t& head = parent < 0 ? first_root : first_child[static_cast<std::size_t>(parent)];
    next_sibling[static_cast<std::size_t>(x)] = head;
    head = x;
  }
  std::vector<std::int64_t> entry(size, -1), exit(size, -1);
  std::int64_t clock = 0;
  std::vector<std::int64_t> path;
  for (std::int64_t x = first_root; x >= 0 || !path.empty();) {
    if (x >= 0) {
      entry[static_cast<std::size_t>(x)] = clock++;
      path.push_back(x);
      x = first_child[static_cast<std::size_t>(x)];
    } else {
      const auto done = static_cast<std::size_t>(path.back());
      path.pop_back();
      exit[done] = clock;
      x = next_sibling[done];
    }
  }
  for (std::int64_t x = 0; x < count; ++x)
    if (entry[static_cast<std::size_t>(x)] < 0)  // no root above it
      return invalid(fmt::format("{}: the parents of node {} form a cycle", name, x));
  return TreeOrder{make_owned_table(name + " entry", DType::int64, entry),
                   make_owned_table(name + " exit", DType::int64, exit)};
}

std::int64_t last_document(const IrTable& ids) {
  if (ids.is_runs()) {
    for (std::size_t run = ids.run_values.size(); run-- > 0;)
      if (ids.run_values[run] >= 0) return ids.run_values[run];
    return -1;
  }
  for (std::int64_t k = ids.extents[0]; k-- > 0;)
    if (ids.at(k) >= 0) return ids.at(k);
  return -1;
}

}  // namespace fdma
