// DeviceTopk: masks are cut into key segments on the host once and stored in one allocation of
// device memory.
#include "selection/topk/device_topk.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "cuda/gpu_library.hpp"
#include "cuda/gpu_memory.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "selection/topk/topk_rows.hpp"

namespace fdma {

struct DeviceTopk::Impl {
  const GpuLibrary* gpu = nullptr;
  std::int64_t num_batches = 0, num_heads = 0, kv_len = 0, w = 0;
  std::vector<std::int64_t> q_len_of, kv_len_of;  ///< of each row
  std::int64_t num_key_segments = 0, num_sorted = 0, most_parts = 0;
  int device = 0;
  DeviceMemory memory;
  const zoh::KeySegment* key_segments = nullptr;
  const int2* queries = nullptr;
  const std::uint16_t* ordinals = nullptr;
};

namespace {

constexpr std::int64_t kAlignment = 256;

bool has_samples(std::int64_t most_parts) {
  return 1 < most_parts && most_parts <= zoh::kSampledParts;
}

std::int64_t aligned(std::int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

Result<std::unique_ptr<DeviceTopk::Impl>> upload_rows(const TopkRows& rows, const zoh::CutRows& cut,
                                                      std::int64_t w, Stream stream) {
  auto impl = std::make_unique<DeviceTopk::Impl>();
  FDMA_TRY(impl->gpu, gpu_library());
  impl->num_batches = rows.num_batches;
  impl->num_heads = rows.num_heads_kv;
  impl->kv_len = rows.kv_len;
  impl->w = w;
  for (const std::int32_t mask : rows.mask_of) {
    impl->q_len_of.push_back(rows.masks[static_cast<std::size_t>(mask)].q_len);
    impl->kv_len_of.push_back(rows.masks[static_cast<std::size_t>(mask)].kv_len);
  }
  impl->num_key_segments = static_cast<std::int64_t>(cut.key_segments.size());
  impl->num_sorted = cut.num_sorted;
  impl->most_parts = cut.most_parts;
  FDMA_TRY(impl->device, current_device());
  const auto bytes_of = [](const auto& array) {
    return static_cast<std::int64_t>(array.size() * sizeof(array[0]));
  };
  const std::int64_t queries_at = aligned(bytes_of(cut.key_segments));
  const std::int64_t ordinals_at = queries_at + aligned(bytes_of(cut.queries));
  FDMA_TRY(impl->memory, DeviceMemory::allocate(
                             std::max(ordinals_at + aligned(bytes_of(cut.ordinals)), kAlignment)));
  char* const base = static_cast<char*>(impl->memory.data());
  const auto copy = [&](std::int64_t at, const auto& array) -> Result<void> {
    if (array.empty()) return {};
    return impl->gpu->memory.copy_to_device(base + at, array.data(), bytes_of(array), stream);
  };
  FDMA_TRY_VOID(copy(0, cut.key_segments));
  FDMA_TRY_VOID(copy(queries_at, cut.queries));
  FDMA_TRY_VOID(copy(ordinals_at, cut.ordinals));
  impl->key_segments = reinterpret_cast<const zoh::KeySegment*>(base);
  impl->queries = reinterpret_cast<const int2*>(base + queries_at);
  impl->ordinals = reinterpret_cast<const std::uint16_t*>(base + ordinals_at);
  return Result<std::unique_ptr<DeviceTopk::Impl>>(std::move(impl));
}

}  // namespace

DeviceTopk::DeviceTopk(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceTopk::DeviceTopk(DeviceTopk&&) noexcept = default;
DeviceTopk& DeviceTopk::operator=(DeviceTopk&&) noexcept = default;
DeviceTopk::~DeviceTopk() = default;

std::int64_t DeviceTopk::w() const { return impl_->w; }
std::int64_t DeviceTopk::num_batches() const { return impl_->num_batches; }
std::int64_t DeviceTopk::num_heads_kv() const { return impl_->num_heads; }
std::int64_t DeviceTopk::kv_len() const { return impl_->kv_len; }
int DeviceTopk::device() const { return impl_->device; }
std::int64_t DeviceTopk::size_bytes() const { return impl_->memory.size_bytes(); }
std::int64_t DeviceTopk::workspace_bytes() const {
  const std::int64_t ends =
      impl_->most_parts <= zoh::kFewParts ? impl_->num_sorted * impl_->most_parts : 0;
  const std::int64_t samples = has_samples(impl_->most_parts) ? zoh::kSamples : 0;
  return impl_->num_sorted * (zoh::kKeySegmentSize + samples + 1) *
             static_cast<std::int64_t>(sizeof(std::uint64_t)) +
         ends * static_cast<std::int64_t>(sizeof(std::uint16_t));
}

Result<DeviceTopk> DeviceTopk::make(const TopkRows& rows, std::int64_t w, Stream stream) {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  try {
    FDMA_TRY(const zoh::CutRows cut, zoh::cut_rows(rows, w));
    FDMA_TRY(std::unique_ptr<Impl> impl, upload_rows(rows, cut, w, stream));
    return DeviceTopk(std::move(impl));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "masks: no host memory to prepare " +
                                               std::to_string(rows.masks.size()) + " masks of " +
                                               std::to_string(rows.kv_len) + " keys"};
  }
}

Result<void> DeviceTopk::select(const TensorView& scores, Interval* kept, void* workspace,
                                std::uint32_t* status, Stream stream) const {
  const Impl& impl = *impl_;
  FDMA_TRY_VOID(zoh::check_topk_scores(scores, impl.num_batches, impl.num_heads, impl.kv_len));
  if (impl.num_key_segments == 0) return {};
  if (kept == nullptr || reinterpret_cast<std::uintptr_t>(kept) % sizeof(Interval) != 0) {
    return Error{ErrorCode::invalid_argument,
                 "kept: expected device memory at a multiple of 8 bytes"};
  }
  if (impl.num_sorted > 0 &&
      (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0)) {
    return Error{
        ErrorCode::invalid_argument,
        "workspace: expected " + std::to_string(workspace_bytes()) + " bytes at a multiple of 16"};
  }
  zoh::TopkCall call{};
  call.key_segments = impl.key_segments;
  call.queries = impl.queries;
  call.ordinals = impl.ordinals;
  call.scores = static_cast<const float*>(scores.data);
  call.batch_stride = scores.strides[0];
  call.head_stride = scores.strides[1];
  call.key_stride = scores.strides[2];
  call.num_heads = static_cast<std::int32_t>(impl.num_heads);
  call.most_parts = static_cast<std::int32_t>(impl.most_parts);
  call.kv_len = impl.kv_len;
  call.w = impl.w;
  call.runs = static_cast<std::uint64_t*>(workspace);
  call.worst = call.runs + impl.num_sorted * zoh::kKeySegmentSize;
  if (has_samples(impl.most_parts)) {
    call.samples = call.worst;
    call.worst += impl.num_sorted * zoh::kSamples;
  }
  if (impl.most_parts <= zoh::kFewParts) {
    call.ends = reinterpret_cast<std::uint16_t*>(call.worst + impl.num_sorted);
  }
  call.kept = reinterpret_cast<int2*>(kept);
  call.status = status;
  return impl.gpu->topk.launch(call, impl.num_key_segments, impl.num_sorted, stream);
}

Result<std::vector<ColumnIntervals>> DeviceTopk::to_host(const Interval* kept,
                                                         Stream stream) const {
  const Impl& impl = *impl_;
  try {
    std::vector<Interval> all(impl.q_len_of.size() * static_cast<std::size_t>(impl.kv_len));
    if (!all.empty()) {
      FDMA_TRY_VOID(copy_to_host(all.data(), kept,
                                 static_cast<std::int64_t>(all.size() * sizeof(Interval)), stream));
    }
    return zoh::columns_of_rows(all, impl.kv_len, impl.q_len_of, impl.kv_len_of);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "to_host: no host memory for the intervals"};
  }
}

}  // namespace fdma
