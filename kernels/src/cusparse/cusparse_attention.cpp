// Attention by cuSPARSE in every build: what is checked before the library is called.
#include "fdma/kernels/cusparse_attention.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "call/attention_call.hpp"
#include "cuda/gpu_library.hpp"
#include "cusparse/csr_rows.hpp"
#include "cusparse/gpu_cusparse.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {

Result<std::string> cusparse_version(const std::string& library) {
  FDMA_TRY(const cusparse::GpuCusparse* const gpu, gpu_cusparse());
  return gpu->version(library);
}

CusparseAttention::CusparseAttention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CusparseAttention::CusparseAttention(CusparseAttention&&) noexcept = default;
CusparseAttention& CusparseAttention::operator=(CusparseAttention&&) noexcept = default;
CusparseAttention::~CusparseAttention() = default;

const AttentionShape& CusparseAttention::shape() const { return impl_->shape; }
int CusparseAttention::device() const { return impl_->device; }
std::int64_t CusparseAttention::size_bytes() const { return impl_->size_bytes; }
std::int64_t CusparseAttention::num_cells() const { return impl_->num_cells; }

Result<CusparseAttention> CusparseAttention::make(const BlockMask& mask,
                                                  const AttentionShape& shape,
                                                  const ScoreSpec& score,
                                                  const CusparseOptions& options) {
  FDMA_TRY(const cusparse::GpuCusparse* const gpu, gpu_cusparse());
  FDMA_TRY_VOID(validate(shape));
  FDMA_TRY_VOID(check_computed(score, {.key_bias = true}, "cuSPARSE"));
  FDMA_TRY_VOID(check_mask_fits(mask, shape));
  FDMA_TRY_VOID(check_backend(Backend::sm90));
  FDMA_TRY(std::unique_ptr<Impl> impl, gpu->prepare(mask, shape, score, options));
  return CusparseAttention(std::move(impl));
}

Result<void> CusparseAttention::forward(const AttentionTensors& tensors, Stream stream,
                                        const AttentionOptions& options) {
  FDMA_TRY(const CheckedCall call,
           checked_call(impl_->shape, impl_->score, tensors, options, Device::cuda));
  if (call.out_low.data != nullptr) {
    return Error{ErrorCode::unsupported, "out_low: cuSPARSE gives none"};
  }
  FDMA_TRY(const int device, current_device());
  if (device != impl_->device) {
    return Error{ErrorCode::unsupported,
                 "the patterns are on CUDA device " + std::to_string(impl_->device) +
                     ", but the current device is " + std::to_string(device)};
  }
  return impl_->run(call, stream);
}

}  // namespace fdma
