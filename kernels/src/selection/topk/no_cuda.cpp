// Scores and selection on the GPU in a build without CUDA: every call returns an error that says
// so.
#include <memory>

#include "fdma/kernels/device_incremental_topk.hpp"
#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/zoh_backward_device.hpp"
#include "fdma/kernels/zoh_device.hpp"

namespace fdma {

struct DeviceTopk::Impl {};

DeviceTopk::DeviceTopk(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceTopk::DeviceTopk(DeviceTopk&&) noexcept = default;
DeviceTopk& DeviceTopk::operator=(DeviceTopk&&) noexcept = default;
DeviceTopk::~DeviceTopk() = default;

std::int64_t DeviceTopk::w() const { return 0; }
std::int64_t DeviceTopk::num_batches() const { return 0; }
std::int64_t DeviceTopk::num_heads_kv() const { return 0; }
std::int64_t DeviceTopk::kv_len() const { return 0; }
int DeviceTopk::device() const { return -1; }
std::int64_t DeviceTopk::size_bytes() const { return 0; }
std::int64_t DeviceTopk::workspace_bytes() const { return 0; }

Result<DeviceTopk> DeviceTopk::make(const TopkRows&, std::int64_t, Stream) {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  return Error{ErrorCode::internal, "DeviceTopk: a build without CUDA has no GPU backend"};
}

Result<void> DeviceTopk::select(const TensorView&, Interval*, void*, std::uint32_t*, Stream) const {
  return check_backend(Backend::sm90);
}

Result<std::vector<ColumnIntervals>> DeviceTopk::to_host(const Interval*, Stream) const {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  return Error{ErrorCode::internal, "DeviceTopk: a build without CUDA has no GPU backend"};
}

struct DeviceIncrementalTopk::Impl {};

DeviceIncrementalTopk::DeviceIncrementalTopk(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceIncrementalTopk::DeviceIncrementalTopk(DeviceIncrementalTopk&&) noexcept = default;
DeviceIncrementalTopk& DeviceIncrementalTopk::operator=(DeviceIncrementalTopk&&) noexcept = default;
DeviceIncrementalTopk::~DeviceIncrementalTopk() = default;

std::int64_t DeviceIncrementalTopk::num_batches() const { return 0; }
std::int64_t DeviceIncrementalTopk::num_heads_kv() const { return 0; }
std::int64_t DeviceIncrementalTopk::capacity() const { return 0; }
std::int64_t DeviceIncrementalTopk::w() const { return 0; }
std::int64_t DeviceIncrementalTopk::q_len() const { return 0; }
std::int64_t DeviceIncrementalTopk::kv_len() const { return 0; }
int DeviceIncrementalTopk::device() const { return -1; }
std::int64_t DeviceIncrementalTopk::size_bytes() const { return 0; }
const Interval* DeviceIncrementalTopk::kept() const { return nullptr; }
const std::uint32_t* DeviceIncrementalTopk::status() const { return nullptr; }

Result<DeviceIncrementalTopk> DeviceIncrementalTopk::make(const Options&, Stream) {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  return Error{ErrorCode::internal,
               "DeviceIncrementalTopk: a build without CUDA has no GPU backend"};
}

Result<void> DeviceIncrementalTopk::append_causal(const TensorView&, Stream) {
  return check_backend(Backend::sm90);
}

Result<void> DeviceIncrementalTopk::append(const TensorView&, std::span<const Interval>,
                                           std::int64_t, Stream) {
  return check_backend(Backend::sm90);
}

Result<void> DeviceIncrementalTopk::end_group(Stream) { return check_backend(Backend::sm90); }
Result<void> DeviceIncrementalTopk::refresh(Stream) { return check_backend(Backend::sm90); }

Result<void> DeviceIncrementalTopk::live_keys(std::int32_t*, std::int64_t, std::int32_t*,
                                              Stream) const {
  return check_backend(Backend::sm90);
}

Result<std::vector<ColumnIntervals>> DeviceIncrementalTopk::intervals(Stream) {
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  return Error{ErrorCode::internal,
               "DeviceIncrementalTopk: a build without CUDA has no GPU backend"};
}

Result<void> zoh_scores(const TensorView&, const TensorView&, const TensorView&,
                        const MutableTensorView&, ZohMode, Stream) {
  return check_backend(Backend::sm90);
}

std::int64_t zoh_backward_workspace_bytes(const ZohShape&) { return 0; }

Result<void> zoh_scores_backward(const ZohBackwardTensors&, ZohMode, void*, Stream) {
  return check_backend(Backend::sm90);
}

}  // namespace fdma
