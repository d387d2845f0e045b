// Top-k selection on the GPU that follows a growing sequence: decode, chunked prefill.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_topk.hpp"

namespace fdma {

/// Set in the status word where an append had no room; nothing was appended then.
inline constexpr std::uint32_t kTopkOverCapacity = 2;

/// IncrementalTopk (incremental_topk.hpp) for rows of scores in device memory, all with one M. A
/// row is a (batch element, KV head), heads fastest. One object is used by one stream at a time.
///
/// Example     scores 3, 1 then 5, causal, w = 1: kept {[0, open), none}; then {[0, 2), none,
///             [2, open)}
/// Invariants  after every append the intervals() of a row equal those of IncrementalTopk
/// Owner       owns its device memory: 8 B a key of capacity and row (12 B where keys may wait),
///             16 B a kept key and row
class DeviceIncrementalTopk {
 public:
  struct Options {
    std::int64_t num_batches = 1;
    std::int64_t num_heads_kv = 1;
    std::int64_t capacity = 0;  ///< most keys of a row
    std::int64_t w = 1;
    /// Whether append() may bring keys whose first query comes in a later call.
    bool keys_may_wait = false;
  };

  /// Must not be called while a stream is captured.
  ///
  /// Errors      invalid_argument: w < 1, a length below 0 or a capacity past 2^31 - 2;
  ///             unsupported: a GPU of another architecture; out_of_memory, cuda
  static Result<DeviceIncrementalTopk> make(const Options& options, Stream stream = nullptr);

  DeviceIncrementalTopk(DeviceIncrementalTopk&&) noexcept;
  DeviceIncrementalTopk& operator=(DeviceIncrementalTopk&&) noexcept;
  ~DeviceIncrementalTopk();

  /// Appends as many queries as keys, each key visible from its own query on. It launches one
  /// kernel and does not wait. A CUDA graph may capture it; each replay then appends (refresh()
  /// tells the host).
  ///
  /// Shapes      scores [num_batches, num_heads_kv, keys] float32 on the device, any strides; NaN
  ///             ranks lowest and sets kTopkSawNan
  /// Errors      shape_mismatch, unsupported; invalid_argument: more keys than capacity. All are
  ///             checked before the launch
  /// Cost        one thread block a row: a sort of each 2,048 keys, O(w) where a key is kept, else
  ///             O(log w)
  Result<void> append_causal(const TensorView& scores, Stream stream = nullptr);

  /// Appends keys that M shows to the queries among[i] (host memory), then `num_queries` queries,
  /// as IncrementalTopk::append. It launches one kernel for each group of rows that the call
  /// touches and copies `among`, so it must not be called while a stream is captured.
  ///
  /// Errors      those of IncrementalTopk::append except NaN; invalid_argument: a key waits where
  ///             keys_may_wait is not set. A failed append changes nothing
  Result<void> append(const TensorView& scores, std::span<const Interval> among,
                      std::int64_t num_queries, Stream stream = nullptr);

  /// Ends a document: no later query sees the keys so far. A graph may capture it.
  Result<void> end_group(Stream stream = nullptr);

  std::int64_t num_batches() const;
  std::int64_t num_heads_kv() const;
  std::int64_t capacity() const;
  std::int64_t w() const;
  /// The lengths after the calls so far; replays of a graph count only after refresh().
  std::int64_t q_len() const;
  std::int64_t kv_len() const;
  int device() const;
  std::int64_t size_bytes() const;

  /// Reads the lengths from the device after graphs were replayed. Waits for `stream`.
  Result<void> refresh(Stream stream = nullptr);

  /// Device memory [rows, capacity]: the queries that keep each key, {0, 0} where there are none.
  /// The end is kOpenEnd (one_interval.hpp) while the key is live.
  const Interval* kept() const;
  /// Device memory, one word: kTopkSawNan, kTopkOverCapacity.
  const std::uint32_t* status() const;

  /// The keys of each row that later queries may keep, ascending. There are at most w of them plus
  /// those that wait. Keys that do not fit into row_size are counted, not written. One launch,
  /// which a graph may capture.
  ///
  /// Shapes      keys [rows, row_size], counts [rows], both in device memory
  Result<void> live_keys(std::int32_t* keys, std::int64_t row_size, std::int32_t* counts,
                         Stream stream = nullptr) const;

  /// The intervals so far of each row on the host. Calls refresh(), waits for `stream` and copies.
  Result<std::vector<ColumnIntervals>> intervals(Stream stream = nullptr);

  struct Impl;
  explicit DeviceIncrementalTopk(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fdma
