// The chunk index of the classic file layout: a version 1 B-tree, read straight from the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// The stored bytes of one chunk.
struct ChunkPlace {
  std::int64_t address = 0;  ///< in the file
  std::int64_t size = 0;
  std::uint32_t filter_mask = 0;  ///< bit i: filter i was skipped
  bool is_stored = false;         ///< false: never written; all cells are the fill value
};

/// Called with a stored chunk and the coordinates of its first element.
using ChunkVisit =
    std::function<Result<void>(const std::vector<std::int64_t>& begin, const ChunkPlace& place)>;

/// The place of a tree in the file, and the extents that its keys must agree with.
struct ChunkTree {
  int descriptor = -1;
  std::int64_t file_bytes = 0;
  std::int64_t root = 0;  ///< its first byte in the file
  std::int64_t base = 0;  ///< offset of all addresses in the file (the userblock)
  std::size_t address_bytes = 8;
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> chunk;
  std::int64_t fixed_size = 0;  ///< bytes of every chunk if there are no filters, else 0
};

/// Visits every chunk of the tree in the order of its keys, and checks the tree.
///
/// HDF5 finds a chunk by binary search for its coordinates and takes a chunk that it does not find
/// for one that was never written. Everything that the search relies on must therefore hold: levels
/// decrease towards the leaves; keys ascend strictly, within a node and from node to node;
/// coordinates are multiples of the chunk's sides inside the extents; bytes lie inside the file.
///
/// Cost        one read for each node, memory of one node for each level
/// Errors      corrupt_file, io; those of `visit`
Result<void> walk_chunk_tree(const ChunkTree& tree, const ChunkVisit& visit,
                             const std::string& where);

}  // namespace fdma::io
