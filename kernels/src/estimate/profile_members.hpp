// The numbers of a device profile, listed once: validation, interpolation, scaling and JSON go through these tables.
#pragma once

#include <string_view>

#include "fdma/kernels/device_profile.hpp"

namespace fdma {

enum class NumberKind : std::uint8_t {
  time,      ///< microseconds, grows with the head size
  overhead,  ///< microseconds, whatever the head size
  share,     ///< of a time
};

/// A number of `Owner`.
template <class Owner>
struct NumberMember {
  std::string_view name;
  double Owner::*value;
  NumberKind kind = NumberKind::time;
  bool is_required = true;  ///< a JSON text without it is no profile; otherwise it is 0 there
  bool is_assumed = false;  ///< a JSON text without it has that of assumed_costs
};

inline constexpr NumberMember<StepCosts> kStepNumbers[] = {{"tile_us", &StepCosts::tile_us},
                                                           {"compute_us", &StepCosts::compute_us}};

/// The costs of tiles of each kind.
struct StepMember {
  std::string_view name;
  StepCosts TileCosts::*value;
};
inline constexpr StepMember kSteps[] = {{"full", &TileCosts::full},
                                        {"bitmap", &TileCosts::bitmap},
                                        {"rows", &TileCosts::rows},
                                        {"columns", &TileCosts::columns},
                                        {"gather", &TileCosts::gather}};

inline constexpr NumberMember<TileCosts> kTileNumbers[] = {
    {"item_us", &TileCosts::item_us},
    {"far_key_us", &TileCosts::far_key_us},
    {"split_us", &TileCosts::split_us, NumberKind::time, false, true}};

inline constexpr NumberMember<KernelCosts> kKernelNumbers[] = {
    {"launch_us", &KernelCosts::launch_us, NumberKind::overhead},
    {"ahead_us", &KernelCosts::ahead_us, NumberKind::time, false},
    {"sustained_slowdown", &KernelCosts::sustained_slowdown, NumberKind::share, false},
    {"gather_slowdown", &KernelCosts::gather_slowdown, NumberKind::share, false},
    {"combine_us", &KernelCosts::combine_us, NumberKind::overhead, false, true},
    {"combine_row_us", &KernelCosts::combine_row_us, NumberKind::time, false, true},
    {"move_us", &KernelCosts::move_us, NumberKind::overhead, false, true},
    {"moved_key_us", &KernelCosts::moved_key_us, NumberKind::time, false, true},
    {"ordered_share", &KernelCosts::ordered_share, NumberKind::share, false, true},
    {"correction_share", &KernelCosts::correction_share, NumberKind::share, false, true},
    {"softcap_share", &KernelCosts::softcap_share, NumberKind::share, false, true},
    {"bias_share", &KernelCosts::bias_share, NumberKind::share, false, true},
    {"alibi_share", &KernelCosts::alibi_share, NumberKind::share, false, true},
    {"relative_table_share", &KernelCosts::relative_table_share, NumberKind::share, false, true},
    {"dropout_share", &KernelCosts::dropout_share, NumberKind::share, false, true},
    {"list_launch_us", &KernelCosts::list_launch_us, NumberKind::overhead, false, true},
    {"list_us", &KernelCosts::list_us, NumberKind::overhead, false, true},
    {"list_entry_us", &KernelCosts::list_entry_us, NumberKind::overhead, false, true}};

/// The share of a part of the score. A part without one (key_bias, sink) costs no time.
struct ScoreShare {
  bool ScoreSpec::*part;
  double KernelCosts::*share;
};
inline constexpr ScoreShare kScoreShares[] = {
    {&ScoreSpec::softcap, &KernelCosts::softcap_share},
    {&ScoreSpec::bias, &KernelCosts::bias_share},
    {&ScoreSpec::alibi, &KernelCosts::alibi_share},
    {&ScoreSpec::relative_table, &KernelCosts::relative_table_share},
    {&ScoreSpec::dropout, &KernelCosts::dropout_share}};

/// `kernel` with what a plan adds to its work tiles where nobody measured it: from its full tiles,
/// the bandwidth of main memory and experiments on an H200 (docs/notes/cost-model.md).
KernelCosts assumed_costs(KernelCosts kernel, Backend backend, double memory_bytes_per_us);

inline constexpr NumberMember<DeviceProfile> kProfileNumbers[] = {
    {"memory_bytes_per_us", &DeviceProfile::memory_bytes_per_us},
    {"near_bytes", &DeviceProfile::near_bytes},
    {"far_bytes", &DeviceProfile::far_bytes},
    {"burst_us", &DeviceProfile::burst_us, NumberKind::time, false},
    {"sustained_us", &DeviceProfile::sustained_us, NumberKind::time, false}};

}  // namespace fdma
