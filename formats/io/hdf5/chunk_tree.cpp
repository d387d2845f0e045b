// A node holds "TREE", type 1, level, number of children (2 bytes), the addresses of both siblings,
// then keys and children in turn, with one key more than children. A key holds the bytes of the
// chunk (4), the filter mask (4), an 8-byte coordinate for each dimension, and one more coordinate,
// which is 0. Child i holds the chunks from key i up to, not including, key i + 1. On level 0 it is
// the chunk of key i itself.
#include "io/hdf5/chunk_tree.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>

#include "io/hdf5/raw_chunks.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {
namespace {

constexpr std::uint64_t kOutside = ~std::uint64_t{0};

std::uint64_t little_endian(const std::byte* bytes, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return value;
}

using Key = std::vector<std::uint64_t>;  // coordinates, including the last one

std::string key_text(const Key& key) {
  return fmt::format("[{}]", fmt::join(key.begin(), key.end() - 1, ", "));
}

struct Node {
  std::vector<std::byte> bytes;  // from the first key on
  int level = 0;
  std::size_t num_children = 0;
  std::size_t next = 0;  // the child to visit next
  std::vector<Key> keys;
};

class TreeWalk {
 public:
  TreeWalk(const ChunkTree& tree, const ChunkVisit& visit, const std::string& where)
      : tree_(tree),
        visit_(visit),
        where_(where),
        key_bytes_(8 + 8 * (tree.chunk.size() + 1)),
        header_bytes_(8 + 2 * tree.address_bytes) {}

  Result<void> run() {
    constexpr int kAnyLevel = -1;
    FDMA_TRY(Node root, load(static_cast<std::uint64_t>(tree_.root), kAnyLevel));
    std::vector<Node> path;
    path.push_back(std::move(root));
    while (!path.empty()) {
      Node& node = path.back();
      if (node.next == node.num_children) {
        path.pop_back();
        continue;
      }
      const std::size_t i = node.next++;
      const std::byte* child = node.bytes.data() + i * stride() + key_bytes_;
      const std::uint64_t address = little_endian(child, tree_.address_bytes);
      if (node.level == 0) {
        FDMA_TRY_VOID(visit_chunk(node, i, address));
        continue;
      }
      FDMA_TRY(Node below, load(absolute(address), node.level - 1));
      FDMA_TRY_VOID(check_bounds(below, node.keys[i], node.keys[i + 1]));
      path.push_back(std::move(below));
    }
    return {};
  }

 private:
  std::size_t stride() const { return key_bytes_ + tree_.address_bytes; }

  Error corrupt(const std::string& text) const {
    return {ErrorCode::corrupt_file, fmt::format("{}: {}", where_, text)};
  }

  // kOutside for the undefined address and for every address beyond the file.
  std::uint64_t absolute(std::uint64_t address) const {
    return address > static_cast<std::uint64_t>(tree_.file_bytes)
               ? kOutside
               : address + static_cast<std::uint64_t>(tree_.base);
  }

  Result<Node> load(std::uint64_t address, int level) const {
    const auto damaged = [&](const std::string& text) {
      return corrupt(fmt::format("chunk index, node at byte {}: {}", address, text));
    };
    if (!is_inside(address, header_bytes_, tree_.file_bytes)) {
      return damaged(fmt::format("outside the file of {} bytes", tree_.file_bytes));
    }
    const auto begin = static_cast<std::int64_t>(address);
    std::vector<std::byte> header(header_bytes_);
    FDMA_TRY_VOID(read_exactly(tree_.descriptor, begin, std::ssize(header), header.data()));
    if (std::memcmp(header.data(), "TREE", 4) != 0 || header[4] != std::byte{1}) {
      return damaged("no node of chunks");
    }
    Node node;
    node.level = std::to_integer<int>(header[5]);
    node.num_children = little_endian(header.data() + 6, 2);
    if (level >= 0 && node.level != level) {
      return damaged(fmt::format("level {}, expected {}", node.level, level));
    }
    if (node.num_children == 0 && level >= 0) return damaged("no chunks");
    const std::size_t size = node.num_children * stride() + key_bytes_;
    if (!is_inside(address, header_bytes_ + size, tree_.file_bytes)) {
      return damaged(fmt::format("{} chunks run past the end of the file", node.num_children));
    }
    node.bytes.resize(size);
    FDMA_TRY_VOID(read_exactly(tree_.descriptor, begin + std::ssize(header), std::ssize(node.bytes),
                               node.bytes.data()));
    if (node.num_children > 0) FDMA_TRY_VOID(read_keys(node));
    return node;
  }

