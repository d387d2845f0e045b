// DeviceProfile: what work costs on a device, as a handful of constants that were measured or
// derived, for the estimator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/formats/interval.hpp"
#include "fdma/formats/result.hpp"
#include "fdma/formats/tensor_view.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Which of the two passes of attention.
enum class Direction : std::uint8_t { forward, backward };
std::string_view to_string(Direction direction);
/// invalid_argument unless "forward" or "backward".
Result<Direction> parse_direction(std::string_view name);

/// float32, float16 or bfloat16, by name or as fp32, fp16, bf16.
Result<DType> parse_attention_dtype(std::string_view name);

/// Microseconds that one worker needs, all workers being busy, for tiles of one shape.
struct TileCosts {
  BlockShape tile;
  double full_tile_us = 0;    ///< no mask is read
  double bitmap_tile_us = 0;  ///< cells of a bitmap
  double row_tile_us = 0;     ///< key intervals per row
  double gather_chunk_us = 0;  ///< tile.block_kv scattered keys that all rows see; 0: not offered
  double masked_chunk_us = 0;  ///< the same where some rows do not see some keys; 0: not offered
  double item_us = 0;  ///< one work item beside its tiles: queries in, result out, bookkeeping

  bool can_gather() const { return gather_chunk_us > 0; }
  friend bool operator==(const TileCosts&, const TileCosts&) = default;
};

/// The costs of one kernel. Forward tiles are those of a plan; backward ones belong to a key tile
/// that walks its query tiles, block_q being the rows of one such step.
struct KernelCosts {
  Direction direction = Direction::forward;
  DType dtype = DType::float32;  ///< of keys and values
  std::int32_t head_dim = 128;
  double launch_us = 0;  ///< one call, whatever its size
  std::vector<TileCosts> tiles;  ///< by tile shape; the first is what runs unless asked otherwise
  friend bool operator==(const KernelCosts&, const KernelCosts&) = default;
};

/// What is known of one device.
///
/// Example     DeviceProfile h200 = *shipped_profile("h200");
/// Invariants  every number finite; times positive (gather costs: both 0 or both positive);
///             kernels differ in (direction, dtype, head_dim), tiles of a kernel in their shape.
///             validate checks
struct DeviceProfile {
  std::string name;
  std::string source;  ///< where the constants come from, in a sentence
  /// True for constants derived from published or exploratory figures; false for measured ones.
  bool is_provisional = true;
  std::int32_t num_workers = 1;  ///< threads, or SMs, for which the costs hold
  double memory_bytes_per_us = 0;  ///< of main memory, read and written together
  /// What a tile at the edge of the mask costs: its rows and keys are rounded up to these, and at
  /// most to the tile.
  std::int32_t row_granularity = 1;
  std::int32_t key_granularity = 1;
  std::vector<KernelCosts> kernels;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

/// invalid_argument, naming the first entry outside its range.
Result<void> validate(const DeviceProfile& profile);

/// Costs for any head size. A head size that the profile has is taken as it is. Between two of them
/// every cost is interpolated linearly; outside, costs of the nearest one are scaled by the ratio
/// of head sizes, those of items too; launch_us is kept. Where head_dim and head_dim_v differ,
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
