// Makes the mask that allows every pair: the segments of a closed-form mask without bounds.
#include "plan/full_mask.hpp"

#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"

namespace fdma {

BlockMask full_mask(const AttentionShape& shape, BlockShape tile) {
  MaskShape mask_shape;
  const bool is_uniform = shape.q_lens.size() == 1 && shape.kv_lens.size() == 1;
  mask_shape.num_batches = is_uniform ? 1 : shape.batch;
  mask_shape.q_lens = shape.q_lens;
  mask_shape.kv_lens = shape.kv_lens;
  std::vector<SegmentMask> masks;
  for (std::int64_t b = 0; b < mask_shape.num_batches; ++b) {
    ParametricMask full;
    full.q_len = shape.q_len(b);
    full.kv_len = shape.kv_len(b);
    full.kv_end = full.kv_len;
    masks.push_back(segment_from_parametric(full, tile));
  }
  return make_block_mask(std::move(mask_shape), tile, std::move(masks));
}

}  // namespace fdma
