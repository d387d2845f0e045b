// The form of a plan, for tests that know which one it has. Another form throws.
#pragma once

#include <variant>

#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

inline const SegmentPlan& segments_of(const AttentionPlan& plan) {
  return std::get<SegmentPlan>(plan.form);
}
inline SegmentPlan& segments_of(AttentionPlan& plan) { return std::get<SegmentPlan>(plan.form); }

inline const ClosedFormPlan& closed_forms_of(const AttentionPlan& plan) {
  return std::get<ClosedFormPlan>(plan.form);
}
inline ClosedFormPlan& closed_forms_of(AttentionPlan& plan) {
  return std::get<ClosedFormPlan>(plan.form);
}

inline const KvWorklist& worklist_of(const AttentionPlan& plan) {
  return std::get<KvWorklist>(plan.form);
}
inline KvWorklist& worklist_of(AttentionPlan& plan) { return std::get<KvWorklist>(plan.form); }

inline bool has_worklist(const AttentionPlan& plan) {
  return std::holds_alternative<KvWorklist>(plan.form);
}
inline bool is_closed_form(const AttentionPlan& plan) {
  return std::holds_alternative<ClosedFormPlan>(plan.form);
}

}  // namespace fdma::testing
