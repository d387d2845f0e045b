// Policies of the main backward kernel for the keys of its tile groups (KvReader): where they come
// from, and with them masks and the places of their gradients. They are a type parameter of the
// kernel beside the element type.
//
// A reader has
//   kIsListed       keys are entries of a list, copied row by row by the computing warps, and their
//                   gradients go to the rows that the entries name; else a tile group is 128
//                   neighbouring keys, which TMA copies
//   kKeyArrivals    warps that arrive when K and V of a tile group are there
//   broadcast       broadcasts tile group `index`
//   make_masks      the work of the mask warps
#pragma once

#include <cstdint>

#include "sm90/backward/key_tiles.cuh"
#include "sm90/backward/worklist.cuh"

namespace fdma::sm90 {

/// Tiles of neighbouring keys of a plan.
struct KeyTiles {
  static constexpr bool kIsListed = false;
  static constexpr int kKeyArrivals = 1;

  template <class Layout>
  __device__ __forceinline__ static void broadcast(const BackwardParams& p, std::uint32_t slot,
                                                   int index) {
    if (p.plan.num_closed_forms > 0) {
      broadcast_row<Layout>(p, slot, index);
    } else {
      broadcast_work_tile(p, slot, index);
    }
  }
  template <class Layout>
  __device__ __forceinline__ static void make_masks(const BackwardParams& p, std::uint32_t base,
                                                    int warp, int) {
    make_tile_group_masks<Layout>(p, base, warp);
  }
};

/// The keys of a kv worklist.
struct WorklistKeys {
  static constexpr bool kIsListed = true;
  static constexpr int kKeyArrivals = kComputeWarps;

  template <class Layout>
  __device__ __forceinline__ static void broadcast(const BackwardParams& p, std::uint32_t slot,
                                                   int index) {
    broadcast_worklist_entry(p, slot, index);
  }
  template <class Layout>
  __device__ __forceinline__ static void make_masks(const BackwardParams& p, std::uint32_t base,
                                                    int warp, int lane) {
    make_listed_masks<Layout>(p, base, warp, lane);
  }
};

}  // namespace fdma::sm90
