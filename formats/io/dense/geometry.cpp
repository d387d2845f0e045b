#include "io/dense/geometry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "io/dense/plane.hpp"

namespace fdma::io {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 60;

std::int64_t product(std::int64_t a, std::int64_t b) {
  return b != 0 && a > kHuge / b ? kHuge : a * b;
}

const char* name_of(DenseDims dims) {
  switch (dims) {
    case DenseDims::qk:
      return "qk";
    case DenseDims::hqk:
      return "hqk";
    case DenseDims::bqk:
      return "bqk";
    case DenseDims::bhqk:
      return "bhqk";
    case DenseDims::bk:
      return "bk";
  }
  return "?";
}

std::vector<int> axes_of(DenseDims dims, std::size_t rank) {
  switch (dims) {
    case DenseDims::qk:
      return {2, 3};
    case DenseDims::hqk:
      return {1, 2, 3};
    case DenseDims::bqk:
      return {0, 2, 3};
    case DenseDims::bhqk:
      return {0, 1, 2, 3};
    case DenseDims::bk:
      if (rank == 3) return {0, 2, 3};
      if (rank == 4) return {0, 1, 2, 3};
      return {0, 3};
  }
  return {};
}

Result<DenseDims> dims_of(const std::vector<std::int64_t>& extents, const DenseReadOptions& options,
                          const std::string& where) {
  const std::size_t rank = extents.size();
  const auto mismatch = [&](const std::string& text) {
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: {}", where, text)};
  };
  if (rank < 2 || rank > 4) {
    return mismatch(fmt::format("{} dimensions, a dense mask has 2, 3 or 4", rank));
  }
  if (!options.dims.has_value()) {
    if (rank == 3) {
      return mismatch(fmt::format("3 dimensions {}: say --dims hqk or --dims bqk{}",
                                  extents_text(extents), extents[1] == 1 ? ", or --dims bk" : ""));
    }
    return rank == 2 ? DenseDims::qk : DenseDims::bhqk;
  }
  if (const std::size_t expected = axes_of(*options.dims, rank).size(); expected != rank) {
    return mismatch(fmt::format("{} dimensions, but dims (--dims) {} has {}", rank,
                                name_of(*options.dims), expected));
  }
  const bool has_units_between =
      std::all_of(extents.begin() + 1, extents.end() - 1, [](std::int64_t n) { return n == 1; });
  if (options.dims == DenseDims::bk && !has_units_between) {
    return mismatch(
        fmt::format("extents {}: dims (--dims) bk is [batch, keys], with extents of 1 between at "
                    "most, such as [batch, 1, 1, keys]",
                    extents_text(extents)));
  }
  return *options.dims;
}

}  // namespace

Result<DenseGeometry> DenseGeometry::of(const DatasetInfo& info, const DenseReadOptions& options,
                                        std::int64_t element_bytes, const std::string& where) {
  DenseGeometry geometry;
  FDMA_TRY(geometry.dims, dims_of(info.extents, options, where));
  geometry.axes = axes_of(geometry.dims, info.extents.size());
  std::array<std::int64_t, 4> chunk{1, 1, 1, 1};
  const bool is_chunked = !info.chunk.empty();
  for (std::size_t d = 0; d < info.extents.size(); ++d) {
    const auto axis = static_cast<std::size_t>(geometry.axes[d]);
    geometry.extents[axis] = info.extents[d];
    if (is_chunked) {
      geometry.chunk[axis] = info.chunk[d];
      chunk[axis] = std::max<std::int64_t>(1, std::min(info.chunk[d], info.extents[d]));
    }
  }
  const auto [num_b, num_h, num_q, num_k] = geometry.extents;
  if (product(num_b, num_h) == 0 ||
      product(num_b, num_h) > std::numeric_limits<std::int32_t>::max()) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("{}: extents {} have {} batch elements and heads", where,
                    extents_text(info.extents), num_b == 0 || num_h == 0 ? "no" : "too many")};
  }
  if (num_q > kMaxLength || num_k > kMaxLength) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: extents {} exceed the longest sequence, {}", where,
                             extents_text(info.extents), kMaxLength)};
  }

  const BlockShape block = geometry.dims == DenseDims::bk ? BlockShape{16, 16} : options.block;
  const auto window = [&, q_len = num_q, kv_len = num_k](std::int64_t planes, std::int64_t rows) {
    return product(planes, DensePlane::window_bytes(q_len, kv_len, block, rows));
  };
  if (window(1, 1) > kMaxWindowBytes) {
    constexpr std::int32_t kLeastBlock = 16;
    const std::int64_t least =
        DensePlane::window_bytes(num_q, num_k, {kLeastBlock, block.block_kv}, 1);
    return Error{ErrorCode::out_of_memory,
                 fmt::format("{}: one row of tiles of {} keys takes {} bytes, at most {}; {}",
                             where, num_k, window(1, 1), kMaxWindowBytes,
                             least <= kMaxWindowBytes
                                 ? fmt::format("choose a smaller block_q than {} (--block {}x{})",
                                               block.block_q, kLeastBlock, block.block_kv)
                                 : "a dense dataset of so many keys is not read")};
  }
  std::int64_t full_chunk_bytes = is_chunked ? element_bytes : 0;
  for (const std::int64_t side : info.chunk) full_chunk_bytes = product(full_chunk_bytes, side);
  if (full_chunk_bytes > kMaxChunkBytes) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: chunks {} take {} bytes each; rewrite the dataset with chunks of "
                             "at most {}",
                             where, extents_text(info.chunk), full_chunk_bytes, kMaxChunkBytes)};
  }

  if (window(chunk[0] * chunk[1], chunk[2]) <= kWindowBytes) geometry.group = {chunk[0], chunk[1]};
  const std::int64_t planes = geometry.group[0] * geometry.group[1];
  std::int64_t chunk_rows = chunk[2];
  while (chunk_rows > 1 && window(planes, chunk_rows) > kWindowBytes) {
    chunk_rows = ceil_div(chunk_rows, 2);
  }
  const auto fitting = [&](std::int64_t unit_values) {  // how many units of that size fit in a slab
    return std::max<std::int64_t>(
        1, kSlabBytes / product(product(planes, unit_values), element_bytes));
  };
  const std::int64_t cols = std::max<std::int64_t>(1, num_k);
  const std::int64_t rows = std::max<std::int64_t>(1, num_q);
  // As many whole rows of chunks as fit, else part of one row of chunks, else part of one chunk.
  std::int64_t chunk_bands =
      std::min(fitting(product(chunk_rows, cols)), ceil_div(rows, chunk_rows));
  while (chunk_bands > 1 && window(planes, chunk_bands * chunk_rows) > kWindowBytes)
    chunk_bands /= 2;
  geometry.band_rows = std::min(rows, chunk_bands * chunk_rows);
  const bool is_whole =
      product(product(planes, geometry.band_rows * element_bytes), cols) <= kSlabBytes;
  const std::int64_t unit_cols = is_chunked ? chunk[3] : std::min<std::int64_t>(cols, 64);
  geometry.group_cols =
      is_whole ? cols : std::min(cols, fitting(product(geometry.band_rows, unit_cols)) * unit_cols);
  geometry.slab_rows = std::min(geometry.band_rows, fitting(geometry.group_cols));
  geometry.slab_cols = std::min(geometry.group_cols, fitting(1));
  if (geometry.slab_cols > 64 && geometry.slab_cols < geometry.group_cols) {
    geometry.slab_cols -= geometry.slab_cols % 64;
  }
  const bool splits_chunks =
      geometry.slab_rows < geometry.band_rows || geometry.slab_cols < geometry.group_cols;
  if (is_chunked && splits_chunks) geometry.cache_bytes = full_chunk_bytes;
  return geometry;
}

