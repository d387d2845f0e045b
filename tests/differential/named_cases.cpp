#include "named_cases.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fdma::differential {
namespace {

using reference::TableSet;
using Values = std::vector<std::int64_t>;

Values random_values(Random& random, std::int64_t count, std::int64_t low, std::int64_t high) {
  Values values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(random.between(low, high));
  return values;
}

// Ids of documents of random lengths; interleaved ones repeat an id now and then.
Values random_ids(Random& random, std::int64_t count, std::int64_t num_docs, bool is_contiguous) {
  Values ids;
  std::int64_t id = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (random.between(0, 19) == 0)
      id = is_contiguous ? std::min(id + 1, num_docs - 1) : random.between(-1, num_docs - 1);
    ids.push_back(id);
  }
  return ids;
}

// [kv_len], or [batch, kv_len] where lengths differ.
void add_ids(Random& random, const MaskShape& shape, TableSet& tables, const std::string& name,
             std::int64_t num_docs, bool is_contiguous) {
  const std::int64_t kv_len = shape.max_kv_len();
  Values ids;
  std::vector<std::int64_t> extents = {kv_len};
  const std::int64_t rows = shape.num_batches > 1 ? shape.num_batches : 1;
  if (rows > 1) extents = {rows, kv_len};
  for (std::int64_t b = 0; b < rows; ++b) {
    const Values row = random_ids(random, kv_len, num_docs, is_contiguous);
    ids.insert(ids.end(), row.begin(), row.end());
  }
  tables.add(name, DType::int32, extents, ids);
}

// One number of keys per element, at most `most`.
Values lengths_up_to(Random& random, const MaskShape& shape, std::int64_t most) {
  Values lengths;
  for (std::int64_t b = 0; b < shape.num_batches; ++b)
    lengths.push_back(random.between(0, std::min(most, shape.kv_len(b))));
  return lengths;
}

// Document lengths per element that leave some keys over.
Values random_lengths(Random& random, const MaskShape& shape, std::int64_t num_docs) {
  Values lengths;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    std::int64_t left = shape.kv_len(b);
    for (std::int64_t d = 0; d < num_docs; ++d) {
      lengths.push_back(
          random.between(0, std::min<std::int64_t>(left, 2 * shape.kv_len(b) / num_docs)));
      left -= lengths.back();
    }
  }
  return lengths;
}

std::string with_lengths(Random& random, const MaskShape& shape, TableSet& tables,
                         const std::string& text) {
  constexpr std::int64_t kDocs = 7;
  tables.add("len", DType::int32, {shape.num_batches, kDocs}, random_lengths(random, shape, kDocs));
  return text;
}

std::string with_ids(Random& random, const MaskShape& shape, TableSet& tables,
                     const std::string& text, bool is_contiguous) {
  add_ids(random, shape, tables, "ids", 5, is_contiguous);
  return text;
}

std::string interval_lists(Random& random, const MaskShape& shape, TableSet& tables, bool by_key,
                           std::int64_t count, bool is_monotone) {
  const std::int64_t length = by_key ? shape.max_kv_len() : shape.max_q_len();
  const std::int64_t other = by_key ? shape.max_q_len() : shape.max_kv_len();
  Values begin = random_values(random, count * length, -2, other + 1);
  Values end = random_values(random, count * length, -2, other + 1);
  if (is_monotone) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::sort(begin.begin() + i * length, begin.begin() + (i + 1) * length);
      std::sort(end.begin() + i * length, end.begin() + (i + 1) * length);
    }
  }
  tables.add("b", DType::int32, {count, length}, begin);
  tables.add("e", DType::int64, {count, length}, end);
  return by_key ? "intervals(begin=@b, end=@e)" : "rows(begin=@b, end=@e)";
}

std::string dense_table(Random& random, const MaskShape& shape, TableSet& tables, std::int64_t rows,
                        std::int64_t columns, int rank) {
  std::vector<std::int64_t> extents = {rows, columns};
  std::int64_t planes = 1;
  if (rank == 4) extents.insert(extents.begin(), shape.num_heads), planes *= shape.num_heads;
  if (rank >= 3) extents.insert(extents.begin(), shape.num_batches), planes *= shape.num_batches;
  tables.add("t", DType::boolean, extents, random_values(random, planes * rows * columns, 0, 1));
  return "t";
}

Values random_parents(Random& random, std::int64_t count) {
  Values parents;
  for (std::int64_t i = 0; i < count; ++i)
    parents.push_back(random.between(std::max<std::int64_t>(-1, i - 5), i - 1));
  return parents;
}

