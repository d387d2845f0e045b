// FlashMask's startend_row_indices as a group.
#include <fmt/format.h>

#include "io/interop/fields.hpp"

namespace fdma {

Result<FlashMask> flash_mask_from_group(const InteropGroup& group) {
  io::InteropFields fields(group);
  FlashMask mask;
  FDMA_TRY(const OwnedTable* indices, fields.array("startend_row_indices", 4));
  mask.num_batches = indices->extents[0];
  mask.num_heads = indices->extents[1];
  mask.kv_len = indices->extents[2];
  mask.num_columns = indices->extents[3];
  FDMA_TRY(mask.indices, fields.int32_values("startend_row_indices", 4));
  FDMA_TRY(const std::int64_t causal, fields.integer("causal"));
  if (causal != 0 && causal != 1) {
    return Error{ErrorCode::invalid_argument, fmt::format("causal: {}, expected 0 or 1", causal)};
  }
  mask.is_causal = causal == 1;
  FDMA_TRY(mask.q_len, fields.integer("q_len", mask.kv_len));
  FDMA_TRY_VOID(fields.expect_no_more());
  return mask;
}

InteropGroup group_from_flash_mask(const FlashMask& mask) {
  InteropGroup group;
  group.arrays["startend_row_indices"] =
      io::array_of(mask.indices, {mask.num_batches, mask.num_heads, mask.kv_len, mask.num_columns});
  group.arrays["causal"] = io::scalar_of(mask.is_causal);
  group.arrays["q_len"] = io::scalar_of(mask.q_len);
  return group;
}

}  // namespace fdma
