// Gradients of ZOH scores, on the GPU.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/select/zoh_backward.hpp"

namespace fdma {

/// Bytes of workspace of zoh_scores_backward, whatever dtypes and addresses: the size of the scores
/// and up to 32 sums of ddt_proj in float32 (of 132 or more tiles of 128 x 32 one), 256 B at least;
/// where each head sees its own values no less than the sums of 660 blocks, up to 5.2 MiB. At 128K
/// keys, 32 heads of 128 elements 16.1 and 20.1 MiB, where values of 16 bits take 1 GiB.
std::int64_t zoh_backward_workspace_bytes(const ZohShape& shape);

/// zoh_scores_backward (zoh_backward.hpp) of device tensors, in the order of `stream`: returns
/// after the launches, without waiting; a CUDA graph may capture them. The same shapes, dtypes,
/// zeros and bound of the error as on the host, sums in another order, which shapes, dtypes,
/// alignment and other_dvalues fix: the same bits every run. `workspace`:
/// zoh_backward_workspace_bytes() of device memory, 256-aligned, of no other call at the same time;
/// nothing is kept there.
///
/// Errors  those on the host; unsupported: a tensor on the host, a GPU of another architecture;
///         invalid_argument: a null or misaligned workspace; cuda. Checked before the launch
/// Cost    one pass over values and dvalues where each head sees its own values and rows are
///         16-byte multiples of at most 1,024 bytes: those of keys whose dscore is 0 are not read,
///         and where dvalues is other_dvalues not written. The wide dt_proj reads values twice
Result<void> zoh_scores_backward(const ZohBackwardTensors& tensors, ZohMode mode, void* workspace,
                                 Stream stream);

}  // namespace fdma
