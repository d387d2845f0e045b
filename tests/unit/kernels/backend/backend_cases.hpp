// The cases that every backend passes: masks, heads, lengths and layouts, made once for all of
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend_attention_case.hpp"

namespace fdma::testing {

struct BackendCase {
  std::shared_ptr<const MaskCase> mask;
  CaseHeads heads;
  CaseChoice choice;
};

inline constexpr int kNumSuiteMasks = 13;
/// The name of mask `index` of the mask suite, for the name of a test.
std::string suite_name(int index);

/// q_len and kv_len of two batch elements.
struct PairLengths {
  std::int64_t q[2];
  std::int64_t kv[2];
};
inline constexpr PairLengths kPairLengths[] = {
    {{193, 193}, {193, 193}},  // odd
    {{61, 61}, {257, 257}},    // more keys than queries
    {{257, 257}, {130, 130}},  // more queries than keys: rows without keys
    {{200, 31}, {37, 211}},    // per element
    {{1, 140}, {129, 1}},      // one row, one key
    {{384, 384}, {384, 384}},  // whole tiles of 128
};
/// Mask `index` of the mask suite for both elements. It has one element if the lengths are uniform.
MaskCase suite_pair(int index, const PairLengths& lengths, BlockShape block);

/// Mask `index` of the mask suite with every combination of types (bfloat16, float16), head sizes
/// (64, 128) and groups of heads (1, 4, 8, all). Each combination has three of seven pairs of
/// lengths (odd, unequal, per batch element, one row, one key, up to 1003) in turn. Layout, bias,
/// scale and lse change from case to case. Only every `every`-th case is returned.
std::vector<BackendCase> mask_suite_cases(int index, int every = 1);

/// Full attention of 1 to 5 key tiles for 1 to 3 query tiles, of which the last may be partly
/// filled. Further cases have lengths of 1 and at tile edges, one row of 8000 keys, and query tiles
/// and whole elements without keys.
std::vector<BackendCase> tile_count_cases();

/// Short sequences of many elements and heads: more than 3 work tiles for each of 132 workers.
std::vector<BackendCase> many_work_tile_cases();

/// Work tiles of 1 to 8 tiles each, several for each of 132 workers. The last tile of each ends
/// within the tensors, where V has rows that the work tile must not see.
std::vector<BackendCase> tail_cases();

/// Runs of tiles: empty, full, noise (bitmaps), one or two key intervals per row (row panels).
MaskCase tile_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len);

/// Several query intervals per key (columns) after a full tile; some rows see no key.
MaskCase column_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len);

/// Masks that a walk over tiles gets wrong if it asks the wrong tile whether it is live. They have
/// keys that no row of one query tile sees although rows of earlier and later tiles do, keys that
/// become visible late, and tiles and halves of tiles without a true cell.
std::vector<MaskCase> walk_cases();

/// Random tiles of 128 x 128 that are full, empty or noise, with these shares of full and noise.
MaskCase block_sparse_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len,
                           double full_share, double noise_share);

/// Masks of the kinds above and random ones, per head and per batch element, with random choices.
std::vector<BackendCase> random_backend_cases(std::uint32_t seed, int count);

/// Every kind of segment at a few hundred tokens, for runs under sanitizers.
std::vector<BackendCase> small_cases();

}  // namespace fdma::testing
