// DeviceProfile: what work costs on a device, as a handful of constants that were measured or
// derived, for the estimator.
#pragma once

#include <cstdint>
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

/// What tiles of one kind cost one worker, all workers being busy, in microseconds. The two add up,
/// unless the kernel finds masks beside its computation (KernelCosts::overlaps_masks).
struct StepCosts {
  double tile_us = 0;     ///< each tile or chunk: finding its keys and its mask
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
  StepCosts gather;    ///< chunks of a gather list; all 0 where the kernel does not gather
  double item_us = 0;  ///< one work item beside its tiles: queries in, result out, bookkeeping
  /// Each key that a tile or chunk computes, besides, where keys and values come from far away.
  double far_key_us = 0;

  bool can_gather() const { return gather.compute_us > 0; }
  friend bool operator==(const TileCosts&, const TileCosts&) = default;
};

/// The costs of one kernel. Forward tiles are those of a plan; backward ones belong to a key tile
/// that walks its query tiles, block_q being the rows of one such step.
struct KernelCosts {
  Direction direction = Direction::forward;
  DType dtype = DType::float32;  ///< of keys and values
  std::int32_t head_dim = 128;
  double launch_us = 0;          ///< one call, whatever its size
  std::vector<TileCosts> tiles;  ///< by tile shape; the first is what runs unless asked otherwise
  /// As DeviceProfile::is_provisional, for this kernel alone.
  bool is_provisional = false;
  /// True where a worker finds masks while it computes other tiles: of an item, the longer of all
  /// tile_us together and all compute_us together counts. The tile_us of a gather chunk is what it
  /// costs to compute however few keys it has, and adds to compute_us.
  bool overlaps_masks = false;
  /// A worker takes its next item so long before it is done with the one in hand.
  double ahead_us = 0;
  /// Share of its time by which a call that lasts DeviceProfile::sustained_us is slower.
  double sustained_slowdown = 0;
  /// The same of gather chunks, which lose less: of a call, each by what it takes of it. Files
  /// without it: that of tiles.
  double gather_slowdown = 0;
  friend bool operator==(const KernelCosts&, const KernelCosts&) = default;
};

/// What is known of one device.
///
/// Example     DeviceProfile h200 = *shipped_profile("h200");
/// Invariants  every number finite and not negative; a full tile, and the sum of both costs of
///             every kind but gather, positive; kernels differ in (direction, dtype, head_dim),
///             tiles of a kernel in their shape. validate checks
struct DeviceProfile {
  std::string name;
  std::string source;  ///< where the constants come from, in a sentence
  /// True for constants derived from published or exploratory figures; false for measured ones.
  bool is_provisional = true;
  /// Whose plans run there (forward): estimate makes them for this backend.
  Backend backend = Backend::cpu;
  std::int32_t num_workers = 1;    ///< threads, or SMs, for which the costs hold
  double memory_bytes_per_us = 0;  ///< of main memory, read and written together
  /// Keys and values are near while those that a worker passes through before it is back at the
  /// same ones fit in near_bytes, far from far_bytes on, and in between by the logarithm. Both 0:
  /// always near.
  double near_bytes = 0;
  double far_bytes = 0;
  /// Rows that are computed together, from the first of a tile on: cells are counted in stripes of
  /// so many rows by one key. A stripe is computed if its key exists and, where skips_dead_keys,
  /// one of its rows sees the key; without skips_dead_keys every tile counts whole.
  std::int32_t stripe_rows = 16;  ///< a multiple of 16
  bool skips_dead_keys = false;
  /// Calls of up to burst_us run at full clocks. A power limit slows those of sustained_us and more
  /// by the sustained_slowdown of their kernel, chunks by its gather_slowdown, in between by the
  /// logarithm. Both 0: no such limit.
  double burst_us = 0;
  double sustained_us = 0;
  std::vector<KernelCosts> kernels;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

/// invalid_argument, naming the first entry outside its range.
Result<void> validate(const DeviceProfile& profile);

/// Costs for any head size. A head size that the profile has is taken as it is. Between two of them
/// every cost is interpolated linearly; outside, costs of the nearest one are scaled by the ratio
/// of head sizes, those of items too; all else is kept. Where head_dim and head_dim_v differ,
/// their mean is the head size: both matrix products of a tile grow with their own.
///
/// Errors  unsupported, naming what the profile has, if it has nothing for dtype and direction
Result<KernelCosts> kernel_costs(const DeviceProfile& profile, Direction direction, DType dtype,
                                 double head_dim);

/// The profile as JSON text, version 1 (docs/estimates.md), and back. Text is untrusted: every
/// member is checked, unknown ones are errors. Round trips are exact.
///
/// Errors  corrupt_file for text that is no profile, naming the member; invalid_argument as
///         validate
std::string to_json(const DeviceProfile& profile);
Result<DeviceProfile> profile_from_json(std::string_view text);

/// io if the file cannot be read or exceeds 4 MiB; otherwise as profile_from_json, the path first.
Result<DeviceProfile> read_profile(const std::string& path);

/// Names of the profiles that come with the library, and one of them; invalid_argument for another
/// name.
std::vector<std::string_view> shipped_profile_names();
Result<DeviceProfile> shipped_profile(std::string_view name);

}  // namespace fdma
