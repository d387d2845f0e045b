// The parts of module _fdma. Each function checks its arguments, releases the GIL and calls FDMA.
// Defaults, convenience and documentation for users belong to the Python package above the module.
#pragma once

#include <nanobind/nanobind.h>

namespace fdma::python {

/// BlockMask, to_dense, stored_array_specs.
void bind_block_mask(nanobind::module_& module);

/// compile.
void bind_masks(nanobind::module_& module);

/// AttentionPlan, PreparedPlan, make_plan, prepare, attention, cpu_target, available_backends,
/// release_workspaces, workspaces_nbytes.
void bind_attention(nanobind::module_& module);

/// attention_call, attention_backward_call.
void bind_attention_call(nanobind::module_& module);

/// CachedCalls.
void bind_cached_calls(nanobind::module_& module);

/// merge.
void bind_merge(nanobind::module_& module);

/// zoh_scores, IncrementalTopk.
void bind_select(nanobind::module_& module);

/// ExprNode, Expr, FinishedExpr, expr_node, named_node, parse_expr, finish_expr.
void bind_expr(nanobind::module_& module);

/// DeviceTopk, DeviceIncrementalTopk.
void bind_device_select(nanobind::module_& module);

/// DynamicMaskAttention.
void bind_dynamic_mask(nanobind::module_& module);

/// CusparseAttention, cusparse_version.
void bind_cusparse(nanobind::module_& module);

/// DeviceProfile, estimate.
void bind_estimate(nanobind::module_& module);

/// draw, picture, longest_row.
void bind_drawing(nanobind::module_& module);

/// <layout>_from_block_mask and block_mask_from_<layout> for every interop layout.
void bind_interop(nanobind::module_& module);

}  // namespace fdma::python
