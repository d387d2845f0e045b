// Checks a backward call. Its inputs and results are checked like those of the forward call that it
// belongs to. Then the gradients are checked, which have the shapes of their tensors.
#include "call/backward_call.hpp"

#include <fmt/format.h>

#include "call/tensor_checks.hpp"

namespace fdma {
namespace {

// Checks a gradient in the type of its input, which `expected` states, or in float32.
Result<MutableStrided> checked_gradient(const MutableTensorView& gradient, ExpectedTensor expected,
                                        Device device) {
  const TensorView view = gradient;
  if (view.dtype != expected.dtype && view.dtype != DType::float32) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("{}: expected {}{}, got {}", expected.name, to_string(expected.dtype),
                    expected.dtype == DType::float32 ? "" : " or float32", to_string(view.dtype))};
  }
  expected.dtype = view.dtype;
  FDMA_TRY_VOID(check_rows(view, expected, device));
  FDMA_TRY_VOID(check_distinct(view, expected.name));
  return MutableStrided(gradient);
}

Result<void> set_bias_gradient(CheckedBackwardCall& call, const AttentionShape& shape,
                               const MutableTensorView& gradient, Device device) {
  if (gradient.data == nullptr) return {};
  if (call.key_bias.data == nullptr && shape.max_kv_len() > 0) {
    return Error{ErrorCode::invalid_argument,
                 "dkey_bias: is given, but the plan's score has no bias"};
  }
  FDMA_TRY_VOID(check_rows(gradient, expected_key_bias("dkey_bias", shape), device));
  FDMA_TRY_VOID(check_distinct(gradient, "dkey_bias"));
  call.dkey_bias = {static_cast<float*>(gradient.data), gradient.strides[0], gradient.strides[1]};
  return {};
}

// The gradient of a bias of pairs or of sinks, in its shape and type.
Result<PairValues<void>> checked_pair_gradient(const MutableTensorView& gradient,
                                               const TensorView& input,
                                               const PairValues<const void>& of,
                                               std::string_view name, std::string_view part,
                                               Device device) {
  if (gradient.data == nullptr) return PairValues<void>{};
  if (of.data == nullptr) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: is given, but the call has no {}", name, part)};
  }
  const ExpectedTensor expected{name, part, input.dtype, input.rank, input.extents, kMaxRank};
  FDMA_TRY_VOID(check_tensor(gradient, expected, device));
  if (input.rank == 4) FDMA_TRY_VOID(check_last_stride(gradient, name));
  FDMA_TRY_VOID(check_distinct(gradient, name));
  return pair_values<void>(gradient, of.heads_per_index);
}

Result<void> set_score_gradients(CheckedBackwardCall& call, const BackwardTensors& tensors,
                                 Device device) {
  FDMA_TRY(call.dbias,
           checked_pair_gradient(tensors.dbias, tensors.bias, call.bias, "dbias", "bias", device));
  FDMA_TRY(call.dsinks, checked_pair_gradient(tensors.dsinks, tensors.sinks, call.sinks, "dsinks",
                                              "sinks", device));
  call.dbias_view = tensors.dbias;
  call.dsinks_view = tensors.dsinks;
  const MutableTensorView& table = tensors.drelative;
  if (table.data == nullptr) return {};
  if (call.relative.data == nullptr) {
    return Error{ErrorCode::invalid_argument,
                 "drelative: is given, but the call has no relative table"};
  }
  const TensorView& input = tensors.relative;
  FDMA_TRY_VOID(check_rows(
      table, {"drelative", "that of relative", DType::float32, input.rank, input.extents, kMaxRank},
      device));
  FDMA_TRY_VOID(check_distinct(table, "drelative"));
  call.drelative = {static_cast<float*>(table.data), input.extents[0] == 1 ? 0 : table.strides[0],
                    call.relative.left, call.relative.right};
  call.drelative_view = table;
  return {};
}

bool corrects_delta(DeltaSource delta_source, const CheckedBackwardCall& call,
                    const AttentionShape& shape) {
  if (delta_source != DeltaSource::automatic) return delta_source == DeltaSource::corrected;
  if (shape.out_dtype == DType::float32) return false;
  const std::int64_t num_rows = shape.batch * shape.heads_q * shape.max_q_len();
  if (call.out_low.data != nullptr) return num_rows <= kVeryFewQueries;
  return call.dkey_bias.data != nullptr || num_rows <= kFewQueries;
}

}  // namespace

Result<CheckedBackwardCall> checked_backward_call(Direction direction, const AttentionShape& shape,
                                                  const ScoreSpec& score,
                                                  const BackwardTensors& tensors,
                                                  const BackwardOptions& options, Device device,
                                                  bool is_closed_form) {
  FDMA_TRY_VOID(check_direction(direction, Direction::backward));
  CheckedBackwardCall call;
  FDMA_TRY_VOID(check_inputs(shape, score, InputTensors(tensors), InputNumbers(options), device,
                             is_closed_form, call));
  FDMA_TRY_VOID(check_results(shape, tensors.out, tensors.out_low, tensors.lse, device));
  call.out = Strided(tensors.out);
  if (tensors.out_low.data != nullptr) call.out_low = Strided(tensors.out_low);
  if (tensors.lse.data != nullptr) call.lse = query_values<const float>(tensors.lse);
  if (call.lse.data == nullptr && shape.batch * shape.heads_q * shape.max_q_len() > 0) {
    return Error{ErrorCode::invalid_argument,
                 "lse: is missing; the forward call that gave out returns it"};
  }
  FDMA_TRY_VOID(check_rows(tensors.dout, expected_out("dout", shape), device));
  call.dout = Strided(tensors.dout);
  if (tensors.dlse.data != nullptr) {
    FDMA_TRY_VOID(check_tensor(tensors.dlse, expected_lse("dlse", shape), device));
    call.dlse = query_values<const float>(tensors.dlse);
  }
  FDMA_TRY(call.dq, checked_gradient(tensors.dq, expected_q("dq", shape, shape.q_dtype), device));
  FDMA_TRY(call.dk, checked_gradient(tensors.dk, expected_k("dk", shape, shape.k_dtype), device));
  FDMA_TRY(call.dv, checked_gradient(tensors.dv, expected_v("dv", shape, shape.v_dtype), device));
  FDMA_TRY_VOID(set_bias_gradient(call, shape, tensors.dkey_bias, device));
  FDMA_TRY_VOID(set_score_gradients(call, tensors, device));
  call.corrects_delta = corrects_delta(options.delta_source, call, shape);
  return call;
}

}  // namespace fdma
