// The names of the policies in score.cuh, for host code that chooses kernels by them.
#pragma once

namespace fdma::gpu {

struct LinearScore;
struct KeyBiasScore;
struct NoWeight;

}  // namespace fdma::gpu
