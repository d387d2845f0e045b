// Backends: the implementations of attention, what each of them computes, and which run here.
//
// The planner, the estimates and the callers ask a backend's traits. attention_backend.hpp is the
// interface by which a backend is added.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/direction.hpp"

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace fdma {

/// A CUDA stream of the calling thread's current device; nullptr: the default stream.
using Stream = CUstream_st*;

struct BackendTraits;

/// A registered backend. Plans and profiles name the backend that they are for.
class Backend {
 public:
  static const Backend cpu;
  static const Backend sm90;  ///< Hopper (H100, H200): wgmma and TMA. Its plans are made anywhere

  /// The backend that was registered as number `index`, which must exist.
  constexpr explicit Backend(std::uint8_t index) : index_(index) {}
  constexpr std::uint8_t index() const { return index_; }
  const BackendTraits& traits() const;
  friend constexpr bool operator==(Backend, Backend) = default;

 private:
  std::uint8_t index_;
};
inline constexpr Backend Backend::cpu{0};
inline constexpr Backend Backend::sm90{1};

/// The order in which a backend's kernels read the bits of a bitmap (plan/bitmap_order.hpp).
enum class BitmapOrder : std::uint8_t {
  key_major,         ///< column by column
  thread_fragments,  ///< two words for each of the 256 threads of a tile of 128 x 128
};

/// Gains below which the planner leaves things as they are, as shares of the predicted cost
/// (cost_model.hpp): its predictions are no better than that.
struct LeastGains {
  double row = 0.03;      ///< of a tile row: gathering its tiles or permuting its keys
  double mask = 0;        ///< of a mask: gathering at all, which another kernel may compute
  double split = 0.03;    ///< of a call: splitting rows
  double pack = 0.1;      ///< of a call: heads that share a tile
  double worklist = 0.1;  ///< of a call: a kv worklist in place of tiles
};

/// What a backend computes and how its plans are made.
struct BackendTraits {
  std::string_view name;        ///< as options, files and messages have it, for example "sm90"
  Device device = Device::cpu;  ///< where the tensors of its calls lie
  std::string_view worker = "thread";  ///< what computes one work tile at a time

  // What it computes.
  BlockShape tile{128, 128};   ///< queries and keys, unless PlanOptions::tile names others
  bool has_one_tile = false;   ///< no other tile
  bool needs_16_bits = false;  ///< q, k, v and out are all bfloat16 or all float16
  std::int32_t head_dim_multiple = 1;
  std::int32_t max_gather_head_dim = kMaxHeadDim;  ///< head sizes up to which it gathers
  ScoreSpec forward_score = {};   ///< the parts of a score that its forward calls compute
  ScoreSpec backward_score = {};  ///< the same of its backward calls, with their gradients
  /// Parts that depend on the place of a pair. A plan for one of them has tiles in the order of the
  /// keys alone: no kv index lists, no permutation, no kv worklist, and with dropout no packed heads.
  /// A softcap does not join them.
  ScoreSpec place_score = {};
  std::int32_t max_place_head_dim = kMaxHeadDim;  ///< head sizes up to which it computes them

  // How its plans are made.
  BitmapOrder bitmap_order = BitmapOrder::key_major;
  bool packs_heads = false;        ///< query heads of a group may share a tile (PackMode)
  std::int32_t split_workers = 0;  ///< workers that rows are split for by default; 0: never split
  bool reorders_keys = false;      ///< ColumnMode::automatic considers kv permutations
  bool has_kv_worklists = false;   ///< backward plans may be kv worklists
  LeastGains least_gains = {};
  /// The shipped device profile whose costs the planner compares unless PlanOptions::profile names
  /// another one. Empty: every tile costs 1 us, whatever its kind, and so does a work tile beside
  /// its tiles; splitting, gathering and permuting keys gain nothing.
  std::string_view profile = {};

  // What its calls cost beside their work tiles.
  bool copies_permuted_keys = false;  ///< rows of permuted keys are copied before the kernel
  bool has_query_passes = false;  ///< kernels before and after the backward one (query_passes.hpp)

  /// The head size that backward kernels compute, which pads with zeros; null: that of the shape.
  int (*backward_head_dim)(const AttentionShape& shape) = nullptr;
  /// Scratch memory of one worker on the host (AttentionPlan::worker_bytes); null: none.
  std::int64_t (*worker_bytes)(const AttentionShape& shape, BlockShape tile,
                               Direction direction) = nullptr;
};

std::string_view to_string(Backend backend);
/// The backend of that name. Errors: invalid_argument, which lists the names.
Result<Backend> parse_backend(std::string_view name);

/// All backends that this library knows, whether they run here or not, in the order of their
/// registration: cpu, sm90, those added by register_backend.
std::vector<Backend> registered_backends();

/// Checks that `backend` can run here.
///
/// Errors      unsupported, with the reason (not in this build, no GPU, a GPU of another
///             architecture) and the backends that can run
/// Cost        asks the CUDA runtime about the calling thread's current device
Result<void> check_backend(Backend backend);

/// The backends for which check_backend succeeds; cpu always.
std::vector<Backend> available_backends();

/// The first available backend whose tensors lie on a GPU, otherwise cpu. "auto" means this.
Backend default_backend();

/// The backend for tensors on `device`: cpu, or the first available one of a GPU. Where no GPU
/// backend is available it is the first one that is known, so that check_backend gives the reason.
Backend backend_for(Device device);

}  // namespace fdma
