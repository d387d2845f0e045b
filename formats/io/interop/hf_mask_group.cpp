// Hugging Face's four-dimensional mask as a group.
#include "fdma/io/interop/hf_mask_group.hpp"

#include <fmt/format.h>

#include "io/interop/fields.hpp"

namespace fdma {

Result<HfMask> hf_mask_from_group(const InteropGroup& group) {
  io::InteropFields fields(group);
  HfMask mask;
  FDMA_TRY(const OwnedTable* array, fields.array("attention_mask", 4));
  mask.num_batches = array->extents[0];
  mask.num_heads = array->extents[1];
  mask.q_len = array->extents[2];
  mask.kv_len = array->extents[3];
  mask.dtype = array->dtype;
  mask.values = array->bytes;
  FDMA_TRY_VOID(fields.expect_no_more());
  return mask;
}

InteropGroup group_from_hf_mask(HfMask mask) {
  InteropGroup group;
  OwnedTable& array = group.arrays["attention_mask"];
  array.dtype = mask.dtype;
  array.rank = 4;
  array.extents[0] = mask.num_batches;
  array.extents[1] = mask.num_heads;
  array.extents[2] = mask.q_len;
  array.extents[3] = mask.kv_len;
  array.bytes = std::move(mask.values);
  return group;
}

}  // namespace fdma
