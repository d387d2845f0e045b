// libFuzzer: any bytes as the arrays of an interop layout.
//
// The importer must answer with an error that has words, or with a mask that is valid and canonical
// and that the exporter takes back to equal cells. The first byte picks the layout; lengths are
// kept small so that a run looks at many shapes, and arrays come out of the bytes with the extents
// that the lengths ask for, or a few entries off. Run: fuzz_interop -max_len=4096 <corpus>
#include <tbb/global_control.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/interop/bsr_matrix.hpp"
#include "fdma/formats/interop/cu_seqlens.hpp"
#include "fdma/formats/interop/flash_mask.hpp"
#include "fdma/formats/interop/flex_block_mask.hpp"
#include "fdma/formats/interop/hf_mask.hpp"
#include "fdma/formats/interop/hf_padding.hpp"
#include "fdma/formats/validate.hpp"
#include "fuzz_bytes.hpp"

namespace {

using fdma::BlockMask;
using fdma::ValidationLevel;
using fdma::fuzz::Bytes;
using fdma::fuzz::require;

constexpr const char* kTargets[] = {"flex",       "flash_mask", "bsr",
                                    "cu_seqlens", "hf_mask",    "hf_padding"};

void check_error(const fdma::Error& error) {
  require(!error.message.empty(), "an error without words");
}

void check_mask(const BlockMask& mask) {
  require(fdma::validate(mask, ValidationLevel::canonical).has_value(), "a mask that is not valid");
}

fdma::FlexIndexTable flex_table(Bytes& bytes, std::int64_t rows, std::int64_t width) {
  fdma::FlexIndexTable table;
  table.width = width;
  table.num_blocks = bytes.numbers(rows);
  table.indices = bytes.numbers(rows * width);
  return table;
}

void fuzz_flex(Bytes& bytes) {
  fdma::FlexBlockMask flex;
  flex.q_len = bytes.below(70);
  flex.kv_len = bytes.below(70);
  flex.block_q = 16 * (1 + bytes.below(3));
  flex.block_kv = 16 * (1 + bytes.below(3));
  flex.num_batches = 1 + bytes.below(2);
  flex.num_heads = 1 + bytes.below(2);
  const std::int64_t pairs = flex.num_batches * flex.num_heads;
  const std::int64_t rows = fdma::ceil_div(flex.q_len, flex.block_q);
  const std::int64_t cols = fdma::ceil_div(flex.kv_len, flex.block_kv);
  const std::int64_t width = bytes.flag() ? cols : bytes.below(8);
  flex.kv = flex_table(bytes, pairs * rows, width);
  if (bytes.flag()) flex.full_kv = flex_table(bytes, pairs * rows, bytes.flag() ? width : cols);
  if (bytes.below(4) == 0) flex.q = flex_table(bytes, pairs * cols, rows);
  if (bytes.below(4) == 0) flex.full_q = flex_table(bytes, pairs * cols, rows);
  if (bytes.flag()) {
    fdma::FlexCells cells;
    cells.bitmap_index = bytes.numbers(bytes.below(8));
    const std::int64_t words = flex.block_q * flex.block_kv / 64 * bytes.below(4);
    for (std::int64_t i = 0; i < words; ++i) {
      cells.bitmaps.push_back(std::uint64_t{bytes.next()} * 0x0101010101010101u);
    }
    flex.cells = std::move(cells);
  }
  const auto mask = fdma::block_mask_from_flex(flex);
  if (!mask) return check_error(mask.error());
  check_mask(*mask);
  fdma::FlexExportOptions options;
  options.block = mask->block;
  options.separate_full = flex.full_kv.has_value();
  const auto again = fdma::flex_from_block_mask(*mask, options);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_flex(*again, &*mask);
  require(back.has_value() && fdma::equal_cells(*mask, *back), "other cells after a round trip");
}

void fuzz_flash_mask(Bytes& bytes) {
  fdma::FlashMask flash;
  flash.q_len = bytes.below(250);
  flash.kv_len = bytes.below(40);
  flash.num_batches = 1 + bytes.below(2);
  flash.num_heads = 1 + bytes.below(2);
  flash.is_causal = bytes.flag();
  flash.num_columns = bytes.below(6);
  flash.indices =
      bytes.numbers(flash.num_batches * flash.num_heads * flash.kv_len * flash.num_columns);
  const auto mask = fdma::block_mask_from_flash_mask(flash, {16, 32}, bytes.below(5));
  if (!mask) return check_error(mask.error());
  check_mask(*mask);
  fdma::FlashMaskExportOptions options;
  if (bytes.flag()) options.is_causal = flash.is_causal;
  const auto again = fdma::flash_mask_from_block_mask(*mask, options);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_flash_mask(*again);
  require(back.has_value() && fdma::equal_cells(*mask, *back), "other cells after a round trip");
}

void fuzz_bsr(Bytes& bytes) {
  fdma::BsrMatrix matrix;
  matrix.q_len = bytes.below(70);
  matrix.kv_len = bytes.below(70);
  matrix.block_q = bytes.below(20);
  matrix.block_kv = bytes.below(20);
  const std::int64_t rows = matrix.block_q == 0 ? 0 : fdma::ceil_div(matrix.q_len, matrix.block_q);
  for (const std::int32_t value : bytes.numbers(rows + 1)) matrix.indptr.push_back(value);
  if (bytes.flag() && !matrix.indptr.empty()) {
    // Offsets that ascend: rows of a few blocks each.
    std::int64_t offset = 0;
    for (std::int64_t& entry : matrix.indptr) {
      const std::int64_t first = offset;
      offset += entry & 3;
      entry = first;
    }
  }
  const std::int64_t last = matrix.indptr.empty() ? 0 : matrix.indptr.back();
  const std::int64_t num_blocks = last >= 0 && last < 64 ? last : 3;
  for (const std::int32_t value : bytes.numbers(num_blocks)) matrix.indices.push_back(value);
  const std::int64_t cells = num_blocks * matrix.block_q * matrix.block_kv;
  const std::uint8_t mask = bytes.flag() ? 1 : 3;
  for (std::int64_t i = 0; i < cells; ++i) {
    matrix.data.push_back(static_cast<std::uint8_t>(bytes.next() & mask));
  }
  if (bytes.below(4) == 0) {
    matrix.index_base = bytes.wide_number();
    for (std::int64_t& entry : matrix.indptr) entry += matrix.index_base & 1;
    for (std::int64_t& entry : matrix.indices) entry += matrix.index_base & 1;
  }
  if (bytes.below(4) == 0) {
    matrix.block_order = static_cast<fdma::BsrBlockOrder>(bytes.below(4));
  }
  const auto read = fdma::block_mask_from_bsr(matrix, {32, 16});
  if (!read) return check_error(read.error());
  check_mask(*read);
  const auto again = fdma::bsr_from_block_mask(*read);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_bsr(*again);
  require(back.has_value() && fdma::equal_cells(*read, *back), "other cells after a round trip");
}

// Offsets that ascend in small steps, or whatever comes.
std::vector<std::int32_t> offsets(Bytes& bytes, std::int64_t count) {
  const bool ascends = bytes.below(8) != 0;
  std::vector<std::int32_t> values = bytes.numbers(count);
  if (!ascends) return values;
  std::int32_t sum = 0;
  for (std::int32_t& value : values) sum += std::exchange(value, sum) & 31;
  return values;
}

void fuzz_cu_seqlens(Bytes& bytes) {
  fdma::CuSeqlens sequences;
  const std::int64_t count = bytes.below(8);
  sequences.cu_seqlens_q = offsets(bytes, count + 1);
  sequences.cu_seqlens_k = bytes.flag() ? sequences.cu_seqlens_q : offsets(bytes, count + 1);
  sequences.is_causal = bytes.flag();
  sequences.is_packed = bytes.flag();
  if (bytes.flag()) sequences.window_left = bytes.wide_number();
  if (bytes.flag()) sequences.window_right = bytes.wide_number();
  if (bytes.below(4) == 0) sequences.seqused_q = bytes.numbers(count);
  if (bytes.below(4) == 0) sequences.seqused_k = bytes.numbers(count);
  sequences.num_heads = bytes.below(4) == 0 ? bytes.wide_number() : 1 + bytes.below(3);
  if (sequences.num_heads > 64) return;  // valid, and of a memory that follows from it
  const auto mask = fdma::block_mask_from_cu_seqlens(sequences, {16, 32});
  if (!mask) return check_error(mask.error());
  // The importer is as fast for lengths of 2^31; the exporter goes from row to row.
  constexpr std::int64_t kMostRows = 4096;
  if (mask->shape.max_q_len() > kMostRows || mask->shape.max_kv_len() > kMostRows) {
    return require(fdma::validate(*mask, ValidationLevel::structure).has_value(),
                   "a mask that is not valid");
  }
  check_mask(*mask);
  const auto again = fdma::cu_seqlens_from_block_mask(*mask);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_cu_seqlens(*again, {16, 32});
  require(back.has_value() && fdma::equal_cells(*mask, *back), "other cells after a round trip");
}

void fuzz_hf_mask(Bytes& bytes) {
  constexpr fdma::DType kTypes[] = {
      fdma::DType::boolean,  fdma::DType::uint8,   fdma::DType::int8,    fdma::DType::float16,
      fdma::DType::bfloat16, fdma::DType::float32, fdma::DType::float64, fdma::DType::int64};
  fdma::HfMask mask;
  mask.num_batches = bytes.below(3);
  mask.num_heads = bytes.below(3);
  mask.q_len = bytes.below(40);
  mask.kv_len = bytes.below(80);
  mask.dtype = kTypes[bytes.below(8)];
  const std::size_t size = static_cast<std::size_t>(size_bytes(mask.dtype));
  // What masks hold of each type, 0 first, and sometimes any bytes.
  const std::uint64_t dropped = mask.dtype == fdma::DType::float16    ? 0xfbff
                                : mask.dtype == fdma::DType::bfloat16 ? 0xff7f
                                : mask.dtype == fdma::DType::float32  ? 0xff7fffff
                                : mask.dtype == fdma::DType::float64  ? 0xffefffffffffffff
                                                                      : 1;
  const bool is_tame = bytes.below(8) != 0;
  std::int64_t count = mask.num_batches * mask.num_heads * mask.q_len * mask.kv_len;
  if (bytes.next() == 255) count += bytes.below(9) - 4;
  std::uint8_t pattern = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % 8 == 0) pattern = bytes.next();
    std::uint64_t value = (pattern >> (i % 8) & 1) != 0 ? dropped : 0;
    if (!is_tame && bytes.below(16) == 1) value = static_cast<std::uint64_t>(bytes.wide_number());
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    mask.values.insert(mask.values.end(), raw, raw + size);
  }
  const auto read = fdma::block_mask_from_hf_mask(mask, {16, 32}, bytes.below(4));
  if (!read) return check_error(read.error());
  check_mask(*read);
  fdma::HfMaskExportOptions options;
  options.dtype = kTypes[bytes.flag() ? 0 : 3 + bytes.below(4)];
  options.use_infinity = bytes.flag();
  const auto again = fdma::hf_mask_from_block_mask(*read, options);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_hf_mask(*again);
  require(back.has_value() && fdma::equal_cells(*read, *back), "other cells after a round trip");
}

