// FlashAttention's packed sequences as a group, by the names of its arguments.
#include "fdma/io/interop/cu_seqlens_group.hpp"

#include <fmt/format.h>

#include "io/interop/fields.hpp"

namespace fdma {
namespace {

Result<bool> flag(io::InteropFields& fields, const std::string& name, bool fallback) {
  FDMA_TRY(const std::int64_t value, fields.integer(name, fallback ? 1 : 0));
  if (value == 0 || value == 1) return value == 1;
  return Error{ErrorCode::invalid_argument, fmt::format("{}: {}, expected 0 or 1", name, value)};
}

Result<std::optional<std::vector<std::int32_t>>> optional_values(io::InteropFields& fields,
                                                                 const std::string& name) {
  if (!fields.may_have(name)) return std::optional<std::vector<std::int32_t>>{};
  FDMA_TRY(std::vector<std::int32_t> values, fields.int32_values(name, 1));
  return std::optional(std::move(values));
}

OwnedTable list_of(const std::vector<std::int32_t>& values) {
  return io::array_of(values, {static_cast<std::int64_t>(values.size())});
}

}  // namespace

Result<CuSeqlens> cu_seqlens_from_group(const InteropGroup& group) {
  io::InteropFields fields(group);
  CuSeqlens sequences;
  FDMA_TRY(sequences.cu_seqlens_q, fields.int32_values("cu_seqlens_q", 1));
  FDMA_TRY(sequences.cu_seqlens_k, fields.int32_values("cu_seqlens_k", 1));
  FDMA_TRY(sequences.is_causal, flag(fields, "causal", false));
  if (fields.may_have("window_size")) {
    FDMA_TRY(const std::vector<std::int64_t> window, fields.int64_values("window_size", 1));
    if (window.size() != 2) {
      return Error{ErrorCode::shape_mismatch,
                   fmt::format("window_size: {} entries, expected 2 (left, right)", window.size())};
    }
    sequences.window_left = window[0];
    sequences.window_right = window[1];
  }
  FDMA_TRY(sequences.seqused_q, optional_values(fields, "seqused_q"));
  FDMA_TRY(sequences.seqused_k, optional_values(fields, "seqused_k"));
  FDMA_TRY(sequences.is_packed, flag(fields, "packed", true));
  FDMA_TRY(sequences.num_heads, fields.integer("num_heads", 1));
  FDMA_TRY_VOID(fields.expect_no_more());
  return sequences;
}

InteropGroup group_from_cu_seqlens(const CuSeqlens& sequences) {
  InteropGroup group;
  auto& arrays = group.arrays;
  arrays["cu_seqlens_q"] = list_of(sequences.cu_seqlens_q);
  arrays["cu_seqlens_k"] = list_of(sequences.cu_seqlens_k);
  arrays["causal"] = io::scalar_of(sequences.is_causal);
  arrays["window_size"] =
      io::array_of(std::vector{sequences.window_left, sequences.window_right}, {2});
  if (sequences.seqused_q) arrays["seqused_q"] = list_of(*sequences.seqused_q);
  if (sequences.seqused_k) arrays["seqused_k"] = list_of(*sequences.seqused_k);
  arrays["packed"] = io::scalar_of(sequences.is_packed);
  arrays["num_heads"] = io::scalar_of(sequences.num_heads);
  return group;
}

}  // namespace fdma
