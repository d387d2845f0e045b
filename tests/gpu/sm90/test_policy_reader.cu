// A reader of keys of the test's own: key k is row kv_len - 1 - k of K and V, which four warps of
// the kernel copy. Nothing in the library knows it.
#include <gtest/gtest.h>

#include "ptx/async_copy.cuh"
#include "sm90/forward/kernel.cuh"
#include "sm90/policy_case.hpp"

namespace fdma {
namespace {

using gpu_test::CellRules;
using gpu_test::PolicyCase;
using gpu_test::PolicyErrors;

struct ReversedKeys : sm90::ContiguousKeys {
  static constexpr int kExtraWarps = 4;
  static constexpr std::uint32_t kInsertions = kExtraWarps * ptx::kWarpInsertions;

  __device__ __forceinline__ static constexpr bool copies(bool) { return true; }

  // Copies the rows of a step whose keys begin at `key`, then signals `full`.
  template <class Layout, int kPanels>
  __device__ __forceinline__ static void copy(std::uint32_t to, const gpu::KeyRows& rows,
                                              const std::uint8_t* from, int key, int kv_len,
                                              std::uint32_t full, int thread) {
    constexpr int kThreads = kExtraWarps * gpu::kWarpSize, kRowThreads = sm90::kPanelRowBytes / 16;
    const int piece = thread % kRowThreads;
#pragma unroll 1
    for (int row = thread / kRowThreads; row < Layout::kStepKeys; row += kThreads / kRowThreads) {
      const bool is_key = key + row < kv_len;
      const std::uint8_t* row_from =
          from + (is_key ? kv_len - 1 - key - row : 0) * rows.strides.row;
      const std::uint32_t row_to =
          to + static_cast<std::uint32_t>(row * sm90::kPanelRowBytes + ((piece ^ row % 8) << 4));
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int byte = panel * sm90::kPanelRowBytes + 16 * piece;
        const bool exists = is_key && byte < rows.row_bytes;
        ptx::copy_16_async(row_to + panel * Layout::kPanelBytesKey, row_from + (exists ? byte : 0),
                           exists ? 16 : 0);
      }
    }
    ptx::copies_commit();
    ptx::copies_wait<0>();
    ptx::fence_async_shared();
    __syncwarp();
    ptx::mbarrier_arrive_warp(full, thread % gpu::kWarpSize);
  }

  template <class Layout>
  __device__ __forceinline__ static void run(const sm90::ForwardParams& p, std::uint32_t base,
                                             int thread) {
    ptx::wait_for_grid_before();
    ptx::Ring<Layout::kWorkTileSlots> work_tiles;
    ptx::Ring<Layout::kStages> steps;
    for (;; work_tiles.advance()) {
      ptx::mbarrier_wait(base + Layout::kWorkTileFull + 8 * work_tiles.stage, work_tiles.phase,
                         "reader: work tile full");
      const std::uint32_t slot =
          base + Layout::kItem + work_tiles.stage * Layout::kWorkTileSlotBytes;
      const gpu::BroadcastTile tile = gpu::read_work_tile(slot);
      if (tile.num_tiles == gpu::kNoWorkTile) return;
      const std::uint8_t* k = p.k_gather.strides.head_of(p.k_gather.data, tile.batch, tile.kv_head);
      const std::uint8_t* v = p.v_gather.strides.head_of(p.v_gather.data, tile.batch, tile.kv_head);
      gpu::TileWalk walk(gpu::segments_of<Layout>(p.plan, tile, slot), tile);
      for (int n = 0; n < tile.num_tiles; ++n) {
        TileStep step;
        gpu::TilePlace place;
        walk.next<true>(p.plan, step, place);
        for (int i = 0; i < Layout::kSteps; ++i, steps.advance()) {
          const int key = place.key_begin + i * Layout::kStepKeys;
          const std::uint32_t barrier = 8 * steps.stage;
          ptx::mbarrier_wait(base + Layout::kKEmpty + barrier, steps.phase ^ 1, "reader: K empty");
          copy<Layout, Layout::kPanelsQk>(base + Layout::kK + steps.stage * Layout::kKBytes,
                                          p.k_gather, k, key, place.kv_len,
                                          base + Layout::kKFull + barrier, thread);
          ptx::mbarrier_wait(base + Layout::kVEmpty + barrier, steps.phase ^ 1, "reader: V empty");
          copy<Layout, Layout::kPanelsV>(base + Layout::kV + steps.stage * Layout::kVBytes,
                                         p.v_gather, v, key, place.kv_len,
                                         base + Layout::kVFull + barrier, thread);
        }
      }
      __syncwarp();
      ptx::mbarrier_arrive_warp(base + Layout::kWorkTileEmpty + 8 * work_tiles.stage,
                                thread % gpu::kWarpSize);
    }
  }
};

TEST(KvReaderPolicy, ReversesKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr int kDim = PolicyCase::kHeadDim;
  PolicyCase test_case;
  test_case.forward({kDim, kDim, sm90::ForwardLayout<kDim, kDim>::kStepKeys,
                     sm90::launch_forward<__nv_bfloat16, gpu::LinearScore, gpu::NoWeight,
                                          ReversedKeys, kDim, kDim>});
  CellRules rules;
  rules.reverses_keys = true;
  const PolicyErrors errors = test_case.forward_errors(rules);
  EXPECT_LT(errors.out, 0.01);
  EXPECT_LT(errors.lse, 0.01);
  EXPECT_GT(test_case.forward_errors(CellRules{}).out, 0.1);
}

}  // namespace
}  // namespace fdma
