#include "fdma/formats/attention_shape.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fdma/base/interval.hpp"

namespace fdma {
namespace {

std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

Result<void> check_lengths(std::string_view name, const std::vector<std::int64_t>& lengths,
                           std::int64_t batch) {
  if (lengths.size() != 1 && static_cast<std::int64_t>(lengths.size()) != batch) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("{}: expected 1 or {} (batch) entries, got {}", name, batch, lengths.size())};
  }
  for (const std::int64_t length : lengths) {
    if (length < 0 || length > kMaxLength) {
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("{}: expected lengths in [0, {}], got {}", name, kMaxLength, length)};
    }
  }
  return {};
}

Result<void> check_dtype(std::string_view name, DType dtype) {
  if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return {};
  return Error{
      ErrorCode::unsupported,
      fmt::format("{}: expected float32, float16 or bfloat16, got {}", name, to_string(dtype))};
}

Result<void> check_range(std::string_view name, std::int64_t value, std::int64_t max) {
  if (value >= 1 && value <= max) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: expected 1 to {}, got {}", name, max, value)};
}

}  // namespace

std::int64_t AttentionShape::max_q_len() const { return longest(q_lens); }
std::int64_t AttentionShape::max_kv_len() const { return longest(kv_lens); }

Result<void> validate(const AttentionShape& shape) {
  FDMA_TRY_VOID(check_range("batch", shape.batch, kMaxLength));
  FDMA_TRY_VOID(check_range("heads_q", shape.heads_q, kMaxLength));
  FDMA_TRY_VOID(check_range("heads_kv", shape.heads_kv, kMaxLength));
  if (shape.heads_q % shape.heads_kv != 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("heads_q: expected a multiple of heads_kv = {}, got {}",
                             shape.heads_kv, shape.heads_q)};
  }
  FDMA_TRY_VOID(check_lengths("q_lens", shape.q_lens, shape.batch));
  FDMA_TRY_VOID(check_lengths("kv_lens", shape.kv_lens, shape.batch));
  FDMA_TRY_VOID(check_range("head_dim", shape.head_dim, kMaxHeadDim));
  FDMA_TRY_VOID(check_range("head_dim_v", shape.head_dim_v, kMaxHeadDim));
  FDMA_TRY_VOID(check_dtype("q_dtype", shape.q_dtype));
  FDMA_TRY_VOID(check_dtype("k_dtype", shape.k_dtype));
  FDMA_TRY_VOID(check_dtype("v_dtype", shape.v_dtype));
  FDMA_TRY_VOID(check_dtype("out_dtype", shape.out_dtype));
  return {};
}

std::string_view to_string(KvLayout layout) {
  return layout == KvLayout::contiguous ? "contiguous" : "paged";
}

}  // namespace fdma
