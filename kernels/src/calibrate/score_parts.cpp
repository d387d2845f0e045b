#include "calibrate/score_parts.hpp"

#include <algorithm>

#include "estimate/profile_members.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kTableSize = 2 * kMeasuredLeft + 1;

MutableTensorView view_of(void* data, DType dtype, std::initializer_list<std::int64_t> extents,
                          Device device) {
  MutableTensorView view =
      make_contiguous_mutable_view(data, dtype, static_cast<int>(extents.size()), extents.begin());
  view.device = device;
  return view;
}

MutableTensorView table_of(void* data, const PartMemory& memory) {
  return view_of(data, DType::float32, {1, kTableSize}, memory.device);
}

template <class Tensors>
void set_inputs(const ScoreSpec& score, const AttentionShape& shape, const PartMemory& memory,
                Tensors& tensors) {
  if (score.bias) {
    tensors.bias = view_of(memory.bias, shape.q_dtype,
                           {1, 1, shape.max_q_len(), shape.max_kv_len()}, memory.device)
                       .view();
  }
  if (score.alibi) {
    tensors.alibi_slopes =
        view_of(memory.numbers, DType::float32, {shape.heads_q}, memory.device).view();
  }
  if (score.relative_table) tensors.relative = table_of(memory.numbers, memory).view();
}

}  // namespace

std::vector<MeasuredPart> measured_parts(const ScoreSpec& computed) {
  std::vector<MeasuredPart> parts;
  for (const ScoreShare& each : kScoreShares) {
    if (!(computed.*each.part)) continue;
    MeasuredPart part{{}, each.share};
    part.score.*each.part = true;
    parts.push_back(part);
  }
  return parts;
}

std::vector<MeasuredPart> measured_parts(const BackendTraits& traits, Direction direction,
                                         std::int32_t head_dim) {
  ScoreSpec computed =
      direction == Direction::forward ? traits.forward_score : traits.backward_score;
  if (head_dim > traits.max_place_head_dim) {
#define FDMA_SCORE_PART(name, meaning) computed.name = computed.name && !traits.place_score.name;
#include "fdma/formats/score_parts.def"
  }
  return measured_parts(computed);
}

std::int64_t part_numbers(const AttentionShape& shape) {
  return std::max<std::int64_t>(shape.heads_q, kTableSize);
}

void set_part(const ScoreSpec& score, const AttentionShape& shape, const PartMemory& memory,
              AttentionTensors& tensors) {
  set_inputs(score, shape, memory, tensors);
}

void set_part(const ScoreSpec& score, const AttentionShape& shape, const PartMemory& memory,
              BackwardTensors& tensors) {
  set_inputs(score, shape, memory, tensors);
  if (score.relative_table) tensors.drelative = table_of(memory.gradient, memory);
}

}  // namespace fdma
