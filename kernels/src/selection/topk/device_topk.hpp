// A call of selection, as the host (device_topk.cpp) makes it and its kernels (select_topk.cu) see
// it.
#pragma once

#include <cstdint>

#include "fdma/kernels/device_topk.hpp"
#include "selection/topk/topk_segments.hpp"

struct int2;  // an Interval to the kernels, without CUDA's headers

namespace fdma::zoh {

/// Groups of at most this many parts record where thresholds lie in their runs. In groups of more
/// than kSampledParts parts a thread has one of them.
inline constexpr std::int64_t kFewParts = 512;
/// Groups of at most this many parts keep samples of their runs in shared memory.
inline constexpr std::int64_t kSampledParts = 64;

/// Arguments of the kernels; all pointers are to device memory. Intervals are {begin, end}.
struct TopkCall {
  /// The key segments to sort come first; the parts of a group are consecutive
  const KeySegment* key_segments;
  const int2* queries;            ///< [masks, kv_len]
  const std::uint16_t* ordinals;  ///< [masks, kv_len]
  const float* scores;
  std::int64_t batch_stride, head_stride, key_stride;  ///< of scores
  std::int32_t num_heads;
  std::int32_t most_parts;  ///< parts of the longest group
  std::int64_t kv_len;
  std::int64_t w;
  std::uint64_t* runs;   ///< [key segments to sort, kKeySegmentSize]
  std::uint64_t* worst;  ///< [key segments to sort]
  /// [key segments to sort, kSamples], null above kSampledParts, and for one
  std::uint64_t* samples;
  /// [key segments to sort, most_parts]: how many ranks of each run up to the key segment's are
  /// `worst` or better, where that is not 0; null above kFewParts
  std::uint16_t* ends;
  int2* kept;  ///< [rows, kv_len]
  std::uint32_t* status;
};

/// Implemented by select_topk.cu.
class GpuTopk {
 public:
  /// Launches the kernels of a call. The first `num_sorted` of `num_key_segments` key segments are
  /// parts or packed. Errors: cuda.
  virtual Result<void> launch(const TopkCall& call, std::int64_t num_key_segments,
                              std::int64_t num_sorted, Stream stream) const = 0;

 protected:
  ~GpuTopk() = default;
};

}  // namespace fdma::zoh
