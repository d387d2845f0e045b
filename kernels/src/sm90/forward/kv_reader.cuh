// Policies of the forward kernel for reading keys and values (KvReader): who brings the rows of a
// step to shared memory. They are a type parameter of the kernel beside the element type.
//
// A reader has
//   kExtraWarps        warps beside the loading and computing ones; they call run
//   kInsertions        arrivals of these warps at the barriers of a step's K and V
//   kHasLists          work tiles end with index tiles, which no walk over tiles visits
//   kEndsInUnits       the last step of a work tile has only the keys that last_keys says
//   kTakesBiasTerms    biases may be terms of the product (bias_terms.cuh)
//   kTakesClosedForms  it runs closed-form plans
//   Part               what it knows of a work tile: the number of tiles before the index tiles,
//                      and whether an index tile is masked. take finds it when a work tile is taken and
//                      may shorten the work tile, broadcast and read pass it through shared memory
//   copies(is_listed)  the extra warps copy the rows of such a tile, else TMA does
//   run<Layout>        of the extra warps: copies rows, in the order of load_tiles
//
// Example     a reader that walks keys backwards: tests/gpu/sm90/test_attention_policies.cu
// See         FlashAttention-3's paged_kv.h
#pragma once

#include <cstdint>

#include "sm90/forward/gather.cuh"
#include "sm90/forward/params.hpp"

namespace fdma::sm90 {

/// Neighbouring rows by TMA, of the tensors or of their permuted copies.
struct ContiguousKeys {
  static constexpr int kExtraWarps = 0;
  static constexpr std::uint32_t kInsertions = 0;
  static constexpr bool kHasLists = false, kEndsInUnits = false, kTakesBiasTerms = false,
                        kTakesClosedForms = true;

  struct Part {
    static constexpr int num_tiles = 0;
    __device__ __forceinline__ static constexpr bool is_masked(int) { return false; }
  };
  __device__ __forceinline__ static Part take(const ForwardParams&, WorkTile&) { return {}; }
  __device__ __forceinline__ static void broadcast(std::uint32_t, const Part&) {}
  __device__ __forceinline__ static Part read(std::uint32_t) { return {}; }
  __device__ __forceinline__ static constexpr bool copies(bool) { return false; }
  template <class Score, bool kTerms>
  __device__ __forceinline__ static void write_index_tile(std::uint32_t, std::uint32_t,
                                                          const ForwardParams&, std::uint32_t,
                                                          std::uint32_t, int, bool, int) {}
};

/// Index tiles by index, by the warps of gather.cuh; other tiles by TMA.
struct IndexedKeys {
  static constexpr int kExtraWarps = kGatherWarps;
  static constexpr std::uint32_t kInsertions = kGatherWarps * ptx::kWarpInsertions;
  static constexpr bool kHasLists = true, kEndsInUnits = true, kTakesBiasTerms = true,
                        kTakesClosedForms = false;

  using Part = GatherDescriptor;
  __device__ __forceinline__ static Part take(const ForwardParams& p, WorkTile& work_tile) {
    return take_gather(p, work_tile);
  }
  __device__ __forceinline__ static void broadcast(std::uint32_t to, const Part& part) {
    broadcast_gather(to, part);
  }
  __device__ __forceinline__ static Part read(std::uint32_t from) { return read_gather(from); }
  __device__ __forceinline__ static constexpr bool copies(bool is_listed) { return is_listed; }
  /// Keys of a work tile's last step, whose part is broadcast at `from`.
  __device__ __forceinline__ static int last_keys(std::uint32_t from) {
    return ptx::load_word(from + GatherDescriptor::kLastKeysAt);
  }
  template <class Score, bool kTerms>
  __device__ __forceinline__ static void write_index_tile(std::uint32_t slot, std::uint32_t biases,
                                                          const ForwardParams& p,
                                                          std::uint32_t work_tile_address,
                                                          std::uint32_t part_address,
                                                          int index_tile, bool is_masked,
                                                          int lane) {
    sm90::write_index_tile<Score::kAddsKeyBias, kTerms>(slot, biases, p, work_tile_address,
                                                        part_address, index_tile, is_masked, lane);
  }
  template <class Layout>
  __device__ __forceinline__ static void run(const ForwardParams& p, std::uint32_t base,
                                             int thread) {
    gather_rows<Layout>(p, base, thread);
  }
};

}  // namespace fdma::sm90
