#include "stored/stored_mask.hpp"

#include <fmt/format.h>

#include <limits>

namespace fdma::io {

Result<std::vector<std::size_t>> first_pairs(std::span<const std::int32_t> group_of) {
  std::vector<std::size_t> first;
  for (std::size_t i = 0; i < group_of.size(); ++i) {
    const std::int32_t group = group_of[i];
    if (group < 0 || static_cast<std::size_t>(group) > first.size()) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("{}: entry {} is {}, expected groups numbered by first occurrence",
                               kGroupMapName, i, group)};
    }
    if (static_cast<std::size_t>(group) == first.size()) first.push_back(i);
  }
  return first;
}

Result<std::vector<TileRun>> unpack_runs(std::span<const std::int64_t> columns) {
  std::vector<TileRun> runs(columns.size() / 5);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::int64_t* row = columns.data() + i * 5;
    for (int c = 0; c < 4; ++c) {
      if (row[c] < 0 || row[c] > std::numeric_limits<std::int32_t>::max()) {
        return Error{ErrorCode::corrupt_file,
                     fmt::format("row {}, column {}: {} is not a 32-bit count", i, c, row[c])};
      }
    }
    runs[i] = {static_cast<std::int32_t>(row[0]), static_cast<std::int32_t>(row[1]),
               static_cast<std::int32_t>(row[2]), static_cast<std::int32_t>(row[3]), row[4]};
  }
  return runs;
}

std::vector<std::int64_t> pack_runs(std::span<const TileRun> runs) {
  std::vector<std::int64_t> columns;
  columns.reserve(runs.size() * 5);
  for (const TileRun& run : runs) {
    columns.insert(columns.end(), {run.first_row, run.row_stride, run.num_rows, run.num_segments,
                                   run.first_segment});
  }
  return columns;
}

}  // namespace fdma::io
