#include "named_masks.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace fdma::suite {
namespace {

/// `count` integers in [0, bound), each repeated `run` times.
std::vector<std::int32_t> random_runs(std::int64_t count, std::int64_t run, std::int64_t bound,
                                      Random& random) {
  std::vector<std::int32_t> values;
  std::int32_t value = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % run == 0) value = static_cast<std::int32_t>(random.below(bound));
    values.push_back(value);
  }
  return values;
}

/// A random document id below `count` for each token. The ids ascend, so that documents are
/// consecutive.
std::vector<std::int32_t> consecutive_ids(std::int64_t n, std::int64_t count, Random& random) {
  std::vector<std::int32_t> ids = random_runs(n, 1, count, random);
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// The begin and the end of random intervals. `run` neighbouring entries are equal.
std::pair<SuiteTable, SuiteTable> random_intervals(std::int64_t n, std::int64_t run,
                                                   Random& random) {
  std::vector<std::int32_t> begin = random_runs(n, run, n, random);
  std::vector<std::int32_t> end = random_runs(n, run, n + 1, random);
  return {integers(std::move(begin)), integers(std::move(end))};
}

SuiteTable random_booleans(std::int64_t rows, std::int64_t columns, int percent, Random& random) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(rows * columns));
  for (auto& value : values) value = random.below(100) < percent ? 1 : 0;
  SuiteTable table = booleans(std::move(values));
  if (rows > 1) table.extents = {rows, columns};
  return table;
}

/// A dense n x n mask whose 128 x 128 blocks are copies of eight random ones.
SuiteTable bits_of_patterns(std::int64_t n, Random& random) {
  constexpr std::int64_t kSide = 128;
  constexpr std::int64_t kPatterns = 8;
  const SuiteTable patterns = random_booleans(kPatterns, kSide * kSide, 50, random);
  std::vector<std::uint8_t> values(static_cast<std::size_t>(n * n));
  for (std::int64_t block_row = 0; block_row < n / kSide; ++block_row) {
    for (std::int64_t block_column = 0; block_column < n / kSide; ++block_column) {
      const auto pattern = patterns.booleans.begin() + random.below(kPatterns) * kSide * kSide;
      for (std::int64_t row = 0; row < kSide; ++row) {
        std::copy_n(pattern + row * kSide, kSide,
                    values.begin() + (block_row * kSide + row) * n + block_column * kSide);
      }
    }
  }
  SuiteTable table = booleans(std::move(values));
  table.extents = {n, n};
  return table;
}

}  // namespace

std::vector<SuiteMask> predicates(std::int64_t n) {
  Random random(static_cast<std::uint64_t>(n));
  const std::string half = std::to_string(n / 2);
  const std::string height = std::to_string(n / 128);
  std::vector<SuiteMask> masks;
  masks.push_back(make_square("modular", "(q // 5) % 7 == (k // 5) % 7 & causal", n));
  masks.push_back(make_square("dilated_band", "abs(q - k) <= 300 & (q - k) % 4 == 0", n));
  masks.push_back(make_square("head_windows", "k <= q & q - k < 32 * shl(1, h % 4)", n));
  masks.back().shape.num_heads = 8;
  masks.push_back(make_square("natten2d", "natten2d(" + height + ", 128, 13, 13)", n));
  masks.push_back(make_square("block_diffusion", "block_diffusion(" + half + ", 16)", n));
  masks.push_back(make_square("table_tiles", "@t[q // 64, k // 64]", n));
  masks.back().tables.emplace("t", random_booleans(n / 64, n / 64, 50, random));
  return masks;
}

std::vector<SuiteMask> every_name(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  std::vector<SuiteMask> masks;
  const auto add = [&](const char* name, const std::string& spec,
                       std::map<std::string, SuiteTable, std::less<>> tables = {}) {
    masks.push_back(make_square(name, spec, n));
    masks.back().tables = std::move(tables);
  };

  add("causal", "causal");
  add("window", "window(" + text(1 + random.below(n / 4)) + ")");
  add("window_pair",
      "window(" + text(random.below(n / 4)) + ", " + text(random.below(n / 16)) + ")");
  add("dilated", "dilated(" + text(n / 8) + ", 3)");

  const std::vector<std::int32_t> lengths = random_lengths(n - 100, 24, random);
  std::vector<std::int32_t> cu_seqlens{0};
  for (const std::int32_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
  const SuiteTable ids = integers(consecutive_ids(n, 24, random));
  add("documents_lengths", "documents(lengths=@t)", {{"t", integers(lengths)}});
  add("documents_cu_seqlens", "documents(cu_seqlens=@t)", {{"t", integers(cu_seqlens)}});
  add("documents_ids", "documents(ids=@t)", {{"t", integers(random_runs(n, 1, 8, random))}});
  add("documents_ids_blocks", "documents(ids=@t)",
      {{"t", integers(random_runs(n, 192, 8, random))}});
  add("documents_q_k", "documents(q_ids=@a, k_ids=@b)",
      {{"a", integers(consecutive_ids(n, 24, random))},
       {"b", integers(consecutive_ids(n, 24, random))}});
  add("prefix", "prefix(" + text(random.below(n)) + ")");
  add("prefix_documents", "prefix_documents(ids=@t, prefix=@p)",
      {{"t", ids}, {"p", integers(random_runs(24, 1, n / 24, random))}});
  add("share_question", "share_question(ids=@t, parts=@a)",
      {{"t", ids}, {"a", integers(random_runs(n, 96, 4, random))}});
  add("causal_blockwise", "causal_blockwise(ids=@t)", {{"t", ids}});
  add("chunked", "chunked(" + text(1 + random.below(n / 8)) + ")");
  add("block_causal", "block_causal(" + text(1 + random.below(n / 8)) + ")");
  add("global", "global(" + text(random.below(n / 16)) + ")");
  add("global_table", "global(@t)", {{"t", random_booleans(1, n, 1, random)}});
  add("sink", "sink(" + text(random.below(64)) + ")");
  const auto padded_len = static_cast<std::int32_t>(random.below(n));
  add("padding", "padding(lengths=@t)", {{"t", integers({padded_len})}});
  add("padding_left", "padding(lengths=@t, side=left)", {{"t", integers({padded_len})}});
  for (const auto& [suffix, run] : {std::pair{"", 1}, std::pair{"_blocks", 256}}) {
    const auto [begin, end] = random_intervals(n, run, random);
    const std::map<std::string, SuiteTable, std::less<>> tables{{"b", begin}, {"e", end}};
    add((std::string("intervals") + suffix).c_str(), "intervals(begin=@b, end=@e)", tables);
    add((std::string("rows") + suffix).c_str(), "rows(begin=@b, end=@e)", tables);
  }
  add("tiles", "tiles(@t, 64, 64)", {{"t", random_booleans(n / 64, n / 64, 50, random)}});
  std::vector<std::int32_t> parents{-1};
  for (std::int64_t node = 1; node < n / 8; ++node) {
    parents.push_back(static_cast<std::int32_t>(random.below(node)));
  }
  add("tree", "tree(parents=@t)", {{"t", integers(std::move(parents))}});
  add("block_diffusion", "block_diffusion(" + text(n / 2) + ", 16)");
  add("natten2d", "natten2d(" + text(n / 128) + ", 128, 7, 13)");
  add("bits", "bits(@t)", {{"t", random_booleans(n, n, 50, random)}});
  add("bits_blocks", "bits(@t)", {{"t", bits_of_patterns(n, random)}});
  return masks;
}

}  // namespace fdma::suite
