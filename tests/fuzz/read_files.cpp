// Reads one file after another for tests/fuzz/mutated_files.py, as fdma-maskc does but without a
// process for each.
//
//   in    a line for each file: family, layout, path, dataset or group, by tabs
//   out   "ok B H Q K", a line, and B * H * Q * K bytes of 0 and 1 (zeros beyond the lengths of an
//         element); "large ..", without bytes; "error CODE WORDS"; "invalid WORDS"
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/io/interop/cu_seqlens_group.hpp"
#include "fdma/io/interop/hf_mask_group.hpp"
#include "fdma/io/interop/hf_padding_group.hpp"
#include "fdma/io/isolated_reader.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kMaxCells = std::int64_t{1} << 26;

struct Request {
  std::string family, layout, path, where;
};

Result<BlockMask> mask_of(const std::string& layout, const InteropGroup& group) {
  const BlockShape block{16, 16};
  if (layout == "flex") {
    FDMA_TRY(const FlexBlockMask flex, flex_from_group(group));
    return block_mask_from_flex(flex);
  }
  if (layout == "flash_mask") {
    FDMA_TRY(const FlashMask flash, flash_mask_from_group(group));
    return block_mask_from_flash_mask(flash, block);
  }
  if (layout == "bsr") {
    FDMA_TRY(const BsrMatrix bsr, bsr_from_group(group));
    return block_mask_from_bsr(bsr);
  }
  if (layout == "cu_seqlens") {
    FDMA_TRY(const CuSeqlens sequences, cu_seqlens_from_group(group));
    return block_mask_from_cu_seqlens(sequences, block);
  }
  if (layout == "hf_padding") {
    FDMA_TRY(const HfPadding padding, hf_padding_from_group(group));
    return block_mask_from_hf_padding(padding, block);
  }
  FDMA_TRY(const HfMask mask, hf_mask_from_group(group));
  return block_mask_from_hf_mask(mask, block);
}

Result<BlockMask> read(IsolatedReader& reader, const Request& request) {
  if (request.family == "own") return reader.read_mask(request.path);
  if (request.family == "dense") {
    DenseReadOptions options;
    options.block = {16, 16};
    options.num_threads = 1;
    return reader.read_dense_mask(request.path, "/" + request.where, options);
  }
  FDMA_TRY(const InteropGroup group, reader.read_interop_group(request.path, "/" + request.where));
  return mask_of(request.layout, group);
}

std::string answer(const Result<BlockMask>& mask, bool is_own) {
  if (!mask) {
    std::string words = mask.error().message;
    std::replace(words.begin(), words.end(), '\n', ' ');
    return fmt::format("error {} {}\n", to_string(mask.error().code), words);
  }
  const auto level = is_own ? ValidationLevel::structure : ValidationLevel::canonical;
  if (const Result<void> valid = validate(*mask, level); !valid) {
    return fmt::format("invalid {}\n", valid.error().message);
  }
  const MaskShape& shape = mask->shape;
  const std::int64_t q_len = *std::max_element(shape.q_lens.begin(), shape.q_lens.end());
  const std::int64_t kv_len = *std::max_element(shape.kv_lens.begin(), shape.kv_lens.end());
  const std::int64_t pairs = shape.num_batches * shape.num_heads;
  const std::string extents =
      fmt::format("{} {} {} {}\n", shape.num_batches, shape.num_heads, q_len, kv_len);
  if (q_len > kMaxCells || kv_len > kMaxCells || q_len * kv_len > kMaxCells / pairs) {
    return "large " + extents;
  }
  std::string cells(static_cast<std::size_t>(pairs * q_len * kv_len), '\0');
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const std::int32_t group = mask->group(pair / shape.num_heads, pair % shape.num_heads);
    const SegmentMask segments = segment_of_group(*mask, group, {16, 16});
    std::vector<Interval> row;
    for (std::int64_t q = 0; q < segments.q_len; ++q) {
      row_intervals_of(segments, q, row);
      const std::int64_t at = (pair * q_len + q) * kv_len;
      for (const Interval& keys : row) {
        std::fill(cells.begin() + at + keys.begin, cells.begin() + at + keys.end, '\1');
      }
    }
  }
  return "ok " + extents + cells;
}

int read_files() {
  IsolationOptions isolation;
  isolation.memory_bytes = std::int64_t{4} << 30;
  isolation.max_seconds = 20;
  isolation.files_per_process = 1000;
  IsolatedReader reader(isolation);
  for (std::string line; std::getline(std::cin, line);) {
    Request request;
    std::istringstream words(line);
    for (std::string* word : {&request.family, &request.layout, &request.path, &request.where}) {
      std::getline(words, *word, '\t');
    }
    const std::string text = answer(read(reader, request), request.family == "own");
    std::cout.write(text.data(), static_cast<std::streamsize>(text.size()));
    std::cout.flush();
  }
  return 0;
}

}  // namespace
}  // namespace fdma

int main(int argc, char** argv) {
  if (const auto code = fdma::serve_isolated_reads(argc, argv)) return *code;
  return fdma::read_files();
}
