// ZOH scores of a wide dt_proj [heads_kv, heads_kv * head_dim] of 16 bits where keys are few, on
// tensor cores. Warps share the width of a row, as many per block as are needed to occupy all
// multiprocessors. Values and weights go straight to registers, so no barrier separates one part of
// a row from the next. Every warp reads all weights of its part, which zoh_wide.cu avoids where
// keys are many. As there, a lane's 16 bytes are the fragments of two mma instructions without
// rearrangement.
#include <cstdint>

#include "ptx/loads.cuh"
#include "ptx/mma.cuh"
#include "selection/scores/call.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

constexpr int kRowTiles = 2;  // of 16 keys, per warp of score_tiles
// Elements of a row: 16 bytes from each of the four lanes that share it
constexpr int kSliceElements = 32;

// Blocks of score_tiles per multiprocessor, limited by the registers of sums, values and weights.
template <int kColumnTiles>
constexpr int kTileBlocks = kColumnTiles == 1 ? 2 : 1;

// num_splits warps handle 32 keys and kColumnTiles x 8 heads from blockIdx.z on, each a part of the
// rows' width. In an mma, lane 4 g + t holds columns {2t, 2t+1, 2t+8, 2t+9} of rows g and g + 8;
// here these are elements 8t.. of the slice. Two slices, 128 bytes of each row, are loaded together
// while the two before them are multiplied, because memory is fastest where neighbours are read at
// one time.
template <class T, int kColumnTiles>
__global__ void __launch_bounds__(kThreads, kTileBlocks<kColumnTiles>)
    score_tiles(DeviceScoresCall call, int num_splits) {
  constexpr int kSums = kRowTiles * kColumnTiles * 4;
  __shared__ float parts[kWarps][kSums][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int split = warp % num_splits;
  const std::int64_t tile = std::int64_t{blockIdx.x} * (kWarps / num_splits) + warp / num_splits;
  const std::int64_t first_key = tile * 16 * kRowTiles;
  const auto batch = static_cast<int>(blockIdx.y);
  const int first_head = static_cast<int>(blockIdx.z) * 8 * kColumnTiles;
  const int width = call.num_heads * call.head_dim;
  const T* rows[kRowTiles][2];
  const T* columns[kColumnTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows past the end repeat the last one; their results are not used.
      const std::int64_t key = min(first_key + 16 * r + 8 * half + group, call.kv_len - 1);
      rows[r][half] = static_cast<const T*>(call.values.data) + batch * call.batch_stride +
                      key * call.key_stride + 8 * quad;
    }
  }
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
    const int head = min(first_head + 8 * c + group, call.num_heads - 1);
    columns[c] =
        static_cast<const T*>(call.weights.data) + head * call.weight_row_stride + 8 * quad;
  }
  float sums[kRowTiles][kColumnTiles][4] = {};
  const auto load = [&](int at, uint4(&a)[2][kRowTiles][2]) {
#pragma unroll
    for (int s = 0; s < 2; ++s, at += kSliceElements) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          a[s][r][half] = at + 8 * quad < width ? ptx::load_streamed(rows[r][half] + at)
                                                : make_uint4(0, 0, 0, 0);
        }
      }
    }
  };
  const auto add = [&](int at, const uint4(&a)[2][kRowTiles][2]) {
#pragma unroll
    for (int s = 0; s < 2; ++s, at += kSliceElements) {
      uint4 b[kColumnTiles];
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        b[c] = at + 8 * quad < width ? __ldg(reinterpret_cast<const uint4*>(columns[c] + at))
                                     : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
          ptx::mma<T>(sums[r][c], a[s][r][0].x, a[s][r][1].x, a[s][r][0].y, a[s][r][1].y, b[c].x,
                      b[c].y);
          ptx::mma<T>(sums[r][c], a[s][r][0].z, a[s][r][1].z, a[s][r][0].w, a[s][r][1].w, b[c].z,
                      b[c].w);
        }
      }
    }
  };
  // A part is a multiple of two slices. Elements past the row are zero.
  constexpr int kPair = 2 * kSliceElements;
  const int part = (width + kPair * num_splits - 1) / (kPair * num_splits) * kPair;
  const int end = (split + 1) * part;
  uint4 even[2][kRowTiles][2], odd[2][kRowTiles][2];
  int at = split * part;
  load(at, even);
  for (; at < end; at += 2 * kPair) {
    load(at + kPair, odd);
    add(at, even);
    load(at + 2 * kPair, even);
    if (at + kPair < end) add(at + kPair, odd);
  }
  if (num_splits > 1) {
    // The first warp of a tile adds the sums of the others, in their order.
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      parts[warp][i][lane] = sums[i / 4 / kColumnTiles][i / 4 % kColumnTiles][i % 4];
    __syncthreads();
    if (split != 0) return;
    for (int other = 1; other < num_splits; ++other) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i / 4 / kColumnTiles][i / 4 % kColumnTiles][i % 4] += parts[warp + other][i][lane];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t key = first_key + 16 * r + 8 * (i / 2) + group;
        const int head = first_head + 8 * c + 2 * quad + i % 2;
        if (key < call.kv_len && head < call.num_heads) {
          store_score(call, batch, head, key, sums[r][c][i]);
        }
      }
    }
  }
}

template <class T, int kColumnTiles>
void launch(const DeviceScoresCall& call, Stream stream) {
  const std::int64_t tiles = ceil_div(call.kv_len, 16 * kRowTiles);
  const std::int64_t column_blocks = ceil_div(call.num_heads, 8 * kColumnTiles);
  // Number of warps that can run at a time.
  const std::int64_t wanted = ceil_div(kTileBlocks<kColumnTiles> * kWarps * kMultiprocessors,
                                       tiles * column_blocks * call.num_batches);
  const int num_splits = wanted > 4 ? kWarps : wanted > 2 ? 4 : wanted > 1 ? 2 : 1;
  const dim3 grid(static_cast<unsigned>(ceil_div(tiles * num_splits, kWarps)),
                  static_cast<unsigned>(call.num_batches), static_cast<unsigned>(column_blocks));
  score_tiles<T, kColumnTiles><<<grid, kThreads, 0, stream>>>(call, num_splits);
}

template <class T>
void launch_of(const DeviceScoresCall& call, Stream stream) {
  if (call.num_heads <= 8) {
    launch<T, 1>(call, stream);
  } else if (call.num_heads <= 16) {
    launch<T, 2>(call, stream);
  } else {
    launch<T, 4>(call, stream);
  }
}

}  // namespace

void launch_tiles(const DeviceScoresCall& call, Stream stream) {
  if (call.values.dtype == DType::bfloat16) {
    launch_of<__nv_bfloat16>(call, stream);
  } else {
    launch_of<__half>(call, stream);
  }
}

}  // namespace fdma::zoh
