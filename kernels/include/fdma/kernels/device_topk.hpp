// Exact top-k selection on the GPU: from scores in device memory to query intervals there.
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

/// The masks M among whose keys each row of scores selects; a row is a (batch element, KV head),
/// heads fastest.
///
/// Shapes      mask_of [num_batches * num_heads_kv], indices into masks; a mask's kv_len is that of
///             its rows, at most the tensor's
struct TopkRows {
  std::int64_t num_batches = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t kv_len = 0;  ///< of the score tensor
  std::vector<ColumnIntervals> masks;
  std::vector<std::int32_t> mask_of;

  std::int64_t num_rows() const { return num_batches * num_heads_kv; }
};

/// Set in a status word where a score that somebody sees is NaN (it ranks below all others).
inline constexpr std::uint32_t kTopkSawNan = 1;

/// Selection of w keys prepared for masks M, in the memory of the current device: scores change,
/// masks and w do not. One serves any number of calls and streams at once.
///
/// Example     scores 3, 1, 2 under causal, w = 1: kept {[0, 3), none, none}, none written {0, 0}
/// Invariants  what select_topk (select_topk.hpp) returns for the same scores, bit for bit, for
///             every M of the one-interval class (one_interval.hpp); the same bits every run
/// Owner       owns its device memory (size_bytes): 10 B a key and mask, 40 B per 2,048 keys and
/// row
class DeviceTopk {
 public:
  /// Copies what selection needs to know of the masks, in the order of `stream`. Not while a stream
  /// is captured. O(kv_len) host work a mask.
  ///
  /// Errors  invalid_argument: w < 1, an index in mask_of; shape_mismatch; unsupported: a GPU of
  ///         another architecture, an M beyond the one-interval class (select on the host:
  ///         select_topk); out_of_memory, cuda
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

  /// Selects. One launch, or three where keys may be dropped (two for rows of one piece);
  /// nothing is waited for, and a graph may capture them.
  ///
  /// Shapes  scores float32 [num_batches, num_heads_kv, kv_len] on the device, any strides; kept
  ///         [num_batches * num_heads_kv, kv_len]: the queries that keep a key, {0, 0} where there
  ///         are none (past a mask's kv_len too); workspace: workspace_bytes(), 16-aligned, of no
  ///         other call at the same time; status: one word, or null: kTopkSawNan is or-ed in
  /// Errors  shape_mismatch, invalid_argument, unsupported, cuda. Checked before the launch
  /// Cost    a sort of each 2,048 scores, a threshold per 2,048 keys, and a few rounds over the
  ///         keys of 2,048 that are kept for a while and dropped later
  Result<void> select(const TensorView& scores, Interval* kept, void* workspace,
                      std::uint32_t* status = nullptr, Stream stream = nullptr) const;

  /// The intervals of each row as a host mask: waits for `stream`, copies, leaves out empty ones.
  Result<std::vector<ColumnIntervals>> to_host(const Interval* kept, Stream stream = nullptr) const;

  struct Impl;
  explicit DeviceTopk(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fdma
