// Exact top-k selection on the GPU. Scores are read from device memory, query intervals are written
// to it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// The masks M whose visible keys each row of scores selects from. A row is a (batch element, KV
/// head), heads fastest.
///
/// Shapes      mask_of [num_batches * num_heads_kv], indices into masks; the kv_len of a mask is
///             that of its rows, at most the tensor's
struct TopkRows {
  std::int64_t num_batches = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t kv_len = 0;  ///< of the score tensor
  std::vector<ColumnIntervals> masks;
  std::vector<std::int32_t> mask_of;

  std::int64_t num_rows() const { return num_batches * num_heads_kv; }
};

/// Set in a status word where a visible score is NaN (it ranks below all others).
inline constexpr std::uint32_t kTopkSawNan = 1;

/// Selection of w keys, prepared for masks M in the memory of the current device. Scores may
/// change, masks and w may not. One object can be used by any number of calls and streams at once.
///
/// Example     scores 3, 1, 2 under causal, w = 1: kept {[0, 3), none, none}, none written {0, 0}
/// Invariants  the result is that of select_topk (select_topk.hpp) for the same scores, bit for
///             bit, for every M of the one-interval class (one_interval.hpp); the same bits every
///             run
/// Owner       owns its device memory (size_bytes): 10 B a key and mask, 40 B per 2,048 keys and
///             row
class DeviceTopk {
 public:
  /// Copies what selection needs to know of the masks, in the order of `stream`. Must not be called
  /// while a stream is captured. Host work: O(kv_len) a mask.
  ///
  /// Errors      invalid_argument: w < 1, an index in mask_of; shape_mismatch; unsupported: a GPU
  ///             of another architecture, an M beyond the one-interval class (use select_topk on
  ///             the host); out_of_memory, cuda
  static Result<DeviceTopk> make(const TopkRows& rows, std::int64_t w, Stream stream = nullptr);

  DeviceTopk(DeviceTopk&&) noexcept;
  DeviceTopk& operator=(DeviceTopk&&) noexcept;
  ~DeviceTopk();

  std::int64_t w() const;
  std::int64_t num_batches() const;
  std::int64_t num_heads_kv() const;
  std::int64_t kv_len() const;
  int device() const;
  std::int64_t size_bytes() const;
  /// Bytes of workspace of one call: 8 B a key and row, and up to 1.2 KiB per 2,048 of them.
  std::int64_t workspace_bytes() const;

  /// Selects. It launches one kernel, or three where keys may be dropped (two for rows of at most
  /// 2,048 keys), and does not wait; a graph may capture the launches.
  ///
  /// Shapes      scores     [num_batches, num_heads_kv, kv_len] float32 on the device, any strides
  ///             kept       [num_batches * num_heads_kv, kv_len]: the queries that keep a key,
  ///                        {0, 0} where there are none (also past a mask's kv_len)
  ///             workspace  workspace_bytes(), 16-aligned, that no other call uses at the same time
  ///             status     one word, or null; kTopkSawNan is or-ed in
  /// Errors      shape_mismatch, invalid_argument, unsupported, cuda. All are checked before the
  ///             launch
  /// Cost        a sort of each 2,048 scores, a threshold per 2,048 keys, and a few rounds over
  ///             those of each 2,048 keys that are kept for a while and dropped later
  Result<void> select(const TensorView& scores, Interval* kept, void* workspace,
                      std::uint32_t* status = nullptr, Stream stream = nullptr) const;

  /// The intervals of each row as a host mask, without empty ones. Waits for `stream` and copies.
  Result<std::vector<ColumnIntervals>> to_host(const Interval* kept, Stream stream = nullptr) const;

  struct Impl;
  explicit DeviceTopk(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fdma
