// libFuzzer: any bytes as the arrays of a peer's layout.
//
// The importer must answer with an error that has words, or with a mask that is valid and canonical
// and that the exporter takes back to equal cells. The first byte picks the layout; lengths are
// kept small so that a run looks at many shapes, and arrays come out of the bytes with the extents
// that the lengths ask for, or a few entries off. Run: fuzz_peers -max_len=4096 <corpus>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/peers/bsr_matrix.hpp"
#include "fdma/formats/peers/flash_mask.hpp"
#include "fdma/formats/peers/flex_block_mask.hpp"
#include "fdma/formats/validate.hpp"

namespace {

using fdma::BlockMask;
using fdma::ValidationLevel;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_peers: %s\n", what);
  std::abort();
}

// Bytes read one after another; zeros behind the last one.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t next() { return at_ < size_ ? data_[at_++] : 0; }
  bool flag() { return (next() & 1) != 0; }
  std::int64_t below(std::int64_t bound) { return next() % bound; }

  /// Mostly small numbers, sometimes any.
  std::int32_t number() {
    const std::uint8_t byte = next();
    if (byte < 250) return byte;
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | next();
    return static_cast<std::int32_t>(value);
  }

  std::vector<std::int32_t> numbers(std::int64_t count) {
    if (next() == 255) count += static_cast<std::int64_t>(next()) - 128;
    std::vector<std::int32_t> values(static_cast<std::size_t>(count > 0 ? count : 0));
    for (std::int32_t& value : values) value = number();
    return values;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

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
  const auto read = fdma::block_mask_from_bsr(matrix, {32, 16});
  if (!read) return check_error(read.error());
  check_mask(*read);
  const auto again = fdma::bsr_from_block_mask(*read);
  require(again.has_value(), "the exporter refuses what the importer read");
  const auto back = fdma::block_mask_from_bsr(*again);
  require(back.has_value() && fdma::equal_cells(*read, *back), "other cells after a round trip");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  switch (bytes.below(3)) {
    case 0:
      fuzz_flex(bytes);
      break;
    case 1:
      fuzz_flash_mask(bytes);
      break;
    default:
      fuzz_bsr(bytes);
  }
  return 0;
}
