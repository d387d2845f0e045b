// Parts of a score whose shares (KernelCosts) calibration measures: calls of full tiles that have one
// of them alone, beside calls without.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/score_spec.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma {

/// A score of one part, and where its share belongs.
struct MeasuredPart {
  ScoreSpec score;
  double KernelCosts::*share = nullptr;
};
/// Those of the parts with a share that a backend computes (BackendTraits).
std::vector<MeasuredPart> measured_parts(const ScoreSpec& computed);
/// Those that a backend computes with heads of that size.
std::vector<MeasuredPart> measured_parts(const BackendTraits& traits, Direction direction,
                                         std::int32_t head_dim);

inline constexpr std::int64_t kMeasuredLeft = 128;  ///< relative has 2 * 128 + 1 distances
inline constexpr float kMeasuredSoftcap = 30;
inline constexpr double kMeasuredRate = 0.1;

/// The options of the call of a part, forward or backward.
template <class Options>
void set_numbers(const ScoreSpec& score, Options& options) {
  if (score.softcap) options.softcap = kMeasuredSoftcap;
  if (score.relative_table) options.relative_left = kMeasuredLeft;
  if (score.dropout) options.dropout = {kMeasuredRate, 1, 0, nullptr, nullptr};
}

/// Memory for the tensors of every part: a bias for all batch elements and heads, which hits L2;
/// slopes and a table, both of zeros, and the gradient of the table.
struct PartMemory {
  void* bias = nullptr;      ///< [max_q_len, max_kv_len] of q's type
  void* numbers = nullptr;   ///< part_numbers(shape) float32
  void* gradient = nullptr;  ///< the same number
  Device device = Device::cpu;
};
std::int64_t part_numbers(const AttentionShape& shape);

/// The tensors of a score of one part. A backward call computes the gradient of the table, not that
/// of the bias.
void set_part(const ScoreSpec& score, const AttentionShape& shape, const PartMemory& memory,
              AttentionTensors& tensors);
void set_part(const ScoreSpec& score, const AttentionShape& shape, const PartMemory& memory,
              BackwardTensors& tensors);

}  // namespace fdma
