#include "selection_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fdma {

SelectedCells cells_of(const ColumnIntervals& mask) {
  SelectedCells cells(static_cast<std::size_t>(mask.q_len),
                      std::vector<bool>(static_cast<std::size_t>(mask.kv_len), false));
  for (std::size_t key = 0; key < static_cast<std::size_t>(mask.kv_len); ++key) {
    for (std::int64_t i = mask.offsets[key]; i < mask.offsets[key + 1]; ++i) {
      const Interval queries = mask.intervals[static_cast<std::size_t>(i)];
      for (std::int32_t q = queries.begin; q < queries.end; ++q) {
        cells[static_cast<std::size_t>(q)][key] = true;
      }
    }
  }
  return cells;
}

ColumnIntervals columns_of(const SelectedCells& cells, std::int64_t kv_len) {
  ColumnIntervals mask{static_cast<std::int64_t>(cells.size()), kv_len, {0}, {}};
  for (std::size_t key = 0; key < static_cast<std::size_t>(kv_len); ++key) {
    for (std::size_t q = 0; q < cells.size(); ++q) {
      if (!cells[q][key]) continue;
      const auto at = static_cast<std::int32_t>(q);
      const bool is_new = q == 0 || !cells[q - 1][key];
      if (is_new) {
        mask.intervals.push_back({at, at + 1});
      } else {
        mask.intervals.back().end = at + 1;
      }
    }
    mask.offsets.push_back(static_cast<std::int64_t>(mask.intervals.size()));
  }
  return mask;
}

SelectedCells selected_by_sorting(const std::vector<float>& scores, std::int64_t w,
                                  const SelectedCells& among) {
  SelectedCells kept = among;
  for (std::size_t q = 0; q < among.size(); ++q) {
    std::vector<std::size_t> keys;
    for (std::size_t key = 0; key < scores.size(); ++key) {
      if (among[q][key]) keys.push_back(key);
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    for (std::size_t i = static_cast<std::size_t>(w); i < keys.size(); ++i)
      kept[q][keys[i]] = false;
  }
  return kept;
}

std::vector<NamedCells> all_among(std::int64_t q_len, std::int64_t kv_len, std::mt19937& random) {
  const std::int64_t shift = kv_len - q_len;
  const auto pos = [shift](std::int64_t q) { return q + shift; };
  std::vector<std::int64_t> end(static_cast<std::size_t>(kv_len)), id(end.size()),
      mixed(end.size());
  for (std::size_t k = 0; k < end.size(); ++k) {
    end[k] = static_cast<std::int64_t>(random() % static_cast<unsigned>(q_len + 1));
    id[k] = static_cast<std::int64_t>(k) / 13;
    mixed[k] = static_cast<std::int64_t>(random() % 3);
  }
  const auto at = [](const std::vector<std::int64_t>& table, std::int64_t i) {
    return i < 0 || i >= static_cast<std::int64_t>(table.size())
               ? -1
               : table[static_cast<std::size_t>(i)];
  };
  std::vector<NamedCells> all;
  const auto add = [&](std::string name, bool is_one_interval, auto visible) {
    all.push_back({std::move(name), cells_where(q_len, kv_len, visible), is_one_interval});
  };
  add("full", true, [](auto, auto) { return true; });
  add("empty", true, [](auto, auto) { return false; });
  add("causal", true, [&](auto q, auto k) { return k <= pos(q); });
  add("padding", true, [&](auto, auto k) { return k < kv_len * 2 / 3; });
  add("prefix", true, [&](auto q, auto k) { return k <= pos(q) || k < 9; });
  add("documents", true,
      [&](auto q, auto k) { return at(id, pos(q)) == id[static_cast<std::size_t>(k)]; });
  add("causal documents", true, [&](auto q, auto k) {
    return k <= pos(q) && at(id, pos(q)) == id[static_cast<std::size_t>(k)];
  });
  // Hidden until the document ends, every second document.
  add("qk sparse", true, [&](auto q, auto k) {
    const std::int64_t document = id[static_cast<std::size_t>(k)];
    return k <= pos(q) && (document % 2 == 0 || pos(q) >= (document + 1) * 13);
  });
  add("document prefixes", true, [&](auto q, auto k) {
    return at(id, pos(q)) == id[static_cast<std::size_t>(k)] && (k <= pos(q) || k % 13 < 4);
  });
  add("left padding", true, [&](auto q, auto k) { return k <= pos(q) && k >= kv_len / 3; });
  add("window", false, [&](auto q, auto k) { return k <= pos(q) && pos(q) - k < 17; });
  add("sink and window", false,
      [&](auto q, auto k) { return k <= pos(q) && (pos(q) - k < 11 || k < 3); });
  add("eviction", false,
      [&](auto q, auto k) { return k <= pos(q) && q < end[static_cast<std::size_t>(k)]; });
  add("interleaved documents", false, [&](auto q, auto k) {
    return k <= pos(q) && at(mixed, pos(q)) == mixed[static_cast<std::size_t>(k)];
  });
  add("random cells", false, [&](auto, auto) { return random() % 3 == 0; });
  return all;
}

ColumnIntervals groups(const std::vector<std::int32_t>& lengths, bool causal, int hidden) {
  ColumnIntervals mask{0, 0, {0}, {}};
  std::int32_t begin = 0;
  for (const std::int32_t length : lengths) {
    for (std::int32_t i = 0; i < length; ++i) {
      if (hidden == 0 || (begin + i) % hidden != 0) {
        mask.intervals.push_back({causal ? begin + i : begin, begin + length});
      }
      mask.offsets.push_back(static_cast<std::int64_t>(mask.intervals.size()));
    }
    begin += length;
  }
  mask.q_len = mask.kv_len = begin;
  return mask;
}

std::vector<std::pair<std::string, std::vector<float>>> all_scores(std::int64_t kv_len,
                                                                   std::mt19937& random) {
  const auto count = static_cast<std::size_t>(kv_len);
  std::normal_distribution<float> normal;
  std::vector<std::pair<std::string, std::vector<float>>> all;
  const auto add = [&](std::string name, auto score) {
    std::vector<float> scores(count);
    for (std::size_t k = 0; k < count; ++k) scores[k] = score(k);
    all.emplace_back(std::move(name), std::move(scores));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  add("random", [&](std::size_t) { return normal(random); });
  add("tied", [&](std::size_t) { return static_cast<float>(random() % 3); });
  add("constant", [](std::size_t) { return 0.5F; });
  add("rising", [](std::size_t k) { return static_cast<float>(k); });
  add("falling", [](std::size_t k) { return -static_cast<float>(k); });
  add("alternating",
      [](std::size_t k) { return (k % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(k); });
  // Each score just beats, or just fails to beat, what is there.
  add("adversarial", [&](std::size_t k) {
    const auto step = static_cast<float>(k / 2 + 1);
    return k % 2 == 0 ? step : std::nextafter(step, 0.0F);
  });
  add("clustered",
      [&](std::size_t k) { return static_cast<float>((k / 9) * 7 % 5) + 1e-3F * normal(random); });
  add("signed zeros", [](std::size_t k) { return k % 2 == 0 ? -0.0F : 0.0F; });
  add("infinite", [&](std::size_t) {
    const unsigned r = random() % 4;
    return r == 0 ? kInfinity : r == 1 ? -kInfinity : normal(random);
  });
  add("subnormal", [](std::size_t k) {
    return static_cast<float>(k % 7) * std::numeric_limits<float>::denorm_min();
  });
  return all;
}

}  // namespace fdma
