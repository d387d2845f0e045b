// Checks a backward call. Its inputs are checked like those of the forward call that it belongs to.
// Then the gradients are checked, which have the shapes of their tensors.
#include "call/backward_call.hpp"

#include <fmt/format.h>

#include "call/tensor_checks.hpp"

namespace fdma {
namespace {

// The tensors of the forward call. It wrote out, lse and out_low, which are only read here.
AttentionTensors forward_tensors(const BackwardTensors& tensors) {
  const auto as_output = [](const TensorView& view) -> MutableTensorView {
    return {const_cast<void*>(view.data),
            view.dtype,
            view.device,
            view.rank,
            view.extents,
            view.strides};
  };
  AttentionTensors forward;
  forward.q = tensors.q;
  forward.kv = tensors.kv;
  forward.key_bias = tensors.key_bias;
  forward.out = as_output(tensors.out);
  forward.lse = as_output(tensors.lse);
  forward.out_low = as_output(tensors.out_low);
  forward.q_lens = tensors.q_lens;
  forward.kv_lens = tensors.kv_lens;
  forward.cu_seqlens = tensors.cu_seqlens;
  return forward;
}

// Checks a gradient in the type of its input, which `expected` states, or in float32.
Result<Strided> checked_gradient(const MutableTensorView& gradient, ExpectedTensor expected,
                                 Device device) {
  const TensorView view = gradient.view();
  if (view.dtype != expected.dtype && view.dtype != DType::float32) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("{}: expected {}{}, got {}", expected.name, to_string(expected.dtype),
                    expected.dtype == DType::float32 ? "" : " or float32", to_string(view.dtype))};
  }
  expected.dtype = view.dtype;
  FDMA_TRY_VOID(check_rows(view, expected, device));
  FDMA_TRY_VOID(check_distinct(view, expected.name));
  return strided(view);
}

Result<void> set_bias_gradient(BackwardCall& call, const AttentionShape& shape,
                               const MutableTensorView& gradient, Device device) {
  if (gradient.data == nullptr) return {};
  if (call.key_bias == nullptr && shape.max_kv_len() > 0) {
    return Error{ErrorCode::invalid_argument,
                 "dkey_bias: is given, but the plan's score has no bias"};
  }
  const TensorView view = gradient.view();
  FDMA_TRY_VOID(check_rows(view, expected_key_bias("dkey_bias", shape), device));
  FDMA_TRY_VOID(check_distinct(view, "dkey_bias"));
  call.dkey_bias = static_cast<float*>(gradient.data);
  call.dbias_batch_stride = view.strides[0];
  call.dbias_head_stride = view.strides[1];
  return {};
}

bool corrects_delta(DeltaSource delta_source, const BackwardCall& call,
                    const AttentionShape& shape) {
  if (delta_source != DeltaSource::automatic) return delta_source == DeltaSource::corrected;
  if (shape.out_dtype == DType::float32) return false;
  const std::int64_t num_rows = shape.batch * shape.heads_q * shape.max_q_len();
  if (call.out_low.data != nullptr) return num_rows <= kVeryFewQueries;
  return call.dkey_bias != nullptr || num_rows <= kFewQueries;
}

}  // namespace

Result<BackwardCall> checked_backward_call(Direction direction, const AttentionShape& shape,
                                           const ScoreSpec& score, const BackwardTensors& tensors,
                                           const BackwardOptions& options, Device device,
                                           bool is_closed_form) {
  FDMA_TRY_VOID(check_direction(direction, Direction::backward));
  AttentionOptions forward_options;
  forward_options.softmax_scale = options.softmax_scale;
  forward_options.num_threads = options.num_threads;
  BackwardCall call;
  FDMA_TRY(static_cast<AttentionCall&>(call),
           checked_call(shape, score, forward_tensors(tensors), forward_options, device,
                        is_closed_form));
  call.scale =
      options.softmax_scale != 0.0F ? options.softmax_scale : default_softmax_scale(shape.head_dim);
  if (call.lse == nullptr && shape.batch * shape.heads_q * shape.max_q_len() > 0) {
    return Error{ErrorCode::invalid_argument,
                 "lse: is missing; the forward call that gave out returns it"};
  }
  FDMA_TRY_VOID(check_rows(tensors.dout, expected_out("dout", shape), device));
  call.dout = strided(tensors.dout);
  if (tensors.dlse.data != nullptr) {
    FDMA_TRY_VOID(check_tensor(tensors.dlse, expected_lse("dlse", shape), device));
    call.dlse = static_cast<const float*>(tensors.dlse.data);
    call.dlse_batch_stride = tensors.dlse.strides[0];
    call.dlse_head_stride = tensors.dlse.strides[1];
    call.dlse_row_stride = tensors.dlse.strides[2];
  }
  FDMA_TRY(call.dq, checked_gradient(tensors.dq, expected_q("dq", shape, shape.q_dtype), device));
  FDMA_TRY(call.dk, checked_gradient(tensors.dk, expected_k("dk", shape, shape.k_dtype), device));
  FDMA_TRY(call.dv, checked_gradient(tensors.dv, expected_v("dv", shape, shape.v_dtype), device));
  FDMA_TRY_VOID(set_bias_gradient(call, shape, tensors.dkey_bias, device));
  call.corrects_delta = corrects_delta(options.delta_source, call, shape);
  return call;
}

}  // namespace fdma
