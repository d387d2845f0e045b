// Scores of keys from their values, on the GPU.
#pragma once

#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma {

/// zoh_scores (zoh_scores.hpp) of device tensors, in the order of `stream`: returns after the
/// launch, without waiting; a CUDA graph may capture it. The same shapes, dtypes and bound of the
/// error as on the host, sums in another order; the same bits every run.
///
/// Errors  those on the host; unsupported: a tensor on the host, a GPU of another architecture;
///         cuda. Checked before the launch
/// Cost    reads `values` once. Rows of 16-byte multiples of at most 1,024 bytes are read 16 bytes
///         a thread; the wide dt_proj takes tensor cores where it has the dtype of `values` and
///         heads lie one after the other, and is bound by arithmetic elsewhere
Result<void> zoh_scores(const TensorView& values, const TensorView& dt_proj,
                        const TensorView& a_coef, const MutableTensorView& scores, ZohMode mode,
                        Stream stream);

}  // namespace fdma
