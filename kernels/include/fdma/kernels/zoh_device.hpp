// Scores of keys from their values, on the GPU.
#pragma once

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma {

/// zoh_scores (zoh_scores.hpp) of device tensors, in the order of `stream`. It returns after the
/// launch, without waiting; a CUDA graph may capture it. Shapes, dtypes and the bound of the error
/// are those of the host. Sums are taken in another order; the bits are the same every run.
///
/// Errors      those of the host; unsupported: a tensor on the host, a GPU of another architecture;
///             cuda. All are checked before the launch
/// Cost        reads `values` once; rows of 16-byte multiples of at most 1,024 bytes are read 16
///             bytes a thread. The wide dt_proj uses tensor cores where it has the dtype of
///             `values` and heads lie one after the other; otherwise it is bound by arithmetic
Result<void> zoh_scores(const TensorView& values, const TensorView& dt_proj,
                        const TensorView& a_coef, const MutableTensorView& scores, ZohMode mode,
                        Stream stream);

}  // namespace fdma
