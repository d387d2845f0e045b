// DeviceProfile: the cost of work on a device as a handful of constants, measured or derived, for
// the estimator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// float32, float16 or bfloat16, by name or as fp32, fp16, bf16.
Result<DType> parse_attention_dtype(std::string_view name);

/// What tiles of one kind cost one worker while all workers are busy, in microseconds. The two
/// costs add up, unless the kernel finds masks beside its computation
/// (KernelCosts::overlaps_masks).
struct StepCosts {
  double tile_us = 0;     ///< each tile or index tile: finding its keys and its mask
  double compute_us = 0;  ///< each tile's worth (block_q * block_kv) of cells computed in it
  friend bool operator==(const StepCosts&, const StepCosts&) = default;
};

/// The costs of tiles of one shape.
struct TileCosts {
  BlockShape tile;
  StepCosts full;      ///< no mask is read
  StepCosts bitmap;    ///< cells of a bitmap
  StepCosts rows;      ///< key intervals per row
  StepCosts columns;   ///< query intervals per key
  StepCosts gather;    ///< index tiles of a kv index list; all 0 where the kernel does not gather
  double item_us = 0;  ///< one work tile beside its tiles: queries in, result out, bookkeeping
  /// Added for each key that a tile or index tile computes, where keys and values miss L2.
  double far_key_us = 0;
  /// Added for a work tile of a split row, which writes a partial result in float32.
  double split_us = 0;

  bool can_gather() const { return gather.compute_us > 0; }
  friend bool operator==(const TileCosts&, const TileCosts&) = default;
};

/// The costs of one kernel. Forward, tiles are those of a plan. Backward, a tile is one step of a
/// key tile through its query tiles, and block_q is the number of rows of that step.
struct KernelCosts {
  Direction direction = Direction::forward;
  DType dtype = DType::float32;  ///< of keys and values
  std::int32_t head_dim = 128;
  double launch_us = 0;          ///< one call, whatever its size
  std::vector<TileCosts> tiles;  ///< by tile shape; the first is what runs unless asked otherwise
  /// As DeviceProfile::is_provisional, for this kernel only.
  bool is_provisional = false;
  /// True where a worker finds masks while it computes other tiles. A work tile then costs the
  /// longer of two sums: all tile_us, or all compute_us. The tile_us of an index tile is the cost
  /// of its computation however few keys it has, and adds to compute_us.
  bool overlaps_masks = false;
  /// The time before the end of a work tile at which a worker takes the next one.
  double ahead_us = 0;
  /// The share by which a call that lasts DeviceProfile::sustained_us is slower.
  double sustained_slowdown = 0;
  /// The same share for index tiles, which lose less. A call is slowed by each share according to
  /// the time that its tiles and its index tiles take. Files without it use that of tiles.
  double gather_slowdown = 0;
  // What a plan adds to its work tiles, TileCosts::split_us among it.
  double combine_us = 0;        ///< combining split rows: its launch and latency
  double combine_row_us = 0;    ///< the same: a query row of a partial result, read by all workers
  double move_us = 0;           ///< copying the keys of kv permutations: its launch
  double moved_key_us = 0;      ///< the same: a key of one KV head, copied by all workers
  double ordered_share = 0;     ///< backward: accumulating dq in a fixed order, as a share
  double correction_share = 0;  ///< backward: the correction pass of DeltaSource::corrected
  double list_launch_us = 0;    ///< making the kv index lists of a selection on the device
  double list_us = 0;           ///< the same: each list
  double list_entry_us = 0;     ///< the same: each entry
  // What parts of a score add, as shares of what tiles compute. Those here are assumed.
  double softcap_share = 0.2;
  double bias_share = 0.1;  ///< beside the bytes of the bias
  double alibi_share = 0.05;
  double relative_table_share = 0.2;
  double dropout_share = 0.3;
  /// True where some of what a plan adds was not measured. Files that were written before
  /// calibration measured all of it lack members, which are assumed.
  bool is_assumed = false;
  friend bool operator==(const KernelCosts&, const KernelCosts&) = default;
};

/// What is known of one device.
///
/// Example     DeviceProfile h200 = *shipped_profile("h200");
/// Invariants  every number is finite and not negative
///             the cost of a full tile, and the sum of both costs of every kind but gather, are
///             positive
///             kernels differ in (direction, dtype, head_dim), tiles of a kernel in their shape
///             validate checks all of these
struct DeviceProfile {
  std::string name;
  std::string source;  ///< where the constants come from, in a sentence
  /// True for constants derived from published or exploratory figures; false for measured ones.
  bool is_provisional = true;
  /// The backend whose plans run on the device (forward); estimate makes plans for it.
  Backend backend = Backend::cpu;
  std::int32_t num_workers = 1;    ///< threads, or SMs, for which the costs hold
  double memory_bytes_per_us = 0;  ///< of main memory, read and written together
  /// Keys and values hit L2 while those that a worker passes through before it is back at the same
  /// ones fit in near_bytes. They miss it from far_bytes on. In between the share of misses grows
  /// by the logarithm. Both 0: they always hit.
  double near_bytes = 0;
  double far_bytes = 0;
  /// The number of rows that are computed together, counted from the first row of a tile. A stripe
  /// is this number of rows by one key. It is computed if its key exists and, where
  /// skips_dead_keys, one of its rows sees the key. Without skips_dead_keys every tile counts
  /// whole.
  std::int32_t stripe_rows = 16;  ///< a multiple of 16
  bool skips_dead_keys = false;
  /// Calls of up to burst_us run at full clocks. A power limit slows calls of sustained_us and more
  /// by the sustained_slowdown of their kernel (index tiles by its gather_slowdown). In between the
  /// slowdown grows by the logarithm. Both 0: there is no such limit.
  double burst_us = 0;
  double sustained_us = 0;
  std::vector<KernelCosts> kernels;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

/// Checks the invariants. Errors: invalid_argument, naming the first entry outside its range.
Result<void> validate(const DeviceProfile& profile);

/// Costs for any head size. A head size of the profile is taken as it is. Between two of them every
/// cost is interpolated linearly. Outside them, the costs of the nearest one, those of work tiles
/// included, are scaled by the ratio of head sizes; all else is kept. Where head_dim and head_dim_v
/// differ, their mean is the head size: each matrix product of a tile grows with its own.
///
/// Errors      unsupported if the profile has nothing for dtype and direction; the message names
///             what it has
Result<KernelCosts> kernel_costs(const DeviceProfile& profile, Direction direction, DType dtype,
                                 double head_dim);

/// The profile as JSON text, version 1 (docs/estimates.md), and back. The text is untrusted: every
/// member is checked, unknown ones are errors. Round trips are exact.
///
/// Errors      corrupt_file for text that is no profile, naming the member; invalid_argument as
///             validate
std::string to_json(const DeviceProfile& profile);
Result<DeviceProfile> profile_from_json(std::string_view text);

/// Reads a profile. Errors: io if the file cannot be read or exceeds 4 MiB; otherwise those of
/// profile_from_json, with the path first.
Result<DeviceProfile> read_profile(const std::string& path);

/// The names of the profiles that come with the library, and one of the profiles. Errors:
/// invalid_argument for another name.
std::vector<std::string_view> shipped_profile_names();
Result<DeviceProfile> shipped_profile(std::string_view name);

/// The shipped profile by which plans for `backend` are made unless PlanOptions::profile names
/// another one (BackendTraits::profile); null if the backend has none. Read once.
std::shared_ptr<const DeviceProfile> default_profile(Backend backend);

}  // namespace fdma
