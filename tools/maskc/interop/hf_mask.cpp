// The interop layouts of Hugging Face's four-dimensional mask. Either form is read under both
// names; each form is written under its own name.
#include "fdma/io/interop/hf_mask_group.hpp"
#include "interop/interop_format.hpp"

namespace fdma::maskc {
namespace {

Outcome<BlockMask> read(const InteropGroup& arrays, const InteropReadOptions& options) {
  const Result<HfMask> array = hf_mask_from_group(arrays);
  if (!array) return interop_failure(array.error());
  Result<BlockMask> mask = block_mask_from_hf_mask(*array, options.block.value_or(BlockShape{}));
  if (!mask) return interop_failure(mask.error());
  return *std::move(mask);
}

Outcome<InteropGroup> write_as(const BlockMask& mask, DType dtype) {
  HfMaskExportOptions options;
  options.dtype = dtype;
  FDMA_TRY(HfMask array, hf_mask_from_block_mask(mask, options));
  return group_from_hf_mask(std::move(array));
}

Outcome<InteropGroup> write_boolean(const BlockMask& mask, const InteropWriteOptions&) {
  return write_as(mask, DType::boolean);
}

Outcome<InteropGroup> write_additive(const BlockMask& mask, const InteropWriteOptions&) {
  return write_as(mask, DType::float32);
}

}  // namespace

const InteropFormat& hf_mask_interop_format() {
  static constexpr InteropFormat kFormat{
      .name = "hf_mask",
      .summary =
          "Hugging Face attention_mask [batch, heads, queries, keys], boolean (read: or "
          "additive)",
      .group = "/hf_mask",
      .read = read,
      .write = write_boolean};
  return kFormat;
}

const InteropFormat& hf_mask_additive_interop_format() {
  static constexpr InteropFormat kFormat{.name = "hf_mask_additive",
                                         .summary = "the same as float32, 0 and its lowest number",
                                         .group = "/hf_mask",
                                         .read = read,
                                         .write = write_additive};
  return kFormat;
}

}  // namespace fdma::maskc
