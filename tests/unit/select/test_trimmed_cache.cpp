// Tests decoding and chunked prefill with a cache that holds only the live keys. The attention is
// that with a cache of all keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "fdma/select/incremental_topk.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kHeadDim = 16;

struct Rows {
  std::vector<float> values;  ///< [rows, kHeadDim]
  explicit Rows(std::int64_t count) : values(static_cast<std::size_t>(count * kHeadDim)) {}
  const float* row(std::int64_t i) const { return values.data() + i * kHeadDim; }
  void append(const float* from) { values.insert(values.end(), from, from + kHeadDim); }
};

struct Output {
  std::vector<float> out;
  std::vector<float> lse;
  friend bool operator==(const Output&, const Output&) = default;
};

// Returns the attention of `q` under a mask text over these keys. Their scores are the bias as
// well.
Output attend(const std::string& text, const Tables& tables, const std::vector<float>& q,
              const std::vector<float>& k, const std::vector<float>& v,
              const std::vector<float>& bias) {
  const auto q_len = static_cast<std::int64_t>(q.size()) / kHeadDim;
  const auto kv_len = static_cast<std::int64_t>(bias.size());
  const auto mask = compile(*parse_mask(text), tables, MaskShape{1, 1, {q_len}, {kv_len}});
  EXPECT_TRUE(mask) << mask.error().message;
  AttentionShape shape;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  shape.head_dim = shape.head_dim_v = kHeadDim;
  const auto plan = make_plan(*mask, shape, {.key_bias = true});
  EXPECT_TRUE(plan) << plan.error().message;
  Output result{std::vector<float>(q.size()), std::vector<float>(static_cast<std::size_t>(q_len))};
  const std::int64_t q_extents[] = {1, q_len, 1, kHeadDim}, kv_extents[] = {1, kv_len, 1, kHeadDim};
  const std::int64_t bias_extents[] = {1, 1, kv_len}, lse_extents[] = {1, 1, q_len};
  AttentionTensors tensors;
  tensors.q = make_contiguous_view(q.data(), DType::float32, 4, q_extents);
  tensors.kv.k = make_contiguous_view(k.data(), DType::float32, 4, kv_extents);
  tensors.kv.v = make_contiguous_view(v.data(), DType::float32, 4, kv_extents);
  tensors.key_bias = make_contiguous_view(bias.data(), DType::float32, 3, bias_extents);
  tensors.out = make_contiguous_mutable_view(result.out.data(), DType::float32, 4, q_extents);
  tensors.lse = make_contiguous_mutable_view(result.lse.data(), DType::float32, 3, lse_extents);
  const Result<void> ran = attention_forward(*plan, tensors);
  EXPECT_TRUE(ran) << ran.error().message;
  return result;
}

// The keys, values and scores of a cache, by slot; `key_of` ascends.
struct Cache {
  std::vector<std::int32_t> key_of;
  Rows k{0}, v{0};
  std::vector<float> scores;

  void add(std::int32_t key, const float* k_row, const float* v_row, float score) {
    key_of.push_back(key);
    k.append(k_row);
    v.append(v_row);
    scores.push_back(score);
  }
  void remove(std::int32_t key) {
    const auto found = std::lower_bound(key_of.begin(), key_of.end(), key);
    ASSERT_TRUE(found != key_of.end() && *found == key);
    const auto slot = found - key_of.begin();
    key_of.erase(found);
    scores.erase(scores.begin() + slot);
    for (std::vector<float>* rows : {&k.values, &v.values}) {
      rows->erase(rows->begin() + slot * kHeadDim, rows->begin() + (slot + 1) * kHeadDim);
    }
  }
};

struct Sequence {
  explicit Sequence(std::int64_t length, unsigned seed) : q(length), k(length), v(length) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Rows* rows : {&q, &k, &v}) {
      for (float& value : rows->values) value = normal(random);
    }
    for (std::int64_t i = 0; i < length; ++i) scores.push_back(normal(random));
  }
  Rows q, k, v;
  std::vector<float> scores;

  std::vector<float> part(const Rows& rows, std::int64_t begin, std::int64_t end) const {
    return {rows.row(begin), rows.row(begin) + (end - begin) * kHeadDim};
  }
};

