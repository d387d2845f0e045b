// Bytes that main memory reads and writes while the work tiles of a plan run.
#pragma once

#include <cstdint>

#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The keys whose rows of K and V a forward plan reads, over all (batch element, KV head), each
/// once: those of the tiles that some work tile visits, and those of kv index lists.
///
/// Example     learned top-k of 8,192 keys, w = 128, random scores: 786 keys of a head
/// Cost        O(work tiles + segments + entries of lists + patterns * tiles of a row) for each set
///             of KV heads with the same mask
std::int64_t keys_read(const PlanHeader& header, const SegmentPlan& plan);
std::int64_t keys_read(const PlanHeader& header, const ClosedFormPlan& plan);

/// Bytes of the tensors and of the plan. A forward call reads q and the keys of keys_read and
/// writes out and lse. A backward call reads and writes every tensor; where kernels before and
/// after the work tiles handle the sums of dq (query_passes.hpp), their bytes are not counted here.
///
/// The rows of q and dout and the sums of dq that work tiles of a kv worklist visit are read from
/// main memory for the first of the work tiles that run at the same time. For the others they are
/// L2 hits as far as all of these rows fit in L2.
std::int64_t work_tile_bytes(const AttentionPlan& plan, std::int32_t num_workers);

/// Bytes of the plan's bias of pairs, 0 without one, taken as one of q's type with elements of its
/// own for each batch element and query head. Those of the `num_cells` pairs that work tiles compute
/// are read; a backward call also writes a gradient for every pair.
std::int64_t bias_bytes(const PlanHeader& header, std::int64_t num_cells);

}  // namespace fdma
