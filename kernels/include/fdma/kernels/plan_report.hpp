// PlanReport: why a plan is as it is. It holds every choice that the planner made, the ways that it
// considered, and what each of them was predicted to cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fdma {

/// One way that the planner considered.
struct PlanAlternative {
  std::string name;  ///< for example "gather"
  /// Predicted microseconds of a call, as far as they depend on this choice; none where the way was
  /// not possible or could not pay.
  std::optional<double> cost_us = {};
  std::string reason = {};  ///< why there is no cost, or why it was taken in spite of it
};

/// A choice between at least one alternative.
struct PlanDecision {
  std::string subject;  ///< what was chosen, for example "columns"
  std::vector<PlanAlternative> alternatives;
  std::size_t taken = 0;  ///< index into alternatives
  std::string rule = {};  ///< by which the taken one is preferred, if not by least cost alone
};

/// The choices of one plan, in the order in which they were made:
///
///   heads of a tile   query heads that share a tile (PackMode)
///   columns           scan, gather or reorder (ColumnMode)
///   kv worklist       of backward plans
///   split             rows over several work tiles (SplitMode)
///   heads in L2       KV heads whose work tiles are taken together
///   reading           of learned top-k in place of all others: lists or scans, and heads of a tile
///
/// A choice that the backend does not have is left out. One that the options fix has one
/// alternative.
struct PlanReport {
  std::string profile;           ///< the device profile whose costs decided; empty: none
  bool is_assumed = false;       ///< some of these costs were not measured (KernelCosts)
  std::int32_t num_workers = 1;  ///< for which costs are predicted
  std::vector<PlanDecision> decisions;

  /// The decision of that subject; null if the planner made none.
  const PlanDecision* find(std::string_view subject) const;

  /// Reports are no part of what runs: plans that run the same are equal, whatever was considered.
  friend bool operator==(const PlanReport&, const PlanReport&) { return true; }
};

/// One line for the profile and one for each decision, the taken alternative first:
///
///     costs by h200, 132 workers
///     choice columns: gather 12.3 us; not scan 41.5 us, reorder (no keys with query intervals)
std::string to_text(const PlanReport& report);

}  // namespace fdma
