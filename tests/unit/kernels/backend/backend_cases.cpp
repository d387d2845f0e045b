#include "backend/backend_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "mask_suite.hpp"

namespace fdma::testing {
namespace {

constexpr BlockShape kBlock{128, 128};
constexpr DType kDTypes[] = {DType::bfloat16, DType::float16};
constexpr std::int32_t kHeadDims[] = {128, 64};
constexpr Layout kLayouts[] = {Layout::rows, Layout::head_major, Layout::padded};
// Query heads and KV heads: groups of 1, 4, 8 and all.
constexpr std::pair<std::int32_t, std::int32_t> kHeads[] = {{2, 2}, {8, 2}, {16, 2}, {5, 1}};

constexpr PairLengths kLengths[] = {
    {{128, 128}, {128, 128}},  // one tile
    {{193, 193}, {193, 193}},  // odd
    {{127, 127}, {385, 385}},  // more keys than queries
    {{641, 641}, {129, 129}},  // more queries than keys
    {{200, 31}, {37, 520}},    // per element
    {{1, 640}, {129, 1}},      // one row, one key
    {{1000, 1000}, {1003, 1003}},
};

// Choice number `i`. The caller sets the dimensions over which it loops.
CaseChoice choice_number(std::uint64_t i) {
  CaseChoice choice;
  choice.layout = kLayouts[i % 3];
  choice.has_bias = i / 3 % 2 == 1;
  choice.wants_lse = i % 5 != 4;
  choice.wants_out_low = i % 3 == 1;
  choice.softmax_scale = i % 7 == 3 ? 0.21F : i % 13 == 6 ? -0.15F : 0;
  choice.softcap = i % 17 < 5 ? (i % 2 == 0 ? 1.5F : 30.0F) : 0;
  choice.q_scale = i % 11 == 5 ? 8 : 1;
  choice.bias_scale = i % 4 == 3 ? 20 : 1;
  choice.seed = i + 1;
  return choice;
}

CaseChoice random_choice(std::mt19937& rng) {
  CaseChoice choice = choice_number(rng());
  choice.dtype = kDTypes[pick(rng, 0, 1)];
  choice.head_dim = kHeadDims[pick(rng, 0, 1)];
  return choice;
}

MaskCase full_case(std::int64_t q_len, std::int64_t kv_len) {
  return case_of(fmt::format("full {}x{}", q_len, kv_len),
                 make_cells(q_len, kv_len, [](auto, auto) { return true; }), kBlock);
}

// Fills up to two short key intervals into keys [begin, end) of each row of a tile row. A row panel
// then takes fewer bytes than bitmaps, if the tiles beside it are not partial.
void fill_panel(std::mt19937& rng, Cells& cells, std::int64_t tile_q, std::int64_t begin,
                std::int64_t end) {
  for (std::int64_t q = tile_q; q < std::min(cells.q_len, tile_q + 128); ++q) {
    std::int64_t k = begin + pick(rng, 0, 60);
    for (std::int64_t i = pick(rng, 0, 2); i > 0; --i) {
      const std::int64_t last = std::min(end, k + pick(rng, 1, 150));
      for (; k < last; ++k) cells.at(q, k) = 1;
      k += pick(rng, 1, 90);
    }
  }
}

void fill_tiles(std::mt19937& rng, Cells& cells, std::int64_t tile_q, std::int64_t begin,
                std::int64_t end, bool is_full) {
  for (std::int64_t q = tile_q; q < std::min(cells.q_len, tile_q + 128); ++q)
    for (std::int64_t k = begin; k < end; ++k)
      cells.at(q, k) = is_full || pick(rng, 0, 2) == 0 ? 1 : 0;
}

void clear_rows(Cells& cells, std::int64_t begin, std::int64_t end) {
  for (std::int64_t q = begin; q < std::min(end, cells.q_len); ++q)
    for (std::int64_t k = 0; k < cells.kv_len; ++k) cells.at(q, k) = 0;
}

// A mask of one of the kinds of random_backend_cases.
MaskCase random_mask(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  switch (pick(rng, 0, 3)) {
    case 0:
      return block_sparse_case(rng, q_len, kv_len, 0.3, 0.2);
    case 1:
      return case_of("random", random_cells(rng, q_len, kv_len), kBlock);
    case 2:
      return column_case(rng, q_len, kv_len);
    default:
      return tile_case(rng, q_len, kv_len);
  }
}

}  // namespace

std::string suite_name(int index) {
  return suite::mask_suite(128)[static_cast<std::size_t>(index)].name;
}

MaskCase suite_pair(int index, const PairLengths& lengths, BlockShape block) {
  std::vector<MaskCase> cases;
  const bool is_uniform = lengths.q[0] == lengths.q[1] && lengths.kv[0] == lengths.kv[1];
  std::string name;
  for (std::size_t b = 0; b < (is_uniform ? 1U : 2U); ++b) {
    suite::SuiteMask mask = suite::mask_suite(lengths.kv[b])[static_cast<std::size_t>(index)];
    mask.shape.q_lens = {lengths.q[b]};
    cases.push_back(suite_case(mask, block));
    name += fmt::format("{}{} {}x{}", b == 0 ? "" : ", ", mask.name, lengths.q[b], lengths.kv[b]);
  }
  const auto num_batches = static_cast<std::int64_t>(cases.size());
  return combined(name, num_batches, 1, cases, block);
}

std::vector<BackendCase> mask_suite_cases(int index, int every) {
  constexpr std::size_t kNumLengths = std::size(kLengths);
  std::vector<std::shared_ptr<const MaskCase>> masks(kNumLengths);
  std::vector<BackendCase> test_cases;
  std::size_t number = static_cast<std::size_t>(index);  // each mask gets other combinations
  for (const DType dtype : kDTypes) {
    for (const std::int32_t head_dim : kHeadDims) {
      for (const auto& [heads_q, heads_kv] : kHeads) {
        for (int i = 0; i < 3; ++i, ++number) {
          if (number % static_cast<std::size_t>(every) != 0) continue;
          auto& mask = masks[number % kNumLengths];
          if (mask == nullptr) {
            const PairLengths& lengths = kLengths[number % kNumLengths];
            mask = std::make_shared<MaskCase>(suite_pair(index, lengths, kBlock));
          }
          CaseChoice choice = choice_number(number);
          choice.dtype = dtype;
          choice.head_dim = head_dim;
          test_cases.push_back({mask, {2, heads_q, heads_kv}, choice});
        }
      }
    }
  }
  return test_cases;
}

std::vector<BackendCase> tile_count_cases() {
  std::vector<BackendCase> test_cases;
  std::uint64_t number = 0;
  const auto add = [&](MaskCase mask) {
    CaseChoice choice = choice_number(++number);
    choice.dtype = kDTypes[number % 2];
    choice.head_dim = kHeadDims[number / 2 % 2];
    test_cases.push_back({std::make_shared<MaskCase>(std::move(mask)), {1, 2, 1}, choice});
  };
  for (std::int64_t tiles = 1; tiles <= 5; ++tiles) {
    for (const std::int64_t rest : {0, 1, 127}) {
      add(full_case(128, tiles * 128 - rest));
      add(full_case(tiles * 50 + rest, tiles * 128 - rest));
    }
  }
  for (const std::int64_t q_len : {1, 63, 64, 65, 127, 128, 129}) {
    for (const std::int64_t kv_len : {1, 2, 127, 128, 129}) add(full_case(q_len, kv_len));
  }
  add(full_case(1, 8000));
  add(full_case(129, 4001));
  // Cases in which some tiles, every row, or a batch element see no key, or in which kv_len is 0.
  Cells late = make_cells(400, 300, [](auto q, auto k) { return q >= 200 && k <= q - 200; });
  add(case_of("keys from row 200 on", late, kBlock));
  add(case_of("no keys", Cells(300, 300), kBlock));
  add(case_of("length 0", Cells(130, 0), kBlock));
  add(case_of("key in the last tile",
              make_cells(140, 513, [](auto q, auto k) { return q == 139 && k == 512; }), kBlock));
  const MaskCase none = case_of("none", Cells(150, 0), kBlock), some = full_case(40, 257),
                 no_rows = case_of("no rows", Cells(0, 90), kBlock);
  add(combined("keys of element 1 alone", 3, 1, {none, some, no_rows}, kBlock));
  return test_cases;
}

std::vector<BackendCase> many_work_tile_cases() {
  std::mt19937 rng(31);
  std::vector<BackendCase> test_cases;
  for (const std::int32_t head_dim : kHeadDims) {
    std::vector<MaskCase> elements;
    for (int b = 0; b < 12; ++b) {
      const std::int64_t q_len = pick(rng, 1, 260), kv_len = pick(rng, 1, 700);
      elements.push_back(b % 3 == 0 ? column_case(rng, q_len, kv_len)
                                    : tile_case(rng, q_len, kv_len));
    }
    CaseChoice choice = choice_number(static_cast<std::uint64_t>(head_dim));
    choice.head_dim = head_dim;
    choice.wants_lse = true;
    test_cases.push_back(
        {std::make_shared<MaskCase>(combined("many work tiles", 12, 1, elements, kBlock)),
         {12, 32, 8},
         choice});
  }
  return test_cases;
}

std::vector<BackendCase> tail_cases() {
  std::vector<BackendCase> test_cases;
  for (std::int64_t tiles = 1; tiles <= 8; ++tiles) {
    const auto full = std::make_shared<MaskCase>(full_case(450, tiles * 128 - 25));
    const auto causal = std::make_shared<MaskCase>(case_of(
        "causal with a tail",
        make_cells(450, tiles * 128 - 25, [](auto q, auto k) { return k < 70 || k <= 2 * q; }),
        kBlock));
    for (const std::int32_t head_dim : kHeadDims) {
      CaseChoice choice;
      choice.head_dim = head_dim;
      choice.dtype = kDTypes[tiles % 2];
      choice.layout = Layout::padded;
      choice.rows_per_head = 24;
      choice.seed = static_cast<std::uint64_t>(tiles);
      test_cases.push_back({full, {3, 36, 4}, choice});
      test_cases.push_back({causal, {3, 36, 4}, choice});
      choice.has_bias = true;
      test_cases.push_back({full, {3, 36, 4}, choice});
    }
  }
  return test_cases;
}

MaskCase tile_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  Cells cells(q_len, kv_len);
  for (std::int64_t tile_q = 0; tile_q < q_len; tile_q += 128) {
    bool was_partial = false;
    for (std::int64_t begin = 0; begin < kv_len;) {
      // The kind is empty, full, noise or a panel. A tile that is not partial follows partial ones.
      const std::int64_t kind = pick(rng, 0, was_partial ? 1 : 3);
      const std::int64_t end = std::min(kv_len, begin + 128 * pick(rng, kind == 3 ? 2 : 1, 3));
      if (kind == 3) fill_panel(rng, cells, tile_q, begin, end);
      if (kind == 1 || kind == 2) fill_tiles(rng, cells, tile_q, begin, end, kind == 1);
      was_partial = kind >= 2;
      begin = end;
    }
  }
  return case_of(fmt::format("tiles {}x{}", q_len, kv_len), cells, kBlock);
}

