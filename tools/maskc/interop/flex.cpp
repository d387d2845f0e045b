// The interop layout flex: PyTorch FlexAttention's BlockMask.
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const Result<FlexBlockMask> flex = flex_from_group(arrays);
  if (!flex) return interop_failure(flex.error());
  const MaskShape shape{flex->num_batches, flex->num_heads, {flex->q_len}, {flex->kv_len}};
  FDMA_TRY(const std::optional<BlockMask> cells, options.cells(shape));
  Result<BlockMask> mask = block_mask_from_flex(*flex, cells ? &*cells : nullptr);
  if (!mask) return interop_failure(mask.error());
  if (cells) mask->spec = cells->spec;
  return *std::move(mask);
}

Outcome<InteropGroup> write(const BlockMask& mask, const InteropWriteOptions& options) {
  FlexExportOptions flex_options;
  flex_options.block = options.block;
  FDMA_TRY(FlexBlockMask flex, flex_from_block_mask(mask, flex_options));
  return group_from_flex(std::move(flex));
}

}  // namespace

const InteropFormat& flex_interop_format() {
  static constexpr InteropFormat kFormat{
      .name = "flex",
      .summary = "PyTorch FlexAttention BlockMask: its fields by name, and FDMA's bitmaps",
      .group = "/block_mask",
      .read = read,
      .write = write,
      .takes_cells = true};
  return kFormat;
}

}  // namespace fdma::maskc
