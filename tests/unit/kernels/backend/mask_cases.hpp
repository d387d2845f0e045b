// Masks with their cells, for tests of plans and attention. The oracles give the cells one by one.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cell_oracle.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "suite_mask.hpp"

namespace fdma::testing {

/// A mask and its cells.
struct MaskCase {
  std::string name;
  BlockMask mask;
  std::vector<Cells> cells;  ///< pair (b, h) of the mask is at b * num_heads + h

  const Cells& at(std::int64_t b, std::int64_t h) const {
    const MaskShape& shape = mask.shape;
    return cells[static_cast<std::size_t>((shape.num_batches == 1 ? 0 : b) * shape.num_heads +
                                          (shape.num_heads == 1 ? 0 : h))];
  }
};

/// Compiles the mask and evaluates its expression at every cell.
MaskCase suite_case(const suite::SuiteMask& mask, BlockShape block);

/// Compiles the mask and reads the cells of the compiled mask. It is for long masks, for which
/// evaluating the expression at every cell takes seconds.
MaskCase compiled_case(const suite::SuiteMask& mask, BlockShape block);

/// The masks of the mask suite over kv_len keys, for q_len query rows, one batch element and head.
std::vector<MaskCase> suite_cases(std::int64_t q_len, std::int64_t kv_len, BlockShape block);

/// Several masks of one batch element and head as one mask. `cases` has num_batches * num_heads
/// entries. Those of the same batch element have equal lengths.
MaskCase combined(std::string name, std::int64_t num_batches, std::int64_t num_heads,
                  const std::vector<MaskCase>& cases, BlockShape block);

/// A mask of one batch element and head with these cells.
MaskCase case_of(std::string name, const Cells& cells, BlockShape block);

/// Random cells for each of num_batches * num_heads pairs, in a random format. Lengths differ by
/// batch element.
MaskCase random_case(std::mt19937& rng, std::int64_t num_batches, std::int64_t num_heads,
                     std::int64_t max_len, BlockShape block);

/// A shape that the mask fits, with `heads_kv` KV heads. The mask gives the number of query heads
/// unless it has 1 head; then it is `heads_q`.
AttentionShape shape_for(const BlockMask& mask, std::int64_t batch, std::int32_t heads_q,
                         std::int32_t heads_kv);

/// Column intervals with up to `most` intervals a key, as a random eviction would leave them.
Cells random_live_ranges(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len, int most);

}  // namespace fdma::testing