MaskCase column_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  Cells cells(q_len, kv_len);
  for (std::int64_t k = 0; k < kv_len; k += k < 128 ? 1 : pick(rng, 1, 12)) {
    std::int64_t q = k < 128 ? 0 : pick(rng, 0, q_len / 2);
    for (std::int64_t i = pick(rng, 1, 3); i > 0 && q < q_len; --i) {
      const std::int64_t last = k < 128 ? q_len : std::min(q_len, q + pick(rng, 1, q_len));
      for (; q < last; ++q) cells.at(q, k) = 1;
      q += pick(rng, 1, 1 + q_len / 4);
    }
  }
  // One row has no keys; now and then half a tile or more has none.
  clear_rows(cells, q_len / 3, q_len / 3 + 1);
  if (pick(rng, 0, 2) == 0) clear_rows(cells, 64, 128);
  if (pick(rng, 0, 3) == 0) clear_rows(cells, 128, 256 + 13);
  return case_of(fmt::format("columns {}x{}", q_len, kv_len), cells, kBlock);
}

std::vector<MaskCase> walk_cases() {
  const auto tile = [](auto i) { return i / 128; };
  std::vector<MaskCase> cases;
  const auto add = [&](const char* name, std::int64_t q_len, std::int64_t kv_len,
                       const auto& condition) {
    cases.push_back(case_of(name, make_cells(q_len, kv_len, condition), kBlock));
  };
  add("dies and comes back", 900, 500,
      [&](auto q, auto k) { return tile(k) != 1 || tile(q) % 3 != 1; });
  add("comes alive in the last tile", 900, 500,
      [&](auto q, auto k) { return tile(k) != 2 || q >= 897; });
  add("alive in the first rows alone", 900, 500,
      [&](auto q, auto k) { return tile(k) != 0 ? q % 3 != 0 : q < 3; });
  add("halves of tiles in turn", 700, 500,
      [](auto q, auto k) { return (q / 64 + k / 128) % 2 == 0; });
  add("every other key tile is empty", 700, 600,
      [&](auto q, auto k) { return tile(k) % 2 == 1 && k <= q; });
  add("window that leaves keys behind", 900, 900,
      [](auto q, auto k) { return k <= q && q - k < 70; });
  add("documents", 900, 900, [](auto q, auto k) { return q / 190 == k / 190 && k <= q; });
  add("one row sees one key", 300, 300, [](auto q, auto k) { return q == 299 && k == 1; });
  add("nothing", 200, 300, [](auto, auto) { return false; });
  return cases;
}

