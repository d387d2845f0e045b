// FlashMask's startend_row_indices.
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const PeerGroup& arrays, const PeerReadOptions& options) {
  const Result<FlashMask> flash = flash_mask_from_group(arrays);
  if (!flash) return peer_failure(flash.error());
  Result<BlockMask> mask = block_mask_from_flash_mask(*flash, options.block.value_or(BlockShape{}));
  if (!mask) return peer_failure(mask.error());
  return *std::move(mask);
}

Outcome<PeerGroup> write(const BlockMask& mask, const PeerWriteOptions&) {
  FDMA_TRY(const FlashMask flash, flash_mask_from_block_mask(mask));
  return group_from_flash_mask(flash);
}

}  // namespace

const PeerFormat& flash_mask_peer_format() {
  static constexpr PeerFormat kFormat{
      .name = "flash_mask",
      .summary = "FlashMask startend_row_indices with the flag causal",
      .group = "/flash_mask",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
