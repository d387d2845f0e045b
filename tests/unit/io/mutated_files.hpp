// Changes valid HDF5 files in ways that a reader must survive: in bits, in fields of the format's
// structures, by cuts, and by parts of other files.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace fdma::testing {

/// The content of a seed file, which says how the file is read.
enum class SeedKind { mask, dense, flex, flash_mask, bsr };
inline constexpr const char* kSeedKinds[] = {"mask files", "dense", "FlexAttention", "FlashMask",
                                             "BSR"};

struct SeedFile {
  SeedKind kind;
  std::string name;   ///< "dense gzip shuffle"
  std::string bytes;  ///< a valid file
};

/// Makes the seed files in `folder`: mask files of every format, plain and compressed; dense masks
/// of several types, contiguous and chunked, with every usual filter, in the old and the newest
/// file layout; groups of other systems.
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

/// Returns `bytes` after one to three mutations of kind `mutation`. In half of the cases the
/// checksums of the newer file layout are made right, so that reading goes on behind the change.
std::string mutated(const std::string& bytes, const std::string& other, Mutation mutation,
                    std::mt19937_64& random);

}  // namespace fdma::testing
