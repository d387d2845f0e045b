// State and steps of incremental selection, as the host (device_incremental_topk.cpp) makes them and
// its kernels (incremental_step.cu) see them.
#pragma once

#include <cstdint>

#include "fdma/kernels/device_incremental_topk.hpp"
#include "selection/topk/ranking.hpp"

struct int2;  // an Interval to the kernels, without CUDA's headers

namespace fdma::zoh {

/// The state of a row. All rows have the same lengths.
struct RowState {
  std::int32_t q_len, kv_len;
  std::int32_t num_kept;
  std::int32_t buffer;  ///< which of the two buffers holds the ranks of the kept keys
};

/// State of all rows. All pointers are to device memory. Intervals are {begin, end}.
struct IncrementalState {
  RowState* rows;
  std::uint64_t* ranks;  ///< [rows, 2, w]: ranks of the kept keys, descending
  int2* kept;            ///< [rows, capacity]
  /// [rows, capacity]: scores of the keys that append() brought, or null
  float* waiting;
  int2* queries;  ///< [capacity]: intervals of M that append() brought
  std::uint32_t* status;
  std::int64_t capacity;
  std::int64_t w;
  std::int32_t num_rows;
  std::int32_t num_heads;
};

inline constexpr std::int32_t kNoEnd = -1;   ///< no group ends
inline constexpr std::int32_t kEndNow = -2;  ///< a group ends at the next query

/// What one launch does to every row. The members are applied in their order.
struct Step {
  std::int32_t end = kNoEnd;  ///< the group of the kept keys ends at this query
  /// Waiting keys that no query will see
  std::int32_t first_cleared = 0, num_cleared = 0;
  std::int32_t num_new = 0;  ///< keys with `scores`; their queries are M's, or causal
  /// All new keys are shown, from queries q_len, q_len + 1, .. on
  bool is_causal = false;
  /// Keys that see their first query, all of one group. Their scores are in `waiting` unless they
  /// are new.
  std::int32_t first_shown = 0, num_shown = 0;
  std::int32_t num_queries = 0;
  const float* scores = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, key_stride = 0;
  /// Whether the new keys are counted, which is so in the last step of a call.
  bool is_last = true;
  bool is_first = true;  ///< whether the new keys are added to the waiting ones
};

/// Implemented by incremental_step.cu. Errors: cuda.
class GpuIncrementalTopk {
 public:
  /// Prepares the current device for steps.
  virtual Result<void> prepare() const = 0;
  virtual Result<void> launch_step(const IncrementalState& state, const Step& step,
                                   Stream stream) const = 0;
  /// DeviceIncrementalTopk::live_keys
  virtual Result<void> launch_live_keys(const IncrementalState& state, std::int32_t* keys,
                                        std::int64_t row_size, std::int32_t* counts,
                                        Stream stream) const = 0;

 protected:
  ~GpuIncrementalTopk() = default;
};

}  // namespace fdma::zoh