MaskCase block_sparse_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len,
                           double full_share, double noise_share) {
  Cells cells(q_len, kv_len);
  for (std::int64_t tile_q = 0; tile_q < q_len; tile_q += 128) {
    for (std::int64_t tile_k = 0; tile_k < kv_len; tile_k += 128) {
      const double share = static_cast<double>(pick(rng, 0, 999)) / 1000;
      if (share >= full_share + noise_share) continue;
      for (std::int64_t q = tile_q; q < std::min(q_len, tile_q + 128); ++q) {
        for (std::int64_t k = tile_k; k < std::min(kv_len, tile_k + 128); ++k)
          cells.at(q, k) = share < full_share || pick(rng, 0, 3) == 0 ? 1 : 0;
      }
    }
  }
  return case_of(fmt::format("block-sparse {}x{}", q_len, kv_len), cells, kBlock);
}

std::vector<BackendCase> random_backend_cases(std::uint32_t seed, int count) {
  std::mt19937 rng(seed);
  std::vector<BackendCase> test_cases;
  for (int i = 0; i < count; ++i) {
    const std::int64_t batch = pick(rng, 1, 2), heads_kv = pick(rng, 1, 2), group = pick(rng, 1, 3);
    const std::int64_t mask_heads = pick(rng, 0, 1) == 0 ? 1 : heads_kv * group;
    std::vector<MaskCase> masks;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t q_len = pick(rng, 1, 600), kv_len = pick(rng, 1, 1300);
      for (std::int64_t h = 0; h < mask_heads; ++h)
        masks.push_back(random_mask(rng, q_len, kv_len));
    }
    const std::string name = fmt::format("random {} of {} ({}..)", i, seed, masks.front().name);
    test_cases.push_back(
        {std::make_shared<MaskCase>(combined(name, batch, mask_heads, masks, kBlock)),
         {batch, static_cast<std::int32_t>(heads_kv * group), static_cast<std::int32_t>(heads_kv)},
         random_choice(rng)});
  }
  return test_cases;
}

std::vector<BackendCase> small_cases() {
  std::mt19937 rng(77);
  std::vector<BackendCase> test_cases;
  const auto add = [&](MaskCase mask, std::int32_t head_dim, bool has_bias) {
    CaseChoice choice;
    choice.head_dim = head_dim;
    choice.has_bias = has_bias;
    choice.layout = has_bias ? Layout::padded : Layout::rows;
    choice.rows_per_head = 40;
    test_cases.push_back({std::make_shared<MaskCase>(std::move(mask)), {1, 2, 1}, choice});
  };
  for (const std::int32_t head_dim : kHeadDims) {
    add(block_sparse_case(rng, 200, 450, 0.4, 0.3), head_dim, false);
    add(column_case(rng, 300, 500), head_dim, true);
    add(tile_case(rng, 260, 900), head_dim, true);
  }
  return test_cases;
}

}  // namespace fdma::testing
