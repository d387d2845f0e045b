// The interop layout cu_seqlens: FlashAttention's packed sequences.
#include "fdma/io/interop/cu_seqlens_group.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const Result<CuSeqlens> sequences = cu_seqlens_from_group(arrays);
  if (!sequences) return interop_failure(sequences.error());
  Result<BlockMask> mask =
      block_mask_from_cu_seqlens(*sequences, options.block.value_or(BlockShape{}));
  if (!mask) return interop_failure(mask.error());
  return *std::move(mask);
}

Outcome<InteropGroup> write(const BlockMask& mask, const InteropWriteOptions&) {
  FDMA_TRY(const CuSeqlens sequences, cu_seqlens_from_block_mask(mask));
  return group_from_cu_seqlens(sequences);
}

}  // namespace

const InteropFormat& cu_seqlens_interop_format() {
  static constexpr InteropFormat kFormat{
      .name = "cu_seqlens",
      .summary = "FlashAttention cu_seqlens_q and cu_seqlens_k with causal and window_size",
      .group = "/cu_seqlens",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
