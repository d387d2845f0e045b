// FlexAttention's BlockMask as a group: its fields by name, never by position in as_tuple().
#include <fmt/format.h>

#include "io/interop/fields.hpp"

namespace fdma {
namespace {

constexpr const char* kBitmapIndex = "fdma_bitmap_index";
constexpr const char* kBitmaps = "fdma_bitmaps";

std::string counts_name(const std::string& table) { return table + "_num_blocks"; }
std::string indices_name(const std::string& table) { return table + "_indices"; }

// Reads [batch, heads, rows] and [batch, heads, rows, width] of one table; empty if it is absent.
Result<std::optional<FlexIndexTable>> read_table_pair(io::InteropFields& fields,
                                                      const std::string& name,
                                                      const FlexBlockMask& flex,
                                                      std::int64_t rows) {
  const std::string counts = counts_name(name), indices = indices_name(name);
  const bool is_there = fields.has(counts) || fields.has(indices);
  if (!is_there) {
    // Optional names; asking for them makes them known.
    (void)fields.array(counts);
    (void)fields.array(indices);
    return std::optional<FlexIndexTable>{};
  }
  FlexIndexTable table;
  FDMA_TRY(const OwnedTable* count_array, fields.array(counts, 3));
  FDMA_TRY(const OwnedTable* index_array, fields.array(indices, 4));
  const std::int64_t expected[] = {flex.num_batches, flex.num_heads, rows};
  for (const auto& [array_name, array] :
       {std::pair{&counts, count_array}, std::pair{&indices, index_array}}) {
    if (std::equal(expected, expected + 3, array->extents)) continue;
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: {}, expected [{}, {}, {}{}]", *array_name, io::array_text(*array),
                             flex.num_batches, flex.num_heads, rows,
                             array_name == &counts ? "" : ", any width")};
  }
  table.width = index_array->extents[3];
  FDMA_TRY(table.num_blocks, fields.int32_values(counts, 3));
  FDMA_TRY(table.indices, fields.int32_values(indices, 4));
  return std::optional<FlexIndexTable>(std::move(table));
}

Result<void> read_sides(io::InteropFields& fields, const std::string& name, std::int64_t& first,
                        std::int64_t& second) {
  FDMA_TRY(const std::vector<std::int64_t> values, fields.int64_values(name, 1));
  if (values.size() != 2) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: {} entries, expected 2 (queries, keys)", name, values.size())};
  }
  for (const std::int64_t value : values) {
    if (value >= 0 && value <= kMaxLength) continue;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: {}, expected 0 to {}", name, value, kMaxLength)};
  }
  first = values[0];
  second = values[1];
  return {};
}

}  // namespace

Result<FlexBlockMask> flex_from_group(const InteropGroup& group) {
  io::InteropFields fields(group);
  FlexBlockMask flex;
  FDMA_TRY_VOID(read_sides(fields, "seq_lengths", flex.q_len, flex.kv_len));
  FDMA_TRY_VOID(read_sides(fields, "BLOCK_SIZE", flex.block_q, flex.block_kv));
  if (flex.block_q < 1 || flex.block_kv < 1) {
    return Error{ErrorCode::invalid_argument, "BLOCK_SIZE: 0, expected at least 1"};
  }
  const std::int64_t rows = ceil_div(flex.q_len, flex.block_q);
  const std::int64_t cols = ceil_div(flex.kv_len, flex.block_kv);
  FDMA_TRY(const OwnedTable* counts, fields.array("kv_num_blocks", 3));
  flex.num_batches = counts->extents[0];
  flex.num_heads = counts->extents[1];
  FDMA_TRY(std::optional<FlexIndexTable> kv, read_table_pair(fields, "kv", flex, rows));
  flex.kv = *std::move(kv);
  FDMA_TRY(flex.full_kv, read_table_pair(fields, "full_kv", flex, rows));
  FDMA_TRY(flex.q, read_table_pair(fields, "q", flex, cols));
  FDMA_TRY(flex.full_q, read_table_pair(fields, "full_q", flex, cols));
  const bool has_cells = fields.has(kBitmapIndex) || fields.has(kBitmaps);
  (void)fields.array(kBitmapIndex);
  (void)fields.array(kBitmaps);
  if (has_cells) {
    FlexCells cells;
    FDMA_TRY(cells.bitmap_index, fields.int32_values(kBitmapIndex, 1));
    FDMA_TRY(cells.bitmaps, fields.uint64_values(kBitmaps, 2));
    flex.cells = std::move(cells);
  }
  FDMA_TRY_VOID(fields.expect_no_more());
  return flex;
}

InteropGroup group_from_flex(FlexBlockMask flex) {
  InteropGroup group;
  auto& arrays = group.arrays;
  const std::int64_t rows = ceil_div(flex.q_len, flex.block_q);
  const std::int64_t cols = ceil_div(flex.kv_len, flex.block_kv);
  arrays["seq_lengths"] = io::array_of(std::vector{flex.q_len, flex.kv_len}, {2});
  arrays["BLOCK_SIZE"] = io::array_of(std::vector{flex.block_q, flex.block_kv}, {2});
  // Each table is freed as soon as it is copied, because they are the largest arrays.
  const auto add = [&](const std::string& name, FlexIndexTable&& given, std::int64_t num_rows) {
    const FlexIndexTable table = std::move(given);
    arrays[counts_name(name)] =
        io::array_of(table.num_blocks, {flex.num_batches, flex.num_heads, num_rows});
    arrays[indices_name(name)] =
        io::array_of(table.indices, {flex.num_batches, flex.num_heads, num_rows, table.width});
  };
  add("kv", std::move(flex.kv), rows);
  if (flex.full_kv) add("full_kv", *std::move(flex.full_kv), rows);
  if (flex.q) add("q", *std::move(flex.q), cols);
  if (flex.full_q) add("full_q", *std::move(flex.full_q), cols);
  if (flex.cells) {
    const std::int64_t words = flex.block_q * flex.block_kv / 64;
    const auto num_words = static_cast<std::int64_t>(flex.cells->bitmaps.size());
    arrays[kBitmapIndex] = io::array_of(
        flex.cells->bitmap_index, {static_cast<std::int64_t>(flex.cells->bitmap_index.size())});
    arrays[kBitmaps] = io::array_of(flex.cells->bitmaps, {num_words / words, words});
  }
  return group;
}

}  // namespace fdma
