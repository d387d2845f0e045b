// Rows of outputs that attention does not write: those past the length of a batch element.
#pragma once

#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma::python {

/// True iff the tensors may hold rows past some element's own length.
bool has_rows_past_lengths(const AttentionShape& shape, const AttentionTensors& tensors);

/// Fills a new output with 0 and a new lse with -inf before the kernel runs, since rows past an
/// element's length see no key and are not written. Null stands for an output that the caller gave,
/// which keeps its contents. Elements lie without gaps, in any order of the axes. On a GPU this
/// runs in the order of `stream`.
void fill_unwritten(const MutableTensorView* new_out, const MutableTensorView* new_lse,
                    Stream stream);

}  // namespace fdma::python