// A decoding step reads the live keys and nothing else. The kernel meets the same keys in the same
// order as with the whole cache, so that not even the rounding differs.
TEST(TrimmedCache, DecodesToTheSameBits) {
  constexpr std::int64_t kLength = 420;
  for (const std::int64_t w : {1, 2, 127, 128, 129, 420, 500}) {
    const Sequence s(kLength, static_cast<unsigned>(w));
    IncrementalTopk topk = *IncrementalTopk::make(w);
    Cache cache;
    for (std::int64_t t = 0; t < kLength; ++t) {
      const auto at = static_cast<std::size_t>(t);
      ASSERT_TRUE(topk.append_causal({&s.scores[at], 1}));
      cache.add(static_cast<std::int32_t>(t), s.k.row(t), s.v.row(t), s.scores[at]);
      for (const std::int32_t key : topk.dropped_keys()) cache.remove(key);
      ASSERT_EQ(cache.key_of, topk.live_keys());
      ASSERT_LE(cache.key_of.size(), static_cast<std::size_t>(w));
      if (t % 7 != 0 && t != kLength - 1) continue;
      const std::vector<float> scores(s.scores.begin(), s.scores.begin() + t + 1);
      const std::int64_t extent = t + 1;
      const Tables tables{{"s", make_contiguous_view(scores.data(), DType::float32, 1, &extent)}};
      const Output full =
          attend("causal & topk(@s, " + std::to_string(w) + ")", tables, s.part(s.q, t, t + 1),
                 s.part(s.k, 0, t + 1), s.part(s.v, 0, t + 1), scores);
      const Output trimmed =
          attend("causal", {}, s.part(s.q, t, t + 1), cache.k.values, cache.v.values, cache.scores);
      ASSERT_EQ(trimmed, full) << "w " << w << " t " << t;
    }
  }
}

// In chunked prefill a chunk sees the cache as it was before it, and itself. Selection among these
// keys is selection among all keys. Sums may have another order, so results are equal to float32
// rounding.
TEST(TrimmedCache, PrefillsInChunksToTheSameAttention) {
  constexpr std::int64_t kLength = 390;
  for (const std::int64_t w : {1, 33, 128, 400}) {
    const Sequence s(kLength, static_cast<unsigned>(w) + 50);
    const Tables all{{"s", make_contiguous_view(s.scores.data(), DType::float32, 1, &kLength)}};
    const std::string text = "causal & topk(@s, " + std::to_string(w) + ")";
    const Output whole = attend(text, all, s.q.values, s.k.values, s.v.values, s.scores);
    IncrementalTopk topk = *IncrementalTopk::make(w);
    Cache cache;
    std::int64_t begin = 0;
    for (const std::int64_t count : {130, 1, 64, 7, 188}) {
      // The live keys before the chunk come first, then its own.
      for (std::int64_t t = begin; t < begin + count; ++t) {
        cache.add(static_cast<std::int32_t>(t), s.k.row(t), s.v.row(t),
                  s.scores[static_cast<std::size_t>(t)]);
      }
      const auto extent = static_cast<std::int64_t>(cache.scores.size());
      const Tables tables{
          {"s", make_contiguous_view(cache.scores.data(), DType::float32, 1, &extent)}};
      const Output chunk = attend(text, tables, s.part(s.q, begin, begin + count), cache.k.values,
                                  cache.v.values, cache.scores);
      for (std::size_t i = 0; i < chunk.out.size(); ++i) {
        ASSERT_NEAR(chunk.out[i], whole.out[static_cast<std::size_t>(begin * kHeadDim) + i], 2e-6);
      }
      for (std::size_t i = 0; i < chunk.lse.size(); ++i) {
        ASSERT_NEAR(chunk.lse[i], whole.lse[static_cast<std::size_t>(begin) + i], 2e-6);
      }
      ASSERT_TRUE(topk.append_causal(std::span(s.scores).subspan(static_cast<std::size_t>(begin),
                                                                 static_cast<std::size_t>(count))));
      for (const std::int32_t key : topk.dropped_keys()) cache.remove(key);
      ASSERT_EQ(cache.key_of, topk.live_keys());
      begin += count;
    }
    ASSERT_EQ(begin, kLength);
  }
}

}  // namespace
}  // namespace fdma
