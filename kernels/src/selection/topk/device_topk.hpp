// Selection as its kernels see it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fdma/kernels/device_topk.hpp"
#include "selection/topk/topk_segments.hpp"

namespace fdma::zoh {

/// Up to so many parts of a group it is noted where thresholds lie in their runs; of more than
/// kSampledParts a thread has one.
inline constexpr std::int64_t kFewParts = 512;
/// Up to so many, samples of their runs are in shared memory meanwhile.
inline constexpr std::int64_t kSampledParts = 64;

/// Arguments of the kernels; all pointers are to device memory. Intervals are {begin, end}.
struct TopkCall {
  const Piece* pieces;            ///< those to sort first; parts of a group follow one another
  const int2* queries;            ///< [masks, kv_len]
  const std::uint16_t* ordinals;  ///< [masks, kv_len]
  const float* scores;
  std::int64_t batch_stride, head_stride, key_stride;  ///< of scores
  std::int32_t num_heads;
  std::int32_t most_parts;  ///< parts of the longest group
  std::int64_t kv_len;
  std::int64_t w;
  std::uint64_t* runs;     ///< [pieces to sort, kPieceKeys]
  std::uint64_t* worst;    ///< [pieces to sort]
  std::uint64_t* samples;  ///< [pieces to sort, kSamples], null above kSampledParts, and for one
  std::uint16_t* ends;     ///< [pieces to sort, most_parts]: how many of each run up to the piece's
                           ///< are `worst` or better, where that is not 0; null above kFewParts
  int2* kept;              ///< [rows, kv_len]
  std::uint32_t* status;
};

/// The launches of a call: the first `num_sorted` of `num_pieces` are parts or packed.
Result<void> launch_topk(const TopkCall& call, std::int64_t num_pieces, std::int64_t num_sorted,
                         Stream stream);

}  // namespace fdma::zoh
