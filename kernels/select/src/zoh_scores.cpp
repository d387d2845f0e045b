// zoh_scores on the host: everything is checked, weights are widened to float32 once (they are
// small beside the values), then threads take blocks of keys.
#include "fdma/select/zoh_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>
#include <string>

#include "fdma/threads/parallel.hpp"
#include "zoh_call.hpp"

namespace fdma {
namespace {

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

// Rows of weights: as they are, or split by the head whose values they multiply and padded.
std::vector<float> widened(const TensorView& dt_proj, const ZohShape& shape,
                           std::int64_t padded_dim) {
  const std::int64_t heads = shape.num_heads_kv;
  const std::int64_t sources = shape.is_per_head ? 1 : heads;
  // Heads are taken four at a time: rows of zeros after the last.
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

Result<void> check_scores(const MutableTensorView& scores, const ZohShape& shape) {
  if (scores.dtype != DType::float32) {
    return Error{ErrorCode::unsupported,
                 fmt::format("scores: expected float32, got {}", to_string(scores.dtype))};
  }
  if (scores.device != Device::cpu) {
    return Error{ErrorCode::unsupported, "scores: on a CUDA device, but values are on the host"};
  }
  const TensorView view = scores.view();
  if (view.rank != 3 || view.extents[0] != shape.num_batches ||
      view.extents[1] != shape.num_heads_kv || view.extents[2] != shape.kv_len) {
    return mismatch(fmt::format("scores: expected [batch, heads_kv, kv_len] = [{}, {}, {}], got {}",
                                shape.num_batches, shape.num_heads_kv, shape.kv_len,
                                extents_text(view)));
  }
  return check_elements(view, "scores");
}

}  // namespace

std::string_view to_string(ZohMode mode) { return mode == ZohMode::exp ? "exp" : "log"; }

std::optional<ZohMode> parse_zoh_mode(std::string_view text) {
  for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
    if (to_string(mode) == text) return mode;
  }
  return std::nullopt;
}

Result<ZohShape> zoh_shape(const TensorView& values, const TensorView& dt_proj,
                           const TensorView& a_coef) {
  if (values.rank != 4 || values.extents[2] < 1 || values.extents[3] < 1) {
    return mismatch(fmt::format("values: expected [batch, kv_len, heads_kv, head_dim], got {}",
                                extents_text(values)));
  }
  ZohShape shape{values.extents[0], values.extents[1], values.extents[2], values.extents[3], false};
  const std::int64_t width = shape.num_heads_kv * shape.head_dim;
  if (dt_proj.rank != 2 || dt_proj.extents[0] != shape.num_heads_kv ||
      (dt_proj.extents[1] != shape.head_dim && dt_proj.extents[1] != width)) {
    return mismatch(fmt::format(
        "dt_proj: expected [heads_kv, heads_kv * head_dim] = [{}, {}] or [heads_kv, "
        "head_dim] = [{}, {}], got {}",
        shape.num_heads_kv, width, shape.num_heads_kv, shape.head_dim, extents_text(dt_proj)));
  }
  shape.is_per_head = dt_proj.extents[1] == shape.head_dim;
  if (a_coef.rank != 1 || a_coef.extents[0] != shape.num_heads_kv) {
    return mismatch(fmt::format("a_coef: expected [heads_kv] = [{}], got {}", shape.num_heads_kv,
                                extents_text(a_coef)));
  }
  FDMA_TRY_VOID(check_elements(values, "values"));
  FDMA_TRY_VOID(check_elements(dt_proj, "dt_proj"));
  FDMA_TRY_VOID(check_elements(a_coef, "a_coef"));
  if (values.strides[3] != 1 && shape.head_dim > 1) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("values: expected a last stride of 1, got {}", values.strides[3])};
  }
  if (dt_proj.device != values.device || a_coef.device != values.device) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: expected the device of values",
                             dt_proj.device != values.device ? "dt_proj" : "a_coef")};
  }
  return shape;
}

Result<void> zoh_scores(const TensorView& values, const TensorView& dt_proj,
                        const TensorView& a_coef, const MutableTensorView& scores,
                        const ZohOptions& options) {
  FDMA_TRY(const ZohShape shape, zoh_shape(values, dt_proj, a_coef));
  if (values.device != Device::cpu) {
    return Error{ErrorCode::unsupported, "values: on a CUDA device; this is the host's zoh_scores"};
  }
  FDMA_TRY_VOID(check_scores(scores, shape));
  if (options.num_threads < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_threads: expected 0 or more, got {}", options.num_threads)};
  }
  try {
    zoh::Call call;
    call.shape = shape;
    call.mode = options.mode;
    call.values = static_cast<const char*>(values.data);
    call.dtype = values.dtype;
    call.batch_stride = values.strides[0];
    call.key_stride = values.strides[1];
    call.head_stride = values.strides[2];
    call.padded_dim = shape.is_per_head
                          ? shape.head_dim
                          : (shape.head_dim + zoh::kPadding - 1) / zoh::kPadding * zoh::kPadding;
    call.weights = widened(dt_proj, shape, call.padded_dim);
    for (std::int64_t head = 0; head < shape.num_heads_kv; ++head) {
      call.a_coef.push_back(element(a_coef, head * a_coef.strides[0]));
    }
    call.scores = static_cast<float*>(scores.data);
    call.score_batch_stride = scores.strides[0];
    call.score_head_stride = scores.strides[1];
    call.score_key_stride = scores.strides[2];
    const std::int64_t num_blocks = (shape.kv_len + zoh::kBlockKeys - 1) / zoh::kBlockKeys;
    const auto score = [&](std::int64_t block) {
      const std::int64_t first = block % num_blocks * zoh::kBlockKeys;
      zoh::score_block(call, block / num_blocks, first,
                       std::min(zoh::kBlockKeys, shape.kv_len - first));
    };
    in_arena(options.num_threads,
             [&] { parallel_for(std::int64_t{0}, shape.num_batches * num_blocks, score); });
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "zoh_scores: out of memory"};
  }
  return {};
}

}  // namespace fdma
