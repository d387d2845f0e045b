// What one attention call computes, apart from the mask: extents and element types, how keys and
// values lie in memory, and what else happens to a logit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma {

inline constexpr std::int32_t kMaxHeadDim = 256;

/// Batch, heads, actual lengths, head sizes and a dtype per tensor.
///
/// Shapes      q_lens, kv_lens: one entry (uniform), or `batch` entries (per element), each in
///             [0, kMaxLength]
/// Invariants  heads_q is a multiple of heads_kv: query head h reads KV head h / (heads_q /
///             heads_kv). head_dim and head_dim_v in [1, kMaxHeadDim]. dtypes float32, float16 or
///             bfloat16, each tensor its own. validate checks
struct AttentionShape {
  std::int64_t batch = 1;
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::vector<std::int64_t> q_lens;
  std::vector<std::int64_t> kv_lens;
  std::int32_t head_dim = 128;
  std::int32_t head_dim_v = 128;
  DType q_dtype = DType::float32;
  DType k_dtype = DType::float32;
  DType v_dtype = DType::float32;
  DType out_dtype = DType::float32;

  std::int64_t q_len(std::int64_t b) const {
    return q_lens[q_lens.size() == 1 ? 0 : static_cast<std::size_t>(b)];
  }
  std::int64_t kv_len(std::int64_t b) const {
    return kv_lens[kv_lens.size() == 1 ? 0 : static_cast<std::size_t>(b)];
  }
  std::int64_t max_q_len() const;
  std::int64_t max_kv_len() const;
  /// Query heads that share one KV head.
  std::int32_t group_size() const { return heads_q / heads_kv; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// invalid_argument, shape_mismatch or unsupported (a dtype), naming the field.
Result<void> validate(const AttentionShape& shape);

/// How keys and values lie in memory.
enum class KvLayout : std::uint8_t {
  contiguous,  ///< one strided tensor each
  paged,       ///< pages of a cache: rejected by name for now
};
std::string_view to_string(KvLayout layout);

/// Keys and values, wherever they lie; segments of a plan stay logical.
///
/// Shapes      k [batch, kv_len, heads_kv, head_dim], v [batch, kv_len, heads_kv, head_dim_v]; any
///             strides whose last is 1; extents of kv_len at least the longest length
struct KvView {
  KvLayout layout = KvLayout::contiguous;
  TensorView k;
  TensorView v;
};

/// What happens to a logit besides the softmax scale and the mask. A closed list.
enum class ScoreKind : std::uint8_t {
  none,
  key_bias,  ///< + key_bias[b, kv head, k], float32, after the softmax scale
  alibi,     ///< rejected by name for now, as are those below
  softcap,
  relative_table,
  sink,
};
std::string_view to_string(ScoreKind kind);

struct ScoreSpec {
  ScoreKind kind = ScoreKind::none;
  friend bool operator==(const ScoreSpec&, const ScoreSpec&) = default;
};

}  // namespace fdma
