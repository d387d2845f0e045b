// What both passes of attention read, checked.
#pragma once

#include <cmath>
#include <cstdint>

#include "call/strided.hpp"
#include "call/strided_views.hpp"
#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/direction.hpp"

namespace fdma {

/// The lengths and documents of one call of a closed-form plan. Those of the plan apply where a
/// pointer is null.
struct CallLengths {
  const std::int32_t* q_lens = nullptr;      ///< [batch]
  const std::int32_t* kv_lens = nullptr;     ///< [batch]
  const std::int32_t* cu_seqlens = nullptr;  ///< element b's at b * cu_seqlens_batch_stride
  std::int64_t cu_seqlens_batch_stride = 0;  ///< 0: all elements have the same documents
  /// Per batch element, where cu_seqlens is given; ClosedFormMask::first_border does not apply then
  std::int32_t num_borders = 0;
};

/// Made by checked_call and checked_backward_call.
struct CheckedInputs : CallLengths {
  Strided q, k, v;
  KeyValues<const float> key_bias{};
  float scale = 0;       ///< softmax scale
  float scale_log2 = 0;  ///< softmax scale times log2(e), because exponents are powers of two
  float softcap = 0;     ///< 0: none
  PairValues<const void> bias{};            ///< float32 or of q's type
  QueryValues<const float> alibi_slopes{};  ///< [batch, head]
  DistanceTable<const float> relative{};
  PairValues<const void> sinks{};  ///< a number for each row; float32 or of q's type
  Dropout dropout{};               ///< rate 0: none

  /// True iff the call has a part besides softcap and key bias.
  bool has_newer_parts() const {
    return bias.data != nullptr || alibi_slopes.data != nullptr || relative.data != nullptr ||
           sinks.data != nullptr || dropout.rate > 0;
  }

 protected:
  CheckedInputs() = default;
};

/// The tensors from which they are made.
struct InputTensors {
  const TensorView& q;
  const KvView& kv;
  const TensorView &key_bias, &q_lens, &kv_lens, &cu_seqlens;
  const TensorView &bias, &alibi_slopes, &relative, &sinks;

  template <class Tensors>
  explicit InputTensors(const Tensors& of)
      : q(of.q),
        kv(of.kv),
        key_bias(of.key_bias),
        q_lens(of.q_lens),
        kv_lens(of.kv_lens),
        cu_seqlens(of.cu_seqlens),
        bias(of.bias),
        alibi_slopes(of.alibi_slopes),
        relative(of.relative),
        sinks(of.sinks) {}
};

/// The numbers from which they are made: options of both passes, of the same names.
struct InputNumbers {
  template <class Options>
  explicit InputNumbers(const Options& options)
      : softmax_scale(options.softmax_scale),
        softcap(options.softcap),
        relative_left(options.relative_left),
        dropout(options.dropout),
        num_threads(options.num_threads) {}

  float softmax_scale;  ///< 0 stands for 1 / sqrt(head_dim)
  float softcap;        ///< given where the plan's score has one, and 0 elsewhere
  std::int64_t relative_left;
  Dropout dropout;  ///< a rate above 0 where the plan's score has dropout, and 0 elsewhere
  int num_threads;
};

/// Success if the plan is for this pass; otherwise unsupported, with the pass that it is for.
Result<void> check_direction(Direction of_plan, Direction of_call);

/// Sets `inputs`. `is_closed_form`: the plan takes lengths and documents, whose values are not
/// checked.
///
/// Errors      shape_mismatch, invalid_argument, unsupported
Result<void> check_inputs(const AttentionShape& shape, const ScoreSpec& score,
                          const InputTensors& tensors, const InputNumbers& numbers, Device device,
                          bool is_closed_form, CheckedInputs& inputs);

/// Checks the results of a forward call. `out_low` and `lse` may have no data. Errors: the same.
Result<void> check_results(const AttentionShape& shape, const TensorView& out,
                           const TensorView& out_low, const TensorView& lse, Device device);

}  // namespace fdma
