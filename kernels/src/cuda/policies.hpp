// The names of the policies in score.cuh, for host code that chooses kernels by them, and what their
// arguments are made of.
#pragma once

namespace fdma::gpu {

struct LinearScore;
struct KeyBiasScore;
struct SoftcapScore;
struct NoWeight;

/// The numbers of a call from which a score makes its arguments.
struct ScoreNumbers {
  float softmax_scale;
  float softcap;  ///< 0: none
};

}  // namespace fdma::gpu
