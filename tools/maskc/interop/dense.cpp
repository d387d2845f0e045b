// The interop layout of a plain dense mask: one boolean dataset, as h5py and NumPy users have it.
#include <algorithm>

#include "fdma/io/interop/hf_mask_group.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

constexpr const char* kDataset = "mask";

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const auto found = arrays.arrays.find(kDataset);
  if (found == arrays.arrays.end() || (found->second.rank != 2 && found->second.rank != 4)) {
    return usage_failure(
        "expected a dataset mask [queries, keys] or [batch, heads, queries, keys]");
  }
  const OwnedTable& array = found->second;
  HfMask mask;
  if (array.rank == 4) {
    mask.num_batches = array.extents[0];
    mask.num_heads = array.extents[1];
  }
  mask.q_len = array.extents[array.rank - 2];
  mask.kv_len = array.extents[array.rank - 1];
  mask.dtype = array.dtype;
  mask.values = array.bytes;
  Result<BlockMask> made = block_mask_from_hf_mask(mask, options.block.value_or(BlockShape{}));
  if (!made) return interop_failure(made.error());
  return *std::move(made);
}

Outcome<InteropGroup> write(const BlockMask& mask, const InteropWriteOptions&) {
  FDMA_TRY(HfMask cells, hf_mask_from_block_mask(mask, {}));
  const bool is_plane = cells.num_batches == 1 && cells.num_heads == 1;
  InteropGroup group;
  OwnedTable& array = group.arrays[kDataset];
  array.dtype = cells.dtype;
  array.rank = is_plane ? 2 : 4;
  const std::int64_t extents[] = {cells.num_batches, cells.num_heads, cells.q_len, cells.kv_len};
  std::copy(extents + (4 - array.rank), extents + 4, array.extents);
  array.bytes = std::move(cells.values);
  return group;
}

}  // namespace

const InteropFormat& dense_interop_format() {
  static constexpr InteropFormat kFormat{
      .name = "dense",
      .summary =
          "a boolean dataset mask [queries, keys], or [batch, heads, queries, keys] where there "
          "are several",
      .group = "/dense",
      .read = read,
      .write = write};
  return kFormat;
}

}  // namespace fdma::maskc
