#include "call/attention_call.hpp"

#include "call/tensor_checks.hpp"

namespace fdma {

Result<CheckedCall> checked_call(const AttentionShape& shape, const ScoreSpec& score,
                                 const AttentionTensors& tensors, const AttentionOptions& options,
                                 Device device, bool is_closed_form) {
  CheckedCall call;
  FDMA_TRY_VOID(check_inputs(shape, score, InputTensors(tensors), InputNumbers(options), device,
                             is_closed_form, call));
  FDMA_TRY_VOID(check_results(shape, tensors.out, tensors.out_low, tensors.lse, device));
  call.out = MutableStrided(tensors.out);
  if (tensors.out_low.data != nullptr) call.out_low = MutableStrided(tensors.out_low);
  if (tensors.lse.data != nullptr) call.lse = query_values<float>(tensors.lse);
  if (tensors.max_logit.data == nullptr) return call;
  if (device != Device::cpu) {
    return Error{ErrorCode::unsupported,
                 "max_logit: is computed on the CPU only; leave it out on a GPU"};
  }
  FDMA_TRY_VOID(check_tensor(
      tensors.max_logit,
      {"max_logit", "[heads_q]", DType::float32, 1, {shape.heads_q, 1, 1, 1}, kMaxRank}, device));
  FDMA_TRY_VOID(check_distinct(tensors.max_logit, "max_logit"));
  call.max_logit = static_cast<float*>(tensors.max_logit.data);
  call.max_logit_stride = tensors.max_logit.strides[0];
  return call;
}

}  // namespace fdma
