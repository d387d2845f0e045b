// FlashAttention's packed sequences.
#include "fdma/io/interop/cu_seqlens_group.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const PeerGroup& arrays, const PeerReadOptions& options) {
  const Result<CuSeqlens> sequences = cu_seqlens_from_group(arrays);
  if (!sequences) return peer_failure(sequences.error());
  Result<BlockMask> mask =
      block_mask_from_cu_seqlens(*sequences, options.block.value_or(BlockShape{}));
  if (!mask) return peer_failure(mask.error());
  return *std::move(mask);
}

Outcome<PeerGroup> write(const BlockMask& mask, const PeerWriteOptions&) {
  FDMA_TRY(const CuSeqlens sequences, cu_seqlens_from_block_mask(mask));
  return group_from_cu_seqlens(sequences);
}

}  // namespace

const PeerFormat& cu_seqlens_peer_format() {
  static constexpr PeerFormat kFormat{
      .name = "cu_seqlens",
      .summary = "FlashAttention cu_seqlens_q and cu_seqlens_k with causal and window_size",
      .group = "/cu_seqlens",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
