// Incremental selection as its kernels see it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fdma/kernels/device_incremental_topk.hpp"
#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

/// What a row knows of itself. All rows have the same lengths.
struct RowState {
  std::int32_t q_len, kv_len;
  std::int32_t num_kept;
  std::int32_t buffer;  ///< which of the two has the ranks of the kept keys
};

/// All pointers are to device memory. Intervals are {begin, end}.
struct IncrementalState {
  RowState* rows;
  std::uint64_t* ranks;  ///< [rows, 2, w]: of the kept keys, descending
  int2* kept;            ///< [rows, capacity]
  float* waiting;        ///< [rows, capacity]: scores of the keys that append() brought, or null
  int2* queries;         ///< [capacity]: M, where append() brought it
  std::uint32_t* status;
  std::int64_t capacity;
  std::int64_t w;
  std::int32_t num_rows;
  std::int32_t num_heads;
};

inline constexpr std::int32_t kNoEnd = -1;   ///< no group ends
inline constexpr std::int32_t kEndNow = -2;  ///< a group ends at the query that is to come

/// What one launch does to every row, in the order of the members.
struct Step {
  std::int32_t end = kNoEnd;  ///< the group of the kept keys ends at this query
  std::int32_t first_cleared = 0, num_cleared = 0;  ///< keys that waited, and that nobody will see
  std::int32_t num_new = 0;  ///< keys with `scores`; their queries are M's, or causal
  bool is_causal = false;    ///< new keys are all shown, from queries q_len, q_len + 1, .. on
  /// Keys that see their first query, of one group, with scores in `waiting` where they are not
  /// new.
  std::int32_t first_shown = 0, num_shown = 0;
  std::int32_t num_queries = 0;
  const float* scores = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, key_stride = 0;
  /// Whether the new keys are counted: in the last step of a call.
  bool is_last = true;
  bool is_first = true;  ///< whether they are put to those that wait
};

Result<void> prepare_steps();
void launch_step(const IncrementalState& state, const Step& step, Stream stream);
void launch_live_keys(const IncrementalState& state, std::int32_t* keys, std::int64_t row_size,
                      std::int32_t* counts, Stream stream);

}  // namespace fdma::zoh
