// Gradients of ZOH scores on the host. Keys are divided into at most kMaxParts parts, which depend
// on the shape only. Each part has its own sums for ddt_proj and da_coef; these are added in the
// permutation of keys.
#include "fdma/select/zoh_backward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "fdma/base/parallel.hpp"
#include "selection/host/zoh_arguments.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kMaxParts = 64;

Result<void> check_like(const TensorView& gradient, std::string_view name, const TensorView& input,
                        std::string_view input_name) {
  if (gradient.data == nullptr) return {};
  if (gradient.rank != input.rank || gradient.extents != input.extents) {
    return zoh::mismatch(fmt::format("{}: expected {}, the shape of {}, got {}", name,
                                     zoh::extents_text(input), input_name,
                                     zoh::extents_text(gradient)));
  }
  if (gradient.dtype != DType::float32 && gradient.dtype != input.dtype) {
    const std::string own = input.dtype == DType::float32
                                ? ""
                                : fmt::format(" or {}, as {}", to_string(input.dtype), input_name);
    return Error{ErrorCode::unsupported, fmt::format("{}: expected float32{}, got {}", name, own,
                                                     to_string(gradient.dtype))};
  }
  if (gradient.device != input.device) {
    return Error{ErrorCode::unsupported, fmt::format("{}: expected the device of values", name)};
  }
  FDMA_TRY_VOID(zoh::check_elements(gradient, name));
  if (gradient.rank == 4 && gradient.strides[3] != 1 && gradient.extents[3] > 1 &&
      gradient.num_elements() > 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: expected a last stride of 1, got {}", name, gradient.strides[3])};
  }
  return {};
}

Result<void> check_dscores(const ZohBackwardTensors& tensors, const ZohShape& shape) {
  const TensorView& dscores = tensors.dscores;
  if (dscores.dtype != DType::float32) {
    return Error{ErrorCode::unsupported,
                 fmt::format("dscores: expected float32, got {}", to_string(dscores.dtype))};
  }
  if (dscores.device != tensors.values.device) {
    return Error{ErrorCode::unsupported, "dscores: expected the device of values"};
  }
  if (dscores.rank != 3 || dscores.extents[0] != shape.num_batches ||
      dscores.extents[1] != shape.num_heads_kv || dscores.extents[2] != shape.kv_len) {
    return zoh::mismatch(fmt::format(
        "dscores: expected [batch, heads_kv, kv_len] = [{}, {}, {}], got {}", shape.num_batches,
        shape.num_heads_kv, shape.kv_len, zoh::extents_text(dscores)));
  }
  return zoh::check_elements(dscores, "dscores");
}

bool are_same(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.strides == b.strides;
}

// Copies the elements of a contiguous array, one after the other, to a tensor of any strides.
void scatter(const std::vector<std::uint8_t>& elements, const MutableTensorView& to) {
  const auto size = static_cast<std::size_t>(size_bytes(to.dtype));
  const std::int64_t columns = to.rank == 2 ? to.extents[1] : 1;
  const std::int64_t column_stride = to.rank == 2 ? to.strides[1] : 0;
  auto* data = static_cast<std::uint8_t*>(to.data);
  const std::uint8_t* from = elements.data();
  for (std::int64_t row = 0; row < to.extents[0]; ++row) {
    for (std::int64_t column = 0; column < columns; ++column, from += size) {
      const std::int64_t at = row * to.strides[0] + column * column_stride;
      std::memcpy(data + at * static_cast<std::int64_t>(size), from, size);
    }
  }
}

void write(const std::vector<float>& sums, const MutableTensorView& to) {
  std::vector<std::uint8_t> narrowed(sums.size() * static_cast<std::size_t>(size_bytes(to.dtype)));
  zoh::narrow(sums.data(), sums.size(), to.dtype, narrowed.data());
  scatter(narrowed, to);
}

// ddt_proj without the padding of its rows.
std::vector<float> unpadded(const std::vector<float>& sums, const ZohShape& shape,
                            std::int64_t padded_dim) {
  const std::int64_t rows = shape.num_heads_kv * (shape.is_per_head ? 1 : shape.num_heads_kv);
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(rows * shape.head_dim));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = sums.data() + row * padded_dim;
    result.insert(result.end(), from, from + shape.head_dim);
  }
  return result;
}

