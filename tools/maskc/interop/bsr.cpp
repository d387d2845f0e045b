// A block sparse row matrix of SciPy or cuSPARSE.
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const PeerGroup& arrays, const PeerReadOptions& options) {
  const Result<BsrMatrix> matrix = bsr_from_group(arrays);
  if (!matrix) return peer_failure(matrix.error());
  Result<BlockMask> mask = block_mask_from_bsr(*matrix, options.block.value_or(BlockShape{}));
  if (!mask) return peer_failure(mask.error());
  return *std::move(mask);
}

Outcome<PeerGroup> write(const BlockMask& mask, const PeerWriteOptions& options) {
  BsrExportOptions bsr_options;
  bsr_options.block = options.block;
  FDMA_TRY(const BsrMatrix matrix, bsr_from_block_mask(mask, bsr_options));
  return group_from_bsr(matrix);
}

}  // namespace

const PeerFormat& bsr_peer_format() {
  static constexpr PeerFormat kFormat{.name = "bsr",
                                      .summary = "a SciPy or cuSPARSE block sparse row matrix",
                                      .group = "/bsr",
                                      .read = read,
                                      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
