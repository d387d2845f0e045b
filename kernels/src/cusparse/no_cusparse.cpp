// Attention by cuSPARSE in a build without CUDA or without cusparse.h: every call returns an error
// that says so.
#include <memory>
#include <utility>

#include "fdma/kernels/cusparse_attention.hpp"

namespace fdma {
namespace {

Error no_cusparse() {
  return {ErrorCode::unsupported,
          "this build has no cuSPARSE path: without CUDA (FDMA_CUDA=OFF, or no nvcc) or without "
          "cusparse.h, which comes with the CUDA toolkit or as `pip install nvidia-cusparse`; "
          "configure again with -DFDMA_CUSPARSE_INCLUDE_DIR=<the folder of cusparse.h>"};
}

}  // namespace

struct CusparseAttention::Impl {
  AttentionShape shape;
};

Result<std::string> cusparse_version(const std::string&) { return no_cusparse(); }

CusparseAttention::CusparseAttention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CusparseAttention::CusparseAttention(CusparseAttention&&) noexcept = default;
CusparseAttention& CusparseAttention::operator=(CusparseAttention&&) noexcept = default;
CusparseAttention::~CusparseAttention() = default;
const AttentionShape& CusparseAttention::shape() const { return impl_->shape; }
int CusparseAttention::device() const { return -1; }
std::int64_t CusparseAttention::size_bytes() const { return 0; }
std::int64_t CusparseAttention::num_cells() const { return 0; }

Result<CusparseAttention> CusparseAttention::make(const BlockMask&, const AttentionShape&,
                                                  const ScoreSpec&, const CusparseOptions&) {
  return no_cusparse();
}

Result<void> CusparseAttention::forward(const AttentionTensors&, Stream, const AttentionOptions&) {
  return no_cusparse();
}

}  // namespace fdma
