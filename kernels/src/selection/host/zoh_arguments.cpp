#include "selection/host/zoh_arguments.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace fdma::zoh {
namespace {

float float_from_half(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 0xFFu : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// One element of a tensor with float elements.
float element(const TensorView& view, std::int64_t offset) {
  if (view.dtype == DType::float32) return static_cast<const float*>(view.data)[offset];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(view.data)[offset];
  return view.dtype == DType::float16 ? float_from_half(bits)
                                      : std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// Rows of weights, padded: unchanged, or split by the head whose values they multiply.
std::vector<float> widened(const TensorView& dt_proj, const ZohShape& shape,
                           std::int64_t padded_dim) {
  const std::int64_t heads = shape.num_heads_kv;
  const std::int64_t sources = shape.is_per_head ? 1 : heads;
  // Heads are computed four at a time, so rows of zeros follow the last.
  const std::int64_t rows = shape.is_per_head ? heads : (heads + 3) / 4 * 4;
  std::vector<float> weights(static_cast<std::size_t>(rows * sources * padded_dim), 0.0F);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t source = 0; source < sources; ++source) {
      float* to = weights.data() + (head * sources + source) * padded_dim;
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        to[d] = element(dt_proj, head * dt_proj.strides[0] +
                                     (source * shape.head_dim + d) * dt_proj.strides[1]);
      }
    }
  }
  return weights;
}

}  // namespace

Error mismatch(std::string message) { return {ErrorCode::shape_mismatch, std::move(message)}; }

std::string extents_text(const TensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", view.extents[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

Result<void> check_elements(const TensorView& view, std::string_view name) {
  if (view.dtype != DType::float32 && view.dtype != DType::float16 &&
      view.dtype != DType::bfloat16) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: expected float32, float16 or bfloat16, got {}", name,
                             to_string(view.dtype))};
  }
  if (view.data == nullptr && view.num_elements() > 0) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}: data is null", name)};
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) %
          static_cast<std::uintptr_t>(size_bytes(view.dtype)) !=
      0) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{}: data is not aligned to its {} elements", name, to_string(view.dtype))};
  }
  return {};
}

Result<void> check_num_threads(const ZohOptions& options) {
  if (options.num_threads >= 0) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("num_threads: expected 0 or more, got {}", options.num_threads)};
}

HostScoresCall make_call(const ZohShape& shape, ZohMode mode, const TensorView& values,
                         const TensorView& dt_proj, const TensorView& a_coef,
                         std::int64_t padding) {
  HostScoresCall call{};
  call.shape = shape;
  call.mode = mode;
  call.values = static_cast<const char*>(values.data);
  call.dtype = values.dtype;
  call.batch_stride = values.strides[0];
  call.key_stride = values.strides[1];
  call.head_stride = values.strides[2];
  call.padded_dim = (shape.head_dim + padding - 1) / padding * padding;
  call.weights = widened(dt_proj, shape, call.padded_dim);
  for (std::int64_t head = 0; head < shape.num_heads_kv; ++head) {
    call.a_coef.push_back(element(a_coef, head * a_coef.strides[0]));
  }
  return call;
}

}  // namespace fdma::zoh
