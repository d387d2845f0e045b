// HDF5 files that were right once and are changed in ways that a reader must survive: bits, fields
// of the format's structures, cuts, and pieces of other files.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace fdma::testing {

/// What a seed file holds, and with it how it is read.
enum class SeedKind { mask, dense, flex, flash_mask, bsr };
inline constexpr const char* kSeedKinds[] = {"mask files", "dense", "FlexAttention", "FlashMask",
                                             "BSR"};

struct SeedFile {
  SeedKind kind;
  std::string name;   ///< "dense gzip shuffle"
  std::string bytes;  ///< a valid file
};

/// Mask files of every format, plain and compressed; dense masks of several types, contiguous,
/// chunked, with every usual filter, of the old and the newest file layout; other systems' groups.
/// Made in `folder`.
std::vector<SeedFile> seed_files(const std::string& folder);

/// How a file is changed.
enum class Mutation {
  flip_bits,         ///< one to eight bits anywhere
  set_bytes,         ///< one to eight bytes near structures
  change_message,    ///< type, size, flags or contents of a message in an object header
  change_address,    ///< a number that can be an address in the file
  change_size,       ///< a number that can be an extent, a count or a size
  change_structure,  ///< a field of superblock, B-tree, symbol table, heap or object header
  truncate,          ///< the end is missing
  splice,            ///< a piece of this or another file lies over another place
};
inline constexpr const char* kMutations[] = {"flip bits",      "set bytes",   "change message",
                                             "change address", "change size", "change structure",
                                             "truncate",       "splice"};
inline constexpr int kNumMutations = 8;

/// `bytes` after one to three mutations of kind `mutation`. Checksums of the newer file layout are
/// put right in half of the cases, so that the change is not the end of reading.
std::string mutated(const std::string& bytes, const std::string& other, Mutation mutation,
                    std::mt19937_64& random);

}  // namespace fdma::testing
