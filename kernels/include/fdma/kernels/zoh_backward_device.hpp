// Gradients of ZOH scores, on the GPU.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/select/zoh_backward.hpp"

namespace fdma {

/// Bytes of workspace of zoh_scores_backward for any dtypes and addresses, at least 256 B: the size
/// of the scores, plus up to 32 sums of ddt_proj in float32 (one sum where ddt_proj has 132 or more
/// tiles of 128 x 32). Where each head sees its own values, it is at least the sums of 660 thread
/// blocks, up to 5.2 MiB.
///
/// Example     128K keys, 32 heads of 128 elements, whose values take 1 GiB in 16 bits: 16.1 MiB,
///             with the wide dt_proj 20.1 MiB
std::int64_t zoh_backward_workspace_bytes(const ZohShape& shape);

/// zoh_scores_backward (zoh_backward.hpp) of device tensors, in the order of `stream`. It returns
/// after the launches, without waiting; a CUDA graph may capture them. Shapes, dtypes, zeros and
/// the bound of the error are those of the host. Sums are taken in another order, fixed by shapes,
/// dtypes, alignment and other_dvalues: the same bits every run. `workspace` is
/// zoh_backward_workspace_bytes() of device memory, 256-aligned, that no other call uses at the
/// same time; it keeps nothing between calls.
///
/// Errors      those of the host; unsupported: a tensor on the host, a GPU of another architecture;
///             invalid_argument: a null or misaligned workspace; cuda. All are checked before the
///             launch
/// Cost        one pass over values and dvalues where each head sees its own values and rows are
///             16-byte multiples of at most 1,024 bytes; rows of keys whose dscore is 0 are not
///             read, and not written where dvalues is other_dvalues. The wide dt_proj reads values
///             twice
Result<void> zoh_scores_backward(const ZohBackwardTensors& tensors, ZohMode mode, void* workspace,
                                 Stream stream);

}  // namespace fdma
