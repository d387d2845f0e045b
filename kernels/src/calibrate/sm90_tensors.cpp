// Allocates and fills the tensors of a calibration on the GPU.
#include "calibrate/sm90_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "calibrate/inputs.hpp"

namespace fdma {
namespace {

constexpr double kTypicalKeys = 2048;

MutableTensorView view(const DeviceMemory& memory, DType dtype, std::int64_t length,
                       std::int64_t heads, std::int64_t dim) {
  const std::int64_t extents[] = {1, length, heads, dim};
  MutableTensorView tensor = make_contiguous_mutable_view(memory.data(), dtype, 4, extents);
  tensor.device = Device::cuda;
  return tensor;
}

}  // namespace

Result<CalibrationTensors> CalibrationTensors::make(std::span<const AttentionShape> shapes,
                                                    Direction direction,
                                                    const AttentionShape& with_score) {
  std::int64_t query_elements = 0, key_elements = 0, num_queries = 0;
  for (const AttentionShape& shape : shapes) {
    num_queries = std::max(num_queries, shape.max_q_len() * shape.heads_q);
    query_elements = std::max(query_elements, shape.max_q_len() * shape.heads_q * shape.head_dim);
    key_elements = std::max(key_elements, shape.max_kv_len() * shape.heads_kv * shape.head_dim);
  }
  const DType dtype = shapes.front().q_dtype;
  std::vector<std::uint8_t> values(
      static_cast<std::size_t>(std::max(query_elements, key_elements) * size_bytes(dtype)));
  fill_normal(values, dtype);
  CalibrationTensors tensors;
  const auto fill = [&](std::span<DeviceMemory> memories, std::int64_t elements) -> Result<void> {
    const std::size_t count = direction == Direction::forward ? 2 : memories.size();
    const std::int64_t bytes = elements * size_bytes(dtype);
    for (DeviceMemory& memory : memories.first(count)) {
      FDMA_TRY(memory, DeviceMemory::allocate(bytes));
      FDMA_TRY_VOID(copy_to_device(memory.data(), values.data(), bytes));
    }
    return {};
  };
  FDMA_TRY_VOID(fill(tensors.queries_, query_elements));
  FDMA_TRY_VOID(fill(tensors.keys_, key_elements));
  FDMA_TRY(tensors.lse_, DeviceMemory::allocate(num_queries * size_bytes(DType::float32)));
  // The lse of scores with mean 0 and variance 1.
  const auto lse = static_cast<float>(std::log(kTypicalKeys) + 0.5);
  FDMA_TRY_VOID(fill_with(static_cast<float*>(tensors.lse_.data()), lse, num_queries));
  values.resize(static_cast<std::size_t>(with_score.max_q_len() * with_score.max_kv_len() *
                                         size_bytes(dtype)));
  fill_normal(values, dtype);
  FDMA_TRY(tensors.bias_, DeviceMemory::allocate(std::ssize(values)));
  FDMA_TRY_VOID(copy_to_device(tensors.bias_.data(), values.data(), std::ssize(values)));
  const std::int64_t numbers = part_numbers(with_score);
  for (DeviceMemory* memory : {&tensors.numbers_, &tensors.gradient_}) {
    FDMA_TRY(*memory, DeviceMemory::allocate(numbers * size_bytes(DType::float32)));
    FDMA_TRY_VOID(fill_with(static_cast<float*>(memory->data()), 0.0F, numbers));
  }
  return Result<CalibrationTensors>(std::move(tensors));
}

MutableTensorView CalibrationTensors::of_queries(std::size_t i, const AttentionShape& shape) const {
  return view(queries_[i], shape.q_dtype, shape.max_q_len(), shape.heads_q, shape.head_dim);
}

MutableTensorView CalibrationTensors::of_keys(std::size_t i, const AttentionShape& shape) const {
  return view(keys_[i], shape.k_dtype, shape.max_kv_len(), shape.heads_kv, shape.head_dim);
}

MutableTensorView CalibrationTensors::lse(const AttentionShape& shape) const {
  const std::int64_t extents[] = {1, shape.heads_q, shape.max_q_len()};
  MutableTensorView tensor = make_contiguous_mutable_view(lse_.data(), DType::float32, 3, extents);
  tensor.device = Device::cuda;
  return tensor;
}

AttentionTensors CalibrationTensors::forward_views(const AttentionShape& shape,
                                                   const ScoreSpec& score) const {
  AttentionTensors views;
  views.q = of_queries(0, shape).view();
  views.kv.k = of_keys(0, shape).view();
  views.kv.v = of_keys(1, shape).view();
  views.out = of_queries(1, shape);
  views.lse = lse(shape);
  set_part(score, shape, part(), views);
  return views;
}

BackwardTensors CalibrationTensors::backward_views(const AttentionShape& shape,
                                                   const ScoreSpec& score) const {
  BackwardTensors views;
  views.q = of_queries(0, shape).view();
  views.kv.k = of_keys(0, shape).view();
  views.kv.v = of_keys(1, shape).view();
  views.out = of_queries(1, shape).view();
  views.lse = lse(shape).view();
  views.dout = of_queries(2, shape).view();
  views.dq = of_queries(3, shape);
  views.dk = of_keys(2, shape);
  views.dv = of_keys(3, shape);
  set_part(score, shape, part(), views);
  return views;
}

}  // namespace fdma
