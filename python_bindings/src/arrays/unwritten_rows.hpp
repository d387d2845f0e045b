// Rows of outputs that attention does not write: those past the length of a batch element.
#pragma once

#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma::python {

/// True iff the tensors may hold rows past some element's own length.
bool has_rows_past_lengths(const AttentionShape& shape, const AttentionTensors& tensors);

/// Rows past an element's length see no key: 0 in a new output, -inf in a new lse, written to all
/// of it before the kernel runs. Null: an output that was given and keeps what it holds. Elements
/// lie without gaps, in any order of the axes.
void fill_unwritten(MutableTensorView* new_out, MutableTensorView* new_lse);
void fill_unwritten_on_device(MutableTensorView* new_out, MutableTensorView* new_lse,
                              Stream stream);

}  // namespace fdma::python