void run(const zoh::HostBackwardCall& call, const ZohBackwardTensors& tensors, int num_threads) {
  const ZohShape& shape = call.forward.shape;
  const std::int64_t blocks_per_batch = (shape.kv_len + zoh::kBlockKeys - 1) / zoh::kBlockKeys;
  const std::int64_t num_blocks = shape.num_batches * blocks_per_batch;
  const std::int64_t part_blocks =
      std::max<std::int64_t>((num_blocks + kMaxParts - 1) / kMaxParts, 1);
  const std::int64_t num_parts =
      std::max<std::int64_t>((num_blocks + part_blocks - 1) / part_blocks, 1);
  std::vector<zoh::Sums> parts(static_cast<std::size_t>(num_parts));
  const auto add_part = [&](std::int64_t part) {
    zoh::Sums& sums = parts[static_cast<std::size_t>(part)];
    if (call.wants_sums) sums.weights.assign(call.forward.weights.size(), 0.0F);
    sums.a_coef.assign(static_cast<std::size_t>(shape.num_heads_kv), 0.0F);
    const std::int64_t end = std::min((part + 1) * part_blocks, num_blocks);
    for (std::int64_t block = part * part_blocks; block < end; ++block) {
      const std::int64_t first = block % blocks_per_batch * zoh::kBlockKeys;
      zoh::backward_block(call, block / blocks_per_batch, first,
                          std::min(zoh::kBlockKeys, shape.kv_len - first), sums);
    }
  };
  in_arena(num_threads, [&] { parallel_for(std::int64_t{0}, num_parts, add_part); });
  zoh::Sums& total = parts[0];
  for (std::size_t part = 1; part < parts.size(); ++part) {
    const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    add(total.weights, parts[part].weights);
    add(total.a_coef, parts[part].a_coef);
  }
  if (tensors.ddt_proj.data != nullptr) {
    write(unpadded(total.weights, shape, call.forward.padded_dim), tensors.ddt_proj);
  }
  if (tensors.da_coef.data != nullptr) write(total.a_coef, tensors.da_coef);
}

}  // namespace

Result<ZohShape> zoh_backward_shape(const ZohBackwardTensors& tensors) {
  FDMA_TRY(const ZohShape shape, zoh_shape(tensors.values, tensors.dt_proj, tensors.a_coef));
  FDMA_TRY_VOID(check_dscores(tensors, shape));
  FDMA_TRY_VOID(check_like(tensors.dvalues.view(), "dvalues", tensors.values, "values"));
  FDMA_TRY_VOID(check_like(tensors.ddt_proj.view(), "ddt_proj", tensors.dt_proj, "dt_proj"));
  FDMA_TRY_VOID(check_like(tensors.da_coef.view(), "da_coef", tensors.a_coef, "a_coef"));
  FDMA_TRY_VOID(check_like(tensors.other_dvalues, "other_dvalues", tensors.values, "values"));
  if (tensors.other_dvalues.data != nullptr && tensors.dvalues.data == nullptr) {
    return Error{ErrorCode::invalid_argument, "other_dvalues: given, but dvalues is not"};
  }
  return shape;
}

Result<void> zoh_scores_backward(const ZohBackwardTensors& tensors, const ZohOptions& options) {
  FDMA_TRY(const ZohShape shape, zoh_backward_shape(tensors));
  if (tensors.values.device != Device::cpu) {
    return Error{ErrorCode::unsupported,
                 "values: on a CUDA device; this is the host's zoh_scores_backward"};
  }
  FDMA_TRY_VOID(zoh::check_num_threads(options));
  try {
    zoh::HostBackwardCall call{};
    call.forward = zoh::make_call(shape, options.mode, tensors.values, tensors.dt_proj,
                                  tensors.a_coef, zoh::kPadding);
    call.dscores = static_cast<const float*>(tensors.dscores.data);
    call.dscore_batch_stride = tensors.dscores.strides[0];
    call.dscore_head_stride = tensors.dscores.strides[1];
    call.dscore_key_stride = tensors.dscores.strides[2];
    call.dvalues = tensors.dvalues;
    call.other_dvalues = tensors.other_dvalues;
    call.is_in_place = are_same(tensors.other_dvalues, tensors.dvalues.view());
    call.wants_sums = tensors.ddt_proj.data != nullptr;
    run(call, tensors, options.num_threads);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "zoh_scores_backward: out of memory"};
  }
  return {};
}

}  // namespace fdma