bool DenseGeometry::make_direct(const DatasetInfo& info, BlockShape tile_block,
                                std::int64_t element_bytes, int num_threads) {
  const bool is_chunked = !info.chunk.empty();
  const BlockShape block = dims == DenseDims::bk ? BlockShape{16, 16} : tile_block;
  const auto [num_b, num_h, num_q, num_k] = extents;
  if (num_values() == 0) return true;
  // Small enough for the packed rows, an eighth of the values or less, to stay in the caches of
  // the cores until tiles are made of them; large enough that waiting at the end does not matter.
  const std::int64_t target_bytes = kDirectBytesPerThread * std::max(1, num_threads);
  const auto window = [&, q_len = num_q, kv_len = num_k](std::int64_t planes, std::int64_t rows) {
    return product(planes, DensePlane::window_bytes(q_len, kv_len, block, rows));
  };
  std::array<std::int64_t, 4> unit{1, 1, 1, 1};
  std::int64_t chunks_of_unit_row = 0;
  if (is_chunked) {
    for (std::size_t axis = 0; axis < 4; ++axis) unit[axis] = std::min(chunk[axis], extents[axis]);
    std::int64_t chunk_bytes = element_bytes;
    for (const std::int64_t side : chunk) chunk_bytes = product(chunk_bytes, side);
    chunks_of_unit_row = ceil_div(num_k, unit[3]);
    if (chunk_bytes > kMaxDirectChunkBytes || chunks_of_unit_row > kMaxDirectChunks ||
        window(unit[0] * unit[1], unit[2]) > kWindowBytes) {
      return false;
    }
  }
  std::array<std::int64_t, 2> planes{unit[0], unit[1]};
  std::int64_t rows = std::min(unit[2], num_q);
  if (!is_chunked) {  // whole tile rows, so that no packed row waits for the next band
    const std::int64_t tile_rows =
        std::min(target_bytes / product(element_bytes, num_k) / block.block_q,
                 kWindowBytes / window(1, block.block_q));
    rows = std::min(num_q, std::max<std::int64_t>(1, tile_rows) * block.block_q);
  }
  std::int64_t chunks = chunks_of_unit_row;
  // Doubles `count` up to `most` while the slab stays small.
  const auto grow = [&, kv_len = num_k](std::int64_t& count, std::int64_t most) {
    while (count < most) {
      const std::int64_t before = count;
      count = std::min(2 * count, most);
      const std::int64_t all_planes = planes[0] * planes[1];
      if (product(product(all_planes, rows * element_bytes), kv_len) <= target_bytes &&
          window(all_planes, rows) <= kWindowBytes && 2 * chunks <= kMaxDirectChunks) {
        chunks *= 2;
        continue;
      }
      count = before;
      return false;
    }
    return true;
  };
  // Counts are multiples of a chunk, unless they end with the dataset.
  const bool has_whole_planes = is_chunked ? grow(rows, num_q) : rows >= num_q;
  if (has_whole_planes && grow(planes[1], num_h)) grow(planes[0], num_b);
  group = planes;
  band_rows = slab_rows = rows;
  group_cols = slab_cols = num_k;
  cache_bytes = 0;
  return true;
}

}  // namespace fdma::io
