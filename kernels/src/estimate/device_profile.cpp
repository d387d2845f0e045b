// Names, validation and look-up of device profiles.
#include "fdma/kernels/device_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "estimate/profile_members.hpp"

namespace fdma {
namespace {

constexpr double kMaxMicroseconds = 1e9;
constexpr std::int32_t kMaxWorkers = 1 << 20;
constexpr double kMaxSlowdown = 100;

Error invalid(std::string message) {
  return Error{ErrorCode::invalid_argument, std::move(message)};
}

Result<void> check_time(const std::string& where, std::string_view member, double value) {
  if (std::isfinite(value) && value >= 0 && value <= kMaxMicroseconds) return {};
  return invalid(fmt::format("{}.{}: expected 0 or more microseconds up to {}, got {}", where,
                             member, kMaxMicroseconds, value));
}

Result<void> check_slowdown(const std::string& where, std::string_view member, double value) {
  if (value >= 0 && value <= kMaxSlowdown) return {};
  return invalid(
      fmt::format("{}.{}: expected 0 to {}, got {}", where, member, kMaxSlowdown, value));
}

template <class Owner>
Result<void> check_numbers(const std::string& where, const Owner& owner,
                           std::span<const NumberMember<Owner>> members) {
  for (const NumberMember<Owner>& each : members) {
    const double value = owner.*each.value;
    FDMA_TRY_VOID(each.kind == NumberKind::share ? check_slowdown(where, each.name, value)
                                                 : check_time(where, each.name, value));
  }
  return {};
}

Result<void> check_tile(const std::string& where, const TileCosts& costs) {
  for (const StepMember& each : kSteps) {
    const StepCosts& steps = costs.*each.value;
    const std::string place = fmt::format("{}.{}", where, each.name);
    FDMA_TRY_VOID(check_numbers<StepCosts>(place, steps, kStepNumbers));
    if (&steps != &costs.gather && steps.tile_us + steps.compute_us <= 0) {
      return invalid(fmt::format("{}: expected tile_us or compute_us above 0, got neither", place));
    }
  }
  FDMA_TRY_VOID(check_numbers<TileCosts>(where, costs, kTileNumbers));
  for (const std::int32_t side : {costs.tile.block_q, costs.tile.block_kv}) {
    if (side < 16 || side > kMaxBlockSide || side % 16 != 0) {
      return invalid(fmt::format("{}.tile: expected multiples of 16 from 16 to {}, got {}", where,
                                 kMaxBlockSide, side));
    }
  }
  return {};
}

Result<void> check_kernel(const std::string& where, const KernelCosts& kernel) {
  if (kernel.dtype != DType::float32 && kernel.dtype != DType::float16 &&
      kernel.dtype != DType::bfloat16) {
    return invalid(fmt::format("{}.dtype: expected float32, float16 or bfloat16, got {}", where,
                               to_string(kernel.dtype)));
  }
  if (kernel.head_dim < 1 || kernel.head_dim > kMaxHeadDim) {
    return invalid(
        fmt::format("{}.head_dim: expected 1 to {}, got {}", where, kMaxHeadDim, kernel.head_dim));
  }
  FDMA_TRY_VOID(check_numbers<KernelCosts>(where, kernel, kKernelNumbers));
  if (kernel.tiles.empty()) {
    return invalid(fmt::format("{}.tiles: expected at least one tile shape, got none", where));
  }
  for (std::size_t i = 0; i < kernel.tiles.size(); ++i) {
    FDMA_TRY_VOID(check_tile(fmt::format("{}.tiles[{}]", where, i), kernel.tiles[i]));
    for (std::size_t j = 0; j < i; ++j) {
      if (kernel.tiles[j].tile == kernel.tiles[i].tile) {
        return invalid(fmt::format("{}.tiles[{}]: {}x{} is there already", where, i,
                                   kernel.tiles[i].tile.block_q, kernel.tiles[i].tile.block_kv));
      }
    }
  }
  return {};
}

/// Checks two bounds of a ramp, which is 0 up to the first and 1 from the second: both are 0, or
/// they ascend.
Result<void> check_ramp(const char* low_name, double low, const char* high_name, double high) {
  const bool is_absent = low == 0 && high == 0;
  if (is_absent || (std::isfinite(high) && low > 0 && low < high)) return {};
  return invalid(fmt::format("{}, {}: expected both 0, or 0 < {} < {}, got {} and {}", low_name,
                             high_name, low_name, high_name, low, high));
}

bool is_same_kernel(const KernelCosts& a, const KernelCosts& b) {
  return a.direction == b.direction && a.dtype == b.dtype && a.head_dim == b.head_dim;
}

std::string list_kernels(const DeviceProfile& profile) {
  std::string text;
  for (const KernelCosts& kernel : profile.kernels) {
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", to_string(kernel.direction),
                        to_string(kernel.dtype), kernel.head_dim);
  }
  return text;
}

template <class Owner>
void interpolate(const Owner& low, const Owner& high, double weight,
                 std::span<const NumberMember<Owner>> members, Owner& result) {
  for (const NumberMember<Owner>& each : members) {
    result.*each.value = low.*each.value * (1 - weight) + high.*each.value * weight;
  }
}

/// Interpolates the tile shapes that both have, in the order of the first. An operation that one of
/// them lacks (gather) is lacking in the result, too.
std::vector<TileCosts> interpolate(const KernelCosts& low, const KernelCosts& high, double weight) {
  std::vector<TileCosts> tiles;
  for (const TileCosts& a : low.tiles) {
    const auto b = std::find_if(high.tiles.begin(), high.tiles.end(),
                                [&](const TileCosts& each) { return each.tile == a.tile; });
    if (b == high.tiles.end()) continue;
    TileCosts costs;
    costs.tile = a.tile;
    interpolate<TileCosts>(a, *b, weight, kTileNumbers, costs);
    for (const StepMember& each : kSteps) {
      if (each.value == &TileCosts::gather && !(a.can_gather() && b->can_gather())) continue;
      interpolate<StepCosts>(a.*each.value, (*b).*each.value, weight, kStepNumbers,
                             costs.*each.value);
    }
    tiles.push_back(costs);
  }
  return tiles;
}

template <class Owner>
void scale(Owner& owner, double factor, std::span<const NumberMember<Owner>> members) {
  for (const NumberMember<Owner>& each : members) {
    if (each.kind == NumberKind::time) owner.*each.value *= factor;
  }
}

KernelCosts scaled(KernelCosts kernel, double factor) {
  scale<KernelCosts>(kernel, factor, kKernelNumbers);
  for (TileCosts& costs : kernel.tiles) {
    scale<TileCosts>(costs, factor, kTileNumbers);
    for (const StepMember& each : kSteps) scale<StepCosts>(costs.*each.value, factor, kStepNumbers);
  }
  return kernel;
}

}  // namespace

