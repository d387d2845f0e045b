#include "backend/scattered_cases.hpp"

#include <algorithm>
#include <numeric>

namespace fdma::testing {
namespace {

constexpr BlockShape kBlock{128, 128};

enum class Scores { independent, drifting, clustered, tied };

std::vector<float> scores_of(std::mt19937& rng, std::int64_t kv_len, Scores kind) {
  std::normal_distribution<float> normal;
  std::vector<float> scores(static_cast<std::size_t>(kv_len));
  for (std::size_t k = 0; k < scores.size(); ++k) {
    scores[k] = normal(rng);
    if (kind == Scores::drifting) scores[k] += static_cast<float>(k) * 0.02F;
    if (kind == Scores::clustered && k / 37 % 4 == 0) scores[k] += 3;
    if (kind == Scores::tied) scores[k] = static_cast<float>(pick(rng, 0, 2));
  }
  return scores;
}

}  // namespace

Cells topk_cells(std::int64_t q_len, std::int64_t kv_len, std::int64_t width,
                 const std::vector<float>& scores) {
  Cells cells(q_len, kv_len);
  std::vector<std::int64_t> keys;
  for (std::int64_t q = 0; q < q_len; ++q) {
    const std::int64_t visible = std::clamp<std::int64_t>(q + kv_len - q_len + 1, 0, kv_len);
    keys.resize(static_cast<std::size_t>(visible));
    std::iota(keys.begin(), keys.end(), 0);
    std::stable_sort(keys.begin(), keys.end(), [&](std::int64_t a, std::int64_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    for (std::int64_t i = 0; i < std::min(width, visible); ++i)
      cells.at(q, keys[static_cast<std::size_t>(i)]) = 1;
  }
  return cells;
}

std::vector<MaskCase> scattered_cases(std::int64_t q_len, std::int64_t kv_len, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<MaskCase> cases;
  const auto add = [&](const char* name, const Cells& cells) {
    cases.push_back(case_of(name, cells, kBlock));
  };
  const auto add_topk = [&](const char* name, Scores kind, std::int64_t share) {
    const std::int64_t width = std::max<std::int64_t>(1, kv_len / share);
    add(name, topk_cells(q_len, kv_len, width, scores_of(rng, kv_len, kind)));
  };
  add_topk("topk of independent scores", Scores::independent, 8);
  add_topk("topk of drifting scores", Scores::drifting, 9);
  add_topk("topk of clustered scores", Scores::clustered, 10);
  add_topk("topk of ties", Scores::tied, 11);
  std::vector<std::int64_t> end(static_cast<std::size_t>(kv_len));
  for (std::int64_t& each : end) each = pick(rng, 0, 2 * q_len);
  add("random eviction", make_cells(q_len, kv_len, [&](auto q, auto k) {
        return k <= q + kv_len - q_len && q < end[static_cast<std::size_t>(k)];
      }));
  add("keys that return", random_live_ranges(rng, q_len, kv_len, 4));
  add("a tile that returns", make_cells(q_len, kv_len, [&](auto q, auto k) {
        return k % 17 == 3 && (k / 128 != 1 || q < q_len / 3 || q >= q_len / 2);
      }));
  Cells tokens(q_len, kv_len);
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (int i = 0; i < 9; ++i) tokens.at(q, pick(rng, 0, kv_len - 1)) = 1;
  }
  add("tokens of each row", tokens);
  std::vector<std::int64_t> step(static_cast<std::size_t>(q_len / 50 + 1));
  for (std::int64_t& each : step) each = pick(rng, 11, 61);
  add("tokens of runs of rows", make_cells(q_len, kv_len, [&](auto q, auto k) {
        return k % step[static_cast<std::size_t>(q / 50)] == 0;
      }));
  add("a window and scattered keys", make_cells(q_len, kv_len, [&](auto q, auto k) {
        const std::int64_t pos = q + kv_len - q_len;
        return k <= pos && (pos - k < 300 || k % 29 == 0);
      }));
  add("whole columns", make_cells(q_len, kv_len, [](auto, auto k) { return k % 13 == 5; }));
  return cases;
}

}  // namespace fdma::testing
