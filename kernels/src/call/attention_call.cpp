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
  return call;
}

}  // namespace fdma
