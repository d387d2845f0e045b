// The interop layout bsr: a block sparse row matrix of SciPy or cuSPARSE.
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const Result<BsrMatrix> matrix = bsr_from_group(arrays);
  if (!matrix) return interop_failure(matrix.error());
  Result<BlockMask> mask = block_mask_from_bsr(*matrix, options.block.value_or(BlockShape{}));
  if (!mask) return interop_failure(mask.error());
  return *std::move(mask);
}

Outcome<InteropGroup> write(const BlockMask& mask, const InteropWriteOptions& options) {
  BsrExportOptions bsr_options;
  bsr_options.block = options.block;
  FDMA_TRY(const BsrMatrix matrix, bsr_from_block_mask(mask, bsr_options));
  return group_from_bsr(matrix);
}

}  // namespace

const InteropFormat& bsr_interop_format() {
  static constexpr InteropFormat kFormat{.name = "bsr",
                                         .summary = "a SciPy or cuSPARSE block sparse row matrix",
                                         .group = "/bsr",
                                         .read = read,
                                         .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