  Result<void> read_keys(Node& node) const {
    const std::size_t rank = tree_.chunk.size();
    for (std::size_t i = 0; i <= node.num_children; ++i) {
      Key key(rank + 1);
      for (std::size_t d = 0; d <= rank; ++d) {
        key[d] = little_endian(node.bytes.data() + i * stride() + 8 + 8 * d, 8);
      }
      for (std::size_t d = 0; d < rank; ++d) {
        if (key[d] % static_cast<std::uint64_t>(tree_.chunk[d]) == 0) continue;
        return corrupt(
            fmt::format("chunk coordinates {}, expected multiples of the chunk's sides {}",
                        key_text(key), extents_text(tree_.chunk)));
      }
      if (i > 0 && !(node.keys.back() < key)) return descends(node.keys.back(), key);
      node.keys.push_back(std::move(key));
    }
    return {};
  }

  Error descends(const Key& before, const Key& key) const {
    return corrupt(fmt::format("chunk coordinates {} after {}, expected to ascend, each once",
                               key_text(key), key_text(before)));
  }

  // Checks that all chunks below lie in [lower, upper), where the search looks for them.
  Result<void> check_bounds(const Node& below, const Key& lower, const Key& upper) const {
    if (below.keys.front() < lower) return descends(lower, below.keys.front());
    const Key& last = below.keys[below.num_children - 1];
    if (!(last < upper)) return descends(last, upper);
    return {};
  }

  Result<void> visit_chunk(const Node& node, std::size_t i, std::uint64_t address) {
    const Key& key = node.keys[i];
    const std::size_t rank = tree_.extents.size();
    begin_.resize(rank);
    for (std::size_t d = 0; d < rank; ++d) {
      if (key[d] >= static_cast<std::uint64_t>(tree_.extents[d])) {
        return corrupt(fmt::format("chunk coordinates {}, expected inside the extents {}",
                                   key_text(key), extents_text(tree_.extents)));
      }
      begin_[d] = static_cast<std::int64_t>(key[d]);
    }
    if (key[rank] != 0) {
      return corrupt(
          fmt::format("chunk coordinates {} end with {}, expected 0", key_text(key), key[rank]));
    }
    const std::byte* stored = node.bytes.data() + i * stride();
    const std::uint64_t size = little_endian(stored, 4), at = absolute(address);
    if (size == 0 || !is_inside(at, size, tree_.file_bytes)) {
      return corrupt(fmt::format("chunk {} would take bytes [{}, {} + {}), but the file has {}",
                                 extents_text(begin_), at, at, size, tree_.file_bytes));
    }
    ChunkPlace place;
    place.address = static_cast<std::int64_t>(at);
    place.size = static_cast<std::int64_t>(size);
    place.filter_mask = static_cast<std::uint32_t>(little_endian(stored + 4, 4));
    place.is_stored = true;
    if (tree_.fixed_size > 0 && place.size != tree_.fixed_size) {
      return corrupt(fmt::format("chunk {} takes {} bytes, expected {}", extents_text(begin_), size,
                                 tree_.fixed_size));
    }
    return visit_(begin_, place);
  }

  const ChunkTree& tree_;
  const ChunkVisit& visit_;
  const std::string& where_;
  std::size_t key_bytes_;
  std::size_t header_bytes_;
  std::vector<std::int64_t> begin_;
};

}  // namespace

Result<void> walk_chunk_tree(const ChunkTree& tree, const ChunkVisit& visit,
                             const std::string& where) {
  return TreeWalk(tree, visit, where).run();
}

}  // namespace fdma::io