NamedCase fixed(const std::string& text) {
  return {text, [text](Random&, const MaskShape&, TableSet&) { return text; }};
}

std::vector<NamedCase> make_cases() {
  std::vector<NamedCase> cases;
  for (const char* text : {"causal",
                           "window(1)",
                           "window(37)",
                           "window(20, inf)",
                           "window(inf, 3)",
                           "window(50, 9)",
                           "causal & window(40)",
                           "causal & (window(40) | sink(4))",
                           "dilated(60, 7)",
                           "prefix(min(19, kv_len))",
                           "chunked(48)",
                           "chunked(16)",
                           "block_causal(24)",
                           "global(5)",
                           "sink(3)",
                           "sink(inf) & causal",
                           "window(inf) & causal",
                           "dilated(inf, 5)",
                           "causal & ~sink(9)",
                           "causal ^ chunked(32)",
                           "global(4) | window(17)",
                           "k <= q & q - k < 16 * shl(1, h % 3)",
                           "k < 40 * b + 10 | causal",
                           "(q // 5) % 7 == (k // 5) % 7 & causal",
                           "abs(q - k) <= 30 & (q - k) % 4 == 0",
                           "any(i in 100 : k == 3 * i) & causal",
                           "at(causal, q=k, k=q)",
                           "q * k % 11 < 4"})
    cases.push_back(fixed(text));
  const auto add = [&](const char* label, auto make) { cases.push_back({label, make}); };
  using R = Random;
  using S = MaskShape;
  using T = TableSet;
  add("documents(ids) contiguous",
      [](R& r, const S& s, T& t) { return with_ids(r, s, t, "documents(ids=@ids)", true); });
  add("documents(ids) interleaved", [](R& r, const S& s, T& t) {
    return with_ids(r, s, t, "causal & documents(ids=@ids)", false);
  });
  add("documents(lengths)",
      [](R& r, const S& s, T& t) { return with_lengths(r, s, t, "documents(lengths=@len)"); });
  add("causal documents(lengths)", [](R& r, const S& s, T& t) {
    return with_lengths(r, s, t, "causal & documents(lengths=@len) & window(30)");
  });
  add("documents(cu_seqlens)", [](R& r, const S& s, T& t) {
    const Values lengths = random_lengths(r, s, 4);
    Values bounds;
    for (std::int64_t b = 0; b < s.num_batches; ++b) {
      bounds.push_back(0);
      for (std::int64_t d = 0; d < 4; ++d)
        bounds.push_back(bounds.back() + lengths[static_cast<std::size_t>(b * 4 + d)]);
    }
    t.add("cu", DType::int64, {s.num_batches, 5}, bounds);
    return std::string("causal & documents(cu_seqlens=@cu)");
  });
  add("documents(q_ids, k_ids)", [](R& r, const S& s, T& t) {
    t.add("qi", DType::int16, {s.max_q_len()}, random_ids(r, s.max_q_len(), 6, true));
    t.add("ki", DType::int8, {s.max_kv_len()}, random_ids(r, s.max_kv_len(), 6, false));
    return std::string("documents(q_ids=@qi, k_ids=@ki)");
  });
  add("prefix(table)", [](R& r, const S& s, T& t) {
    t.add("p", DType::uint8, {s.num_batches}, lengths_up_to(r, s, 60));
    return std::string("prefix(@p) | causal");
  });
  for (const bool is_contiguous : {true, false})
    cases.push_back(
        {is_contiguous ? "prefix_documents" : "prefix_documents interleaved",
         [is_contiguous](R& r, const S& s, T& t) {
           const auto [first, last] = std::pair(s.kv_lens.begin(), s.kv_lens.end());
           const std::int64_t most = std::min<std::int64_t>(25, *std::min_element(first, last));
           t.add("p", DType::int64, {5}, random_values(r, 5, 0, most));
           return with_ids(r, s, t, "prefix_documents(ids=@ids, prefix=@p)", is_contiguous);
         }});
  add("share_question", [](R& r, const S& s, T& t) {
    add_ids(r, s, t, "parts", 4, false);
    return with_ids(r, s, t, "causal & share_question(ids=@ids, parts=@parts)", true);
  });
  add("causal_blockwise",
      [](R& r, const S& s, T& t) { return with_ids(r, s, t, "causal_blockwise(ids=@ids)", true); });
  add("global(table)", [](R& r, const S& s, T& t) {
    Values flags = random_values(r, s.max_kv_len(), 0, 12);
    for (std::int64_t& flag : flags) flag = flag == 0 ? 1 : 0;
    t.add("g", DType::boolean, {s.max_kv_len()}, flags);
    return std::string("global(@g) | window(9)");
  });
  for (const char* side : {"", ", side=left", ", side=right"})
    cases.push_back({std::string("padding") + side, [side](R& r, const S& s, T& t) {
                       t.add("n", DType::int32, {s.num_batches},
                             lengths_up_to(r, s, s.max_kv_len()));
                       return fmt::format("causal & padding(lengths=@n{})", side);
                     }});
  for (const bool by_key : {true, false}) {
    for (const bool is_monotone : {true, false})
      cases.push_back(
          {fmt::format("{}{}", by_key ? "intervals" : "rows", is_monotone ? " monotone" : ""),
           [=](R& r, const S& s, T& t) {
             return interval_lists(r, s, t, by_key, is_monotone ? 1 : 3, is_monotone);
           }});
    cases.push_back({by_key ? "many intervals" : "many rows", [=](R& r, const S& s, T& t) {
                       return interval_lists(r, s, t, by_key, 70, false);
                     }});
  }
  for (const int rank : {2, 3, 4}) {
    cases.push_back({fmt::format("tiles rank {}", rank), [rank](R& r, const S& s, T& t) {
                       const std::int64_t m = r.between(1, 20), n = 16;
                       dense_table(r, s, t, ceil_div(s.max_q_len(), m), ceil_div(s.max_kv_len(), n),
                                   rank);
                       return fmt::format("tiles(@t, {}, {})", m, n);
                     }});
    cases.push_back({fmt::format("bits rank {}", rank), [rank](R& r, const S& s, T& t) {
                       dense_table(r, s, t, s.max_q_len(), s.max_kv_len(), rank);
                       return std::string("bits(@t)");
                     }});
  }
  add("tree", [](R& r, const S& s, T& t) {
    const std::int64_t n = r.between(1, s.max_kv_len());
    t.add("p", DType::int32, {n}, random_parents(r, n));
    return std::string("tree(parents=@p)");
  });
  add("block_diffusion", [](R& r, const S& s, T&) {
    if (s.kv_lens.size() > 1 || s.kv_len(0) % 2 != 0) return std::string();
    return fmt::format("block_diffusion({}, {})", s.kv_len(0) / 2, r.between(1, 20));
  });
  add("natten2d", [](R& r, const S& s, T&) {
    if (s.kv_lens.size() > 1) return std::string();
    std::int64_t height = r.between(1, 20);
    while (s.kv_len(0) % height != 0) --height;
    const std::int64_t width = s.kv_len(0) / height;
    return fmt::format("natten2d({}, {}, {}, {})", height, width, r.between(1, height),
                       r.between(1, std::min<std::int64_t>(width, 9)));
  });
  add("natten3d", [](R& r, const S& s, T&) {
    if (s.kv_lens.size() > 1) return std::string();
    std::int64_t depth = r.between(1, 6);
    while (s.kv_len(0) % depth != 0) --depth;
    std::int64_t height = r.between(1, 8);
    while (s.kv_len(0) / depth % height != 0) --height;
    const std::int64_t width = s.kv_len(0) / depth / height;
    return fmt::format("natten3d({}, {}, {}, {}, {}, {})", depth, height, width,
                       r.between(1, depth), r.between(1, height),
                       r.between(1, std::min<std::int64_t>(width, 9)));
  });
  add("random eviction", [](R& r, const S& s, T& t) {
    Values end;
    for (std::int64_t k = 0; k < s.max_kv_len(); ++k)
      end.push_back(r.between(0, 1) == 0 ? s.max_q_len() : r.between(k / 2, s.max_q_len()));
    t.add("end", DType::int32, {s.max_kv_len()}, end);
    return std::string("k <= q & q < @end[k]");
  });
  add("table of chunks", [](R& r, const S& s, T& t) {
    t.add("t", DType::boolean, {19, 19}, random_values(r, 19 * 19, 0, 1));
    static_cast<void>(s);
    return std::string("@t[q // 16, k // 16] & (causal | k < 20)");
  });
  add("table of heads", [](R& r, const S& s, T& t) {
    t.add("w", DType::uint16, {s.num_heads}, random_values(r, s.num_heads, 1, 90));
    return std::string("causal & window(@w[h])");
  });
  return cases;
}

}  // namespace

const std::vector<NamedCase>& named_cases() {
  static const std::vector<NamedCase> cases = make_cases();
  return cases;
}

}  // namespace fdma::differential