Result<DType> parse_attention_dtype(std::string_view name) {
  if (name == "float32" || name == "fp32") return DType::float32;
  if (name == "float16" || name == "fp16") return DType::float16;
  if (name == "bfloat16" || name == "bf16") return DType::bfloat16;
  return invalid(fmt::format(
      "dtype: expected float32, float16, bfloat16, fp32, fp16 or bf16, got '{}'", name));
}

Result<void> validate(const DeviceProfile& profile) {
  if (profile.name.empty()) return invalid("name: expected a name, got none");
  if (profile.num_workers < 1 || profile.num_workers > kMaxWorkers) {
    return invalid(
        fmt::format("num_workers: expected 1 to {}, got {}", kMaxWorkers, profile.num_workers));
  }
  if (!std::isfinite(profile.memory_bytes_per_us) || profile.memory_bytes_per_us <= 0) {
    return invalid(fmt::format("memory_bytes_per_us: expected a finite number above 0, got {}",
                               profile.memory_bytes_per_us));
  }
  if (profile.stripe_rows < 16 || profile.stripe_rows > kMaxBlockSide ||
      profile.stripe_rows % 16 != 0) {
    return invalid(fmt::format("stripe_rows: expected a multiple of 16 from 16 to {}, got {}",
                               kMaxBlockSide, profile.stripe_rows));
  }
  FDMA_TRY_VOID(check_ramp("near_bytes", profile.near_bytes, "far_bytes", profile.far_bytes));
  FDMA_TRY_VOID(check_ramp("burst_us", profile.burst_us, "sustained_us", profile.sustained_us));
  if (profile.kernels.empty()) return invalid("kernels: expected at least one, got none");
  for (std::size_t i = 0; i < profile.kernels.size(); ++i) {
    const KernelCosts& kernel = profile.kernels[i];
    FDMA_TRY_VOID(check_kernel(fmt::format("kernels[{}]", i), kernel));
    for (std::size_t j = 0; j < i; ++j) {
      if (is_same_kernel(profile.kernels[j], kernel)) {
        return invalid(fmt::format("kernels[{}]: {} {} {} is there already", i,
                                   to_string(kernel.direction), to_string(kernel.dtype),
                                   kernel.head_dim));
      }
    }
  }
  return {};
}

Result<KernelCosts> kernel_costs(const DeviceProfile& profile, Direction direction, DType dtype,
                                 double head_dim) {
  const KernelCosts* low = nullptr;   // largest head size up to head_dim
  const KernelCosts* high = nullptr;  // smallest head size from head_dim on
  for (const KernelCosts& kernel : profile.kernels) {
    if (kernel.direction != direction || kernel.dtype != dtype) continue;
    if (kernel.head_dim <= head_dim && (low == nullptr || kernel.head_dim > low->head_dim)) {
      low = &kernel;
    }
    if (kernel.head_dim >= head_dim && (high == nullptr || kernel.head_dim < high->head_dim)) {
      high = &kernel;
    }
  }
  if (low == nullptr && high == nullptr) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("device profile '{}' has no costs for {} in {}; it has {}", profile.name,
                    to_string(direction), to_string(dtype), list_kernels(profile))};
  }
  if (low == nullptr || high == nullptr) {
    const KernelCosts& nearest = low == nullptr ? *high : *low;
    KernelCosts costs = scaled(nearest, head_dim / nearest.head_dim);
    costs.head_dim = static_cast<std::int32_t>(std::lround(head_dim));
    return costs;
  }
  if (low == high) return *low;
  const double weight = (head_dim - low->head_dim) / (high->head_dim - low->head_dim);
  KernelCosts costs = *low;
  costs.head_dim = static_cast<std::int32_t>(std::lround(head_dim));
  interpolate<KernelCosts>(*low, *high, weight, kKernelNumbers, costs);
  costs.is_provisional = low->is_provisional || high->is_provisional;
  costs.is_assumed = low->is_assumed || high->is_assumed;
  costs.tiles = interpolate(*low, *high, weight);
  if (costs.tiles.empty()) {
    return Error{ErrorCode::unsupported,
                 fmt::format("device profile '{}' has no tile shape for both head_dim {} and {}, "
                             "between which {} lies",
                             profile.name, low->head_dim, high->head_dim, head_dim)};
  }
  return costs;
}

}  // namespace fdma
