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

void fill_unwritten(const MutableTensorView* new_out, const MutableTensorView* new_lse,
                    Stream stream) {
  if (new_out != nullptr) {
    const std::int64_t bytes = new_out->view().num_elements() * size_bytes(new_out->dtype);
    if (new_out->device == Device::cpu) {
      std::fill_n(static_cast<unsigned char*>(new_out->data), bytes, 0);
    } else {
      value_or_throw(fill_with_zeros(new_out->data, bytes, stream));
    }
  }
  if (new_lse != nullptr) {
    constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
    auto* const data = static_cast<float*>(new_lse->data);
    const std::int64_t count = new_lse->view().num_elements();
    if (new_lse->device == Device::cpu) {
      std::fill_n(data, count, kNoKeys);
    } else {
      value_or_throw(fill_with(data, kNoKeys, count, stream));
    }
  }
}

}  // namespace fdma::python