void fuzz_hf_padding(Bytes& bytes) {
  fdma::HfPadding padding;
  padding.num_batches = bytes.below(4);
  padding.num_heads = bytes.below(4);
  padding.q_len = bytes.below(60);
  padding.kv_len = bytes.below(60);
  padding.is_causal = bytes.flag();
  const std::uint8_t most = bytes.below(8) == 0 ? 2 : 1;
  for (const std::int32_t value : bytes.numbers(padding.num_batches * padding.kv_len)) {
    padding.attention_mask.push_back(static_cast<std::uint8_t>(value & most));
  }
  const auto mask = fdma::block_mask_from_hf_padding(padding, {16, 32});
  if (!mask) return check_error(mask.error());
  check_mask(*mask);
  const auto again = fdma::hf_padding_from_block_mask(*mask);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_hf_padding(*again, {16, 32});
  require(back.has_value() && fdma::equal_cells(*mask, *back), "other cells after a round trip");
}

}  // namespace

// One thread: a run of many processes has no others to give, and inputs are small.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  static const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::size_t> chosen =
      fdma::fuzz::chosen_targets("FDMA_FUZZ_PEER", kTargets);
  Bytes bytes(data, size);
  switch (chosen[bytes.next() % chosen.size()]) {
    case 0:
      fuzz_flex(bytes);
      break;
    case 1:
      fuzz_flash_mask(bytes);
      break;
    case 2:
      fuzz_bsr(bytes);
      break;
    case 3:
      fuzz_cu_seqlens(bytes);
      break;
    case 4:
      fuzz_hf_mask(bytes);
      break;
    default:
      fuzz_hf_padding(bytes);
  }
  return 0;
}
