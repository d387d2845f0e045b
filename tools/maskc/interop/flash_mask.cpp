// The interop layout flash_mask: FlashMask's startend_row_indices.
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const Result<FlashMask> flash = flash_mask_from_group(arrays);
  if (!flash) return interop_failure(flash.error());
  Result<BlockMask> mask = block_mask_from_flash_mask(*flash, options.block.value_or(BlockShape{}));
  if (!mask) return interop_failure(mask.error());
  return *std::move(mask);
}

Outcome<InteropGroup> write(const BlockMask& mask, const InteropWriteOptions&) {
  FDMA_TRY(const FlashMask flash, flash_mask_from_block_mask(mask));
  return group_from_flash_mask(flash);
}

}  // namespace

const InteropFormat& flash_mask_interop_format() {
  static constexpr InteropFormat kFormat{
      .name = "flash_mask",
      .summary = "FlashMask startend_row_indices with the flag causal",
      .group = "/flash_mask",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
