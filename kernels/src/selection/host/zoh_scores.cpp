// zoh_scores on the host. It checks everything and widens the weights to float32 once (they are
// small beside the values); then threads take blocks of keys.
#include "fdma/select/zoh_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string>

#include "fdma/base/parallel.hpp"
#include "selection/host/zoh_arguments.hpp"

namespace fdma {
namespace {

using zoh::check_elements;
using zoh::extents_text;
using zoh::mismatch;

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
  if (values.strides[3] != 1 && shape.head_dim > 1 && values.num_elements() > 0) {
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
  FDMA_TRY_VOID(zoh::check_num_threads(options));
  try {
    zoh::HostScoresCall call = zoh::make_call(shape, options.mode, values, dt_proj, a_coef,
                                              shape.is_per_head ? 1 : zoh::kPadding);
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
