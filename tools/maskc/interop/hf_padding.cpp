// Hugging Face's two-dimensional padding mask.
#include "fdma/io/interop/hf_padding_group.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const PeerGroup& arrays, const PeerReadOptions& options) {
  const Result<HfPadding> padding = hf_padding_from_group(arrays);
  if (!padding) return peer_failure(padding.error());
  Result<BlockMask> mask =
      block_mask_from_hf_padding(*padding, options.block.value_or(BlockShape{}));
  if (!mask) return peer_failure(mask.error());
  return *std::move(mask);
}

Outcome<PeerGroup> write(const BlockMask& mask, const PeerWriteOptions&) {
  FDMA_TRY(const HfPadding padding, hf_padding_from_block_mask(mask));
  return group_from_hf_padding(padding);
}

}  // namespace

const PeerFormat& hf_padding_peer_format() {
  static constexpr PeerFormat kFormat{
      .name = "hf_padding",
      .summary = "Hugging Face attention_mask [batch, keys] with the flag causal",
      .group = "/hf_padding",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
