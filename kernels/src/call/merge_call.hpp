// The checked call of merge, as the host and the GPU run it.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/kernels/host_device.hpp"
#include "fdma/kernels/merge.hpp"

namespace fdma {

/// Offsets of the row (batch, head, q) in elements.
struct RowStrides {
  std::int64_t batch = 0, head = 0, q = 0;
};

/// Tensors that passed the checks. A kernel takes it as its parameter.
struct MergeCall {
  struct Part {
    const void* out;
    const float* lse;
    RowStrides out_strides, lse_strides;
  };
  std::int64_t batch = 0, heads = 0, q_len = 0, head_dim_v = 0;
  DType dtype = DType::float32;  ///< of every out
  int num_parts = 0;
  Part parts[kMaxMergeParts] = {};  ///< an array that device code may index
  const float* sinks = nullptr;     ///< or null
  RowStrides sink_strides;
  void* out = nullptr;
  RowStrides out_strides;
  float* lse = nullptr;  ///< or null
  RowStrides lse_strides;

  FDMA_HOST_DEVICE std::int64_t num_rows() const { return batch * heads * q_len; }
};

/// Checks everything that is not the affair of a backend. All tensors have to be on `device`.
/// Errors: those of merge (fdma/kernels/merge.hpp).
Result<MergeCall> checked_merge(const MergeTensors& tensors, Device device);

}  // namespace fdma
