// What each form of plans implements in the planner. AttentionPlan's functions (plan.hpp) visit the
// form and call these, so that a form that lacks one of them does not compile.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Checks the invariants of the form, and the counts of the header. The rest of the header has been
/// checked. Errors: internal, naming the first entry that breaks an invariant.
Result<void> validate(const PlanHeader& header, const SegmentPlan& plan);
Result<void> validate(const PlanHeader& header, const ClosedFormPlan& plan);
Result<void> validate(const PlanHeader& header, const KvWorklist& lists);

/// The whole text of the plan, with at most `max_shown` work tiles, or closed forms.
std::string to_text(const PlanHeader& header, const SegmentPlan& plan, std::int64_t max_shown);
std::string to_text(const PlanHeader& header, const ClosedFormPlan& plan, std::int64_t max_shown);
std::string to_text(const PlanHeader& header, const KvWorklist& lists, std::int64_t max_shown);

/// Number of work tiles; of a closed-form plan those that its own lengths make.
std::int64_t count_work_tiles(const PlanHeader& header, const SegmentPlan& plan);
std::int64_t count_work_tiles(const PlanHeader& header, const ClosedFormPlan& plan);
std::int64_t count_work_tiles(const PlanHeader& header, const KvWorklist& lists);

/// Bytes of all arrays, and of the numbers beside them.
std::int64_t size_bytes(const SegmentPlan& plan);
std::int64_t size_bytes(const ClosedFormPlan& plan);
std::int64_t size_bytes(const KvWorklist& lists);

}  // namespace fdma
