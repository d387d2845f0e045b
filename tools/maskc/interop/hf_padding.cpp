// The interop layout hf_padding: Hugging Face's two-dimensional padding mask.
#include "fdma/io/interop/hf_padding_group.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const Result<HfPadding> padding = hf_padding_from_group(arrays);
  if (!padding) return interop_failure(padding.error());
  Result<BlockMask> mask =
      block_mask_from_hf_padding(*padding, options.block.value_or(BlockShape{}));
  if (!mask) return interop_failure(mask.error());
  return *std::move(mask);
}

Outcome<InteropGroup> write(const BlockMask& mask, const InteropWriteOptions&) {
  FDMA_TRY(const HfPadding padding, hf_padding_from_block_mask(mask));
  return group_from_hf_padding(padding);
}

}  // namespace

const InteropFormat& hf_padding_interop_format() {
  static constexpr InteropFormat kFormat{
      .name = "hf_padding",
      .summary = "Hugging Face attention_mask [batch, keys] with the flag causal",
      .group = "/hf_padding",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
