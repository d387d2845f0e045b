// The parts of one attention call other than the mask: extents and element types, the memory layout
// of keys and values, and the terms that are added to or applied to a logit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/score_spec.hpp"

namespace fdma {

inline constexpr std::int32_t kMaxHeadDim = 256;

/// Batch, heads, actual lengths, head sizes and a dtype per tensor.
///
/// Shapes      q_lens, kv_lens: one entry (the same for all), or `batch` entries (one per element);
///             each entry in [0, kMaxLength]
/// Invariants  heads_q is a multiple of heads_kv: query head h reads KV head
///             h / (heads_q / heads_kv)
///             head_dim and head_dim_v lie in [1, kMaxHeadDim]
///             each dtype is float32, float16 or bfloat16; the four may differ
///             validate checks all of these
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

/// Checks the invariants. Errors: invalid_argument, shape_mismatch or unsupported (a dtype); the
/// message names the field.
Result<void> validate(const AttentionShape& shape);

/// The memory layout of keys and values.
enum class KvLayout : std::uint8_t {
  contiguous,  ///< one strided tensor for keys and one for values
  paged,       ///< pages of a cache; not supported yet, the error says so
};
std::string_view to_string(KvLayout layout);

/// Keys and values in any layout. The segments of a plan always count logical keys.
///
/// Shapes      k [batch, kv_len, heads_kv, head_dim]
///             v [batch, kv_len, heads_kv, head_dim_v]
///             any strides whose last is 1; the extent of kv_len is at least the longest length
struct KvView {
  KvLayout layout = KvLayout::contiguous;
  TensorView k;
  TensorView v;
};

}  // namespace fdma
