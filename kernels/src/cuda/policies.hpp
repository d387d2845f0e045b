// The names of the policies in score.cuh, for host code that chooses kernels by them, and what their
// arguments are made of.
#pragma once

#include "call/strided_views.hpp"

namespace fdma::gpu {

struct LinearScore;
struct KeyBiasScore;
struct SoftcapScore;
struct PartsScore;
struct NoWeight;
struct DropoutWeight;

/// The numbers of a call from which a score makes its arguments.
struct ScoreNumbers {
  float softmax_scale;
  float softcap;  ///< 0: none
  // Null where the call does not have the part.
  PairValues<const void> bias{};
  QueryValues<const float> alibi_slopes{};
  DistanceTable<const float> relative{};
  // Backward, null where they are not wanted. They are zero at launch.
  PairValues<void> dbias{};  ///< float32 where sums go over an axis
  bool sums_dbias = false;   ///< several pairs share an element of it
  DistanceTable<float> drelative{};
};

}  // namespace fdma::gpu
