#include "arrays/unwritten_rows.hpp"

#include <algorithm>
#include <limits>

#include "arrays/python_error.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace fdma::python {

bool has_rows_past_lengths(const AttentionShape& shape, const AttentionTensors& tensors) {
  return tensors.q_lens.data != nullptr ||
         std::any_of(shape.q_lens.begin(), shape.q_lens.end(),
                     [&](std::int64_t length) { return length < tensors.q.extents[1]; });
}

void fill_unwritten(MutableTensorView* new_out, MutableTensorView* new_lse) {
  if (new_out != nullptr) {
    std::fill_n(static_cast<unsigned char*>(new_out->data),
                new_out->view().num_elements() * size_bytes(new_out->dtype), 0);
  }
  if (new_lse != nullptr) {
    std::fill_n(static_cast<float*>(new_lse->data), new_lse->view().num_elements(),
                -std::numeric_limits<float>::infinity());
  }
}

void fill_unwritten_on_device(MutableTensorView* new_out, MutableTensorView* new_lse,
                              Stream stream) {
  if (new_out != nullptr) {
    const std::int64_t bytes = new_out->view().num_elements() * size_bytes(new_out->dtype);
    value_or_throw(fill_with_zeros(new_out->data, bytes, stream));
  }
  if (new_lse != nullptr) {
    value_or_throw(fill_with(static_cast<float*>(new_lse->data),
                             -std::numeric_limits<float>::infinity(),
                             new_lse->view().num_elements(), stream));
  }
}

}  // namespace fdma::python
