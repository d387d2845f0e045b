// Masks that the tests of interop layouts start from.
#pragma once

#include <string>
#include <vector>

#include "fdma/formats/block_mask.hpp"

namespace fdma::testing {

struct NamedBlockMask {
  std::string name;
  BlockMask mask;
};

/// Returns the mask suite at `seq_len` tokens, compiled in blocks of 128.
std::vector<NamedBlockMask> compiled_suite(std::int64_t seq_len);

/// Compiles the specification for these lengths.
BlockMask compiled(const std::string& spec, std::int64_t q_len, std::int64_t kv_len,
                   BlockShape block = {}, std::int64_t num_heads = 1);

}  // namespace fdma::testing
