// Evaluates expressions for up to 256 cells at once. This is the general way, for vectors of
// per-query, per-key and per-diagonal values and for cells that no faster form covers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "boxes/program.hpp"

namespace fdma::box {

/// Evaluates some nodes of a program lane by lane, in three-valued logic.
///
/// Example     LaneEvaluator lanes(program, outputs, inputs);
///             lanes.values(input)[i] = ...;
///             lanes.run(200);
///             lanes.true_bits(output)[0] & 1
/// Inputs      nodes whose lanes the caller provides (q and k always are inputs where they are
///             reached); nodes below an input are not evaluated
/// Undefined   integers: a bit per lane in undefined_bits; conditions: neither true nor false
/// Cost        about 0.3 ns per lane and node; more for table lookups, divisions and nodes that may
///             overflow
///             loops count their evaluations on a meter; once it has stopped the work, run returns
///             early and the lanes mean nothing
class LaneEvaluator {
 public:
  static constexpr int kLanes = 256;
  static constexpr int kWords = kLanes / 64;

  /// `meter` may be null. `num_runs` is a lower bound of the number of runs to come, of as many
  /// lanes: a loop that cannot end within what the meter has left for these runs is stopped early.
  LaneEvaluator(const BoxProgram& program, std::span<const IrId> outputs,
                std::span<const IrId> inputs, WorkMeter* meter, std::int64_t num_runs);
  LaneEvaluator(const LaneEvaluator&) = delete;
  LaneEvaluator& operator=(const LaneEvaluator&) = delete;

  bool reaches(IrId id) const { return slot_index_[static_cast<std::size_t>(id)] >= 0; }
  /// The evaluator's own lanes of an integer node, to be filled for an input.
  std::int64_t* values(IrId id) { return slot(id).own_values; }
  std::uint64_t* undefined_bits(IrId id) { return slot(id).own_first; }
  std::uint64_t* true_bits(IrId id) { return slot(id).own_first; }
  std::uint64_t* false_bits(IrId id) { return slot(id).own_second; }
  /// Makes an integer input read from `values`, at least 64 * ceil(lanes / 64) of them.
  void set_values(IrId id, const std::int64_t* values) { slot(id).values = values; }
  /// Sets all lanes of q, k or another integer input, or of a condition input.
  void fill(IrId id, std::int64_t value, bool is_undefined);
  void fill_condition(IrId id, bool is_true, bool is_false);
  /// Sets lane i of an integer input to first + i * step.
  void fill_ramp(IrId id, std::int64_t first, std::int64_t step);

  /// Evaluates lanes [0, num_lanes).
  void run(int num_lanes);

  /// The reason why lane 0 of a node is undefined after run(1), for example "division by 0".
  std::string culprit(IrId id);

 private:
  struct Slot {
    const std::int64_t* values = nullptr;
    std::int64_t* own_values = nullptr;
    std::uint64_t* own_first = nullptr;   ///< undefined (integers), true (conditions)
    std::uint64_t* own_second = nullptr;  ///< false (conditions)
  };
  Slot& slot(IrId id) {
    return slots_[static_cast<std::size_t>(slot_index_[static_cast<std::size_t>(id)])];
  }
  Slot& child(const IrNode& node, int c) { return slot(node.children[c]); }

  std::vector<IrId> body_of(IrId loop) const;
  void run_steps(const std::vector<IrId>& steps);
  void step(IrId id);
  void integer_step(const IrNode& node, Slot& out, bool is_checked);
  void division_step(const IrNode& node, Slot& out, bool is_checked);
  void lookup_step(IrId id, const IrNode& node, Slot& out);
  void compare_step(const IrNode& node, Slot& out);
  void logic_step(const IrNode& node, Slot& out);
  void loop_step(IrId id, const IrNode& node, Slot& out);
  void set_variable(IrId loop, std::int64_t value);
  bool spend(std::int64_t evaluations, std::int64_t turns);

  const BoxProgram& program_;
  WorkMeter* const meter_;
  const double num_runs_;
  double outer_turns_ = 1;  ///< product of the turns left in the loops around the current one
  std::int64_t work_ = 0;   ///< evaluations in loops, by all runs
  std::int64_t work_counted_ = 0;  ///< those of work_ that the meter has counted
  std::vector<IrId> steps_;
  std::unordered_map<IrId, std::vector<IrId>> bodies_;  ///< steps of each loop's body
  std::vector<std::int32_t> slot_index_;                ///< by node, -1 outside the cone
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> storage_;
  int num_lanes_ = 0;
  int num_words_ = 0;
};

}  // namespace fdma::box
