// CusparseAttention on a device: patterns, buffers, and one SDDMM, softmax and SpMM for each head.
// It is a baseline and an oracle for the GPU backends.
//
// Heads run one after the other. cuSPARSE can batch CSR matrices, but needs the columns of each of
// them stored separately, which is 4 bytes per cell and head. Here heads that see the same keys
// share one pattern. A head of a few thousand rows fills the device by itself.
//
// SpMM writes float32 whatever it reads. For a 16-bit result its second algorithm splits rows and
// rounds after adding each part, which gives up to three times the error of one rounding.
//
// cuSPARSE takes rows in place if they do not overlap, their stride is a multiple of 16 bytes and
// their address is 16-aligned. All other rows are first copied into scratch rows of the head, and
// so are rows that have to be widened. Offsets inside a matrix stay below 2^31 elements, because
// its kernels may count in 32 bits.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "call/attention_call.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "cusparse/csr_kernels.hpp"
#include "cusparse/csr_rows.hpp"
#include "cusparse/descriptors.hpp"
#include "cusparse/gpu_cusparse.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/cusparse_attention.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {

using cusparse::Csr;
using cusparse::DenseMatrix;
using cusparse::MutableRows;
using cusparse::Rows;
using cusparse::SparseMatrix;
using gpu::check_cuda;

namespace {

constexpr std::int64_t kMaxNarrow = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kAlignment = 16;

cusparseSpMMAlg_t spmm_algorithm(CusparseSpmm spmm) {
  switch (spmm) {
    case CusparseSpmm::alg1:
      return CUSPARSE_SPMM_CSR_ALG1;
    case CusparseSpmm::alg2:
      return CUSPARSE_SPMM_CSR_ALG2;
    case CusparseSpmm::alg3:
      break;
  }
  return CUSPARSE_SPMM_CSR_ALG3;
}

// One distinct mask.
struct Pattern {
  Csr csr;
  DeviceMemory row_offsets, columns;
  SparseMatrix logits, probabilities;  // none if there are no cells
  DeviceMemory sddmm_buffer, spmm_buffer;
};

template <class T>
Result<DeviceMemory> uploaded(const std::vector<T>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  FDMA_TRY(DeviceMemory memory, DeviceMemory::allocate(bytes));
  FDMA_TRY_VOID(copy_to_device(memory.data(), values.data(), bytes));
  return Result<DeviceMemory>(std::move(memory));
}

Result<Pattern> make_pattern(const SegmentMask& mask, bool has_wide_indices) {
  const CsrRows rows = csr_rows_of(mask);
  Pattern pattern;
  Csr& csr = pattern.csr;
  csr.num_rows = rows.q_len;
  csr.num_columns = rows.kv_len;
  csr.num_cells = rows.num_cells();
  csr.is_wide = has_wide_indices || csr.num_cells > kMaxNarrow;
  const std::int64_t index_bytes = csr.is_wide ? 8 : 4;
  if (csr.is_wide) {
    FDMA_TRY(pattern.row_offsets, uploaded(rows.row_offsets));
  } else {
    const std::vector<std::int32_t> narrow(rows.row_offsets.begin(), rows.row_offsets.end());
    FDMA_TRY(pattern.row_offsets, uploaded(narrow));
  }
  FDMA_TRY(pattern.columns, DeviceMemory::allocate(csr.num_cells * index_bytes));
  csr.row_offsets = pattern.row_offsets.data();
  csr.columns = pattern.columns.data();
  if (csr.num_cells == 0) return Result<Pattern>(std::move(pattern));
  FDMA_TRY(const DeviceMemory interval_offsets, uploaded(rows.interval_offsets));
  FDMA_TRY(const DeviceMemory intervals, uploaded(rows.intervals));
  FDMA_TRY_VOID(check_cuda(
      cusparse::expand_columns(
          csr.num_rows, csr.row_offsets, static_cast<const std::int64_t*>(interval_offsets.data()),
          static_cast<const Interval*>(intervals.data()), csr.columns, csr.is_wide, nullptr),
      "expand_columns"));
  FDMA_TRY_VOID(check_cuda(cudaStreamSynchronize(nullptr), "expand_columns"));
  return Result<Pattern>(std::move(pattern));
}

// The types of the three steps.
struct StepTypes {
  DType operands = DType::float32;       // of q and k
  DType probabilities = DType::float32;  // and of v
};

StepTypes step_types(const AttentionShape& shape, CusparsePrecision precision) {
  StepTypes types;
  if (precision == CusparsePrecision::float32) return types;
  if (shape.q_dtype == DType::float16 && shape.k_dtype == DType::float16) {
    types.operands = DType::float16;
  }
  types.probabilities = shape.v_dtype;
  return types;
}

// Rows of scratch memory that hold any operand of a head.
struct Scratch {
  DeviceMemory memory;
  MutableRows rows;
};

Result<Scratch> make_scratch(std::int64_t num_rows, std::int64_t num_columns, DType dtype) {
  Scratch scratch;
  const std::int64_t stride = ceil_div(num_columns, 8) * 8;
  FDMA_TRY(scratch.memory, DeviceMemory::allocate(num_rows * stride * size_bytes(dtype)));
  scratch.rows = {scratch.memory.data(), dtype, stride};
  return Result<Scratch>(std::move(scratch));
}

// Head h of batch element b.
template <class Data>
cusparse::BasicRows<Data> head_of(const BasicStrided<Data>& tensor, std::int64_t b,
                                  std::int64_t h) {
  return {tensor.row(b, 0, h), tensor.dtype, tensor.row_stride};
}

bool is_usable(const Rows& rows, std::int64_t num_rows, std::int64_t num_columns, DType wanted) {
  return rows.dtype == wanted && rows.row_stride >= num_columns &&
         rows.row_stride * size_bytes(wanted) % kAlignment == 0 &&
         reinterpret_cast<std::uintptr_t>(rows.data) % kAlignment == 0 &&
         rows.row_stride <= kMaxNarrow / num_rows;
}

// Returns the rows at an address that the library can read: in place, or in scratch memory.
Result<Rows> readable(const Rows& rows, std::int64_t num_rows, std::int64_t num_columns,
                      const Scratch& scratch, Stream stream) {
  if (is_usable(rows, num_rows, num_columns, scratch.rows.dtype)) return rows;
  FDMA_TRY_VOID(check_cuda(cusparse::copy_rows(rows, scratch.rows, num_rows, num_columns, stream),
                           "copy_rows"));
  return Rows(scratch.rows);
}

struct PreparedMask final : CusparseAttention::Impl {
  const cusparse::Library* library = nullptr;
  cusparse::Handle handle{nullptr, {}};
  StepTypes types;
  cusparseSpMMAlg_t spmm = CUSPARSE_SPMM_CSR_ALG3;
  std::vector<Pattern> patterns;           // one per group of the mask
  std::vector<std::int32_t> pattern_of;    // [batch * heads_q]
  DeviceMemory logits, own_probabilities;  // of one head; the second only if they are not float32
  Scratch q, k, v, out;

  void* probabilities() const {
    return types.probabilities == DType::float32 ? logits.data() : own_probabilities.data();
  }
  // Keys as the columns of a matrix.
  Result<DenseMatrix> keys(const Csr& csr, const Rows& rows) const {
    return make_dense(*library, shape.head_dim, csr.num_columns, rows.row_stride, rows.data,
                      rows.dtype, CUSPARSE_ORDER_COL);
  }
  Result<DenseMatrix> matrix(std::int64_t num_rows, std::int64_t num_columns,
                             const Rows& rows) const {
    return make_dense(*library, num_rows, num_columns, rows.row_stride, rows.data, rows.dtype,
                      CUSPARSE_ORDER_ROW);
  }

  Result<void> make_patterns(const BlockMask& mask, bool has_wide_indices);
  Result<void> make_buffers();
  Result<void> prepare(Pattern& pattern);
  Result<void> run_head(const Pattern& pattern, const CheckedCall& call, std::int64_t b,
                        std::int64_t h, const Rows& keys_of_head, const Rows& values_of_head,
                        Stream stream);
  Result<void> run(const CheckedCall& call, Stream stream) override;
};

Result<void> PreparedMask::make_patterns(const BlockMask& mask, bool has_wide_indices) {
  for (std::int64_t g = 0; g < mask.num_groups(); ++g) {
    FDMA_TRY(Pattern pattern,
             make_pattern(segment_of_group(mask, g, mask.block), has_wide_indices));
    size_bytes += pattern.row_offsets.size_bytes() + pattern.columns.size_bytes();
    num_cells += pattern.csr.num_cells;
    patterns.push_back(std::move(pattern));
  }
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      pattern_of.push_back(
          mask.group(mask.shape.num_batches == 1 ? 0 : b, mask.shape.num_heads == 1 ? 0 : h));
    }
  }
  return {};
}

Result<void> PreparedMask::make_buffers() {
  std::int64_t most_cells = 0;
  for (const Pattern& pattern : patterns) most_cells = std::max(most_cells, pattern.csr.num_cells);
  FDMA_TRY(logits, DeviceMemory::allocate(most_cells * 4));
  if (types.probabilities != DType::float32) {
    FDMA_TRY(own_probabilities, DeviceMemory::allocate(most_cells * 2));
  }
  const std::int64_t q_len = shape.max_q_len(), kv_len = shape.max_kv_len();
  FDMA_TRY(q, make_scratch(q_len, shape.head_dim, types.operands));
  FDMA_TRY(k, make_scratch(kv_len, shape.head_dim, types.operands));
  FDMA_TRY(v, make_scratch(kv_len, shape.head_dim_v, types.probabilities));
  FDMA_TRY(out, make_scratch(q_len, shape.head_dim_v, DType::float32));
  for (const DeviceMemory* memory :
       {&logits, &own_probabilities, &q.memory, &k.memory, &v.memory, &out.memory}) {
    size_bytes += memory->size_bytes();
  }
  return {};
}

// Makes descriptors and buffers of one pattern. Both products preprocess it now instead of at every
// call.
Result<void> PreparedMask::prepare(Pattern& pattern) {
  const Csr& csr = pattern.csr;
  if (csr.num_cells == 0) return {};
  FDMA_TRY(pattern.logits, make_csr(*library, csr, logits.data(), DType::float32));
  FDMA_TRY(pattern.probabilities, make_csr(*library, csr, probabilities(), types.probabilities));
  FDMA_TRY(const DenseMatrix q_matrix, matrix(csr.num_rows, shape.head_dim, q.rows));
  FDMA_TRY(const DenseMatrix k_matrix, keys(csr, k.rows));
  FDMA_TRY(const DenseMatrix v_matrix, matrix(csr.num_columns, shape.head_dim_v, v.rows));
  FDMA_TRY(const DenseMatrix out_matrix, matrix(csr.num_rows, shape.head_dim_v, out.rows));
  const float one = 1, zero = 0;
  std::size_t bytes = 0;
  FDMA_TRY_VOID(library->check(
      library->sddmm_buffer_size(handle.get(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                                 CUSPARSE_OPERATION_NON_TRANSPOSE, &one, q_matrix.get(),
                                 k_matrix.get(), &zero, pattern.logits.get(), CUDA_R_32F,
                                 CUSPARSE_SDDMM_ALG_DEFAULT, &bytes),
      "cusparseSDDMM_bufferSize"));
  FDMA_TRY(pattern.sddmm_buffer, DeviceMemory::allocate(static_cast<std::int64_t>(bytes)));
  FDMA_TRY_VOID(library->check(
      library->sddmm_preprocess(handle.get(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                                CUSPARSE_OPERATION_NON_TRANSPOSE, &one, q_matrix.get(),
                                k_matrix.get(), &zero, pattern.logits.get(), CUDA_R_32F,
                                CUSPARSE_SDDMM_ALG_DEFAULT, pattern.sddmm_buffer.data()),
      "cusparseSDDMM_preprocess"));
  FDMA_TRY_VOID(library->check(
      library->spmm_buffer_size(handle.get(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                                CUSPARSE_OPERATION_NON_TRANSPOSE, &one, pattern.probabilities.get(),
                                v_matrix.get(), &zero, out_matrix.get(), CUDA_R_32F, spmm, &bytes),
      "cusparseSpMM_bufferSize"));
  FDMA_TRY(pattern.spmm_buffer, DeviceMemory::allocate(static_cast<std::int64_t>(bytes)));
  FDMA_TRY_VOID(library->check(
      library->spmm_preprocess(handle.get(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                               CUSPARSE_OPERATION_NON_TRANSPOSE, &one, pattern.probabilities.get(),
                               v_matrix.get(), &zero, out_matrix.get(), CUDA_R_32F, spmm,
                               pattern.spmm_buffer.data()),
      "cusparseSpMM_preprocess"));
  size_bytes += pattern.sddmm_buffer.size_bytes() + pattern.spmm_buffer.size_bytes();
  return {};
}

Result<void> PreparedMask::run_head(const Pattern& pattern, const CheckedCall& call, std::int64_t b,
                                    std::int64_t h, const Rows& keys_of_head,
                                    const Rows& values_of_head, Stream stream) {
  const Csr& csr = pattern.csr;
  const std::int64_t h_kv = h / shape.group_size();
  const MutableRows out_of_head = head_of(call.out, b, h);
  cusparse::SoftmaxArguments softmax;
  softmax.num_rows = csr.num_rows;
  softmax.row_offsets = csr.row_offsets;
  softmax.columns = csr.columns;
  softmax.logits = static_cast<float*>(logits.data());
  softmax.probabilities = probabilities();
  softmax.scale = call.scale;
  const auto batch = static_cast<std::int32_t>(b);
  if (call.key_bias.data != nullptr) {
    softmax.key_bias = call.key_bias.head(batch, static_cast<std::int32_t>(h_kv));
  }
  if (call.lse.data != nullptr) {
    softmax.lse = call.lse.place(batch, static_cast<std::int32_t>(h), 0);
    softmax.lse_stride = call.lse.row_stride;
  }
  const float one = 1, zero = 0;
  if (csr.num_cells > 0) {
    FDMA_TRY(const Rows q_rows,
             readable(head_of(call.q, b, h), csr.num_rows, shape.head_dim, q, stream));
    FDMA_TRY(const DenseMatrix q_matrix, matrix(csr.num_rows, shape.head_dim, q_rows));
    FDMA_TRY(const DenseMatrix k_matrix, keys(csr, keys_of_head));
    FDMA_TRY_VOID(
        library->check(library->sddmm(handle.get(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                                      CUSPARSE_OPERATION_NON_TRANSPOSE, &one, q_matrix.get(),
                                      k_matrix.get(), &zero, pattern.logits.get(), CUDA_R_32F,
                                      CUSPARSE_SDDMM_ALG_DEFAULT, pattern.sddmm_buffer.data()),
                       "cusparseSDDMM"));
  }
  FDMA_TRY_VOID(check_cuda(
      cusparse::softmax_rows(softmax, types.probabilities, csr.is_wide, stream), "softmax_rows"));
  if (csr.num_cells == 0) {
    return check_cuda(cusparse::copy_rows({}, out_of_head, csr.num_rows, shape.head_dim_v, stream),
                      "copy_rows");
  }
  const bool is_direct = is_usable(out_of_head, csr.num_rows, shape.head_dim_v, DType::float32);
  const MutableRows out_rows = is_direct ? out_of_head : out.rows;
  FDMA_TRY(const DenseMatrix v_matrix, matrix(csr.num_columns, shape.head_dim_v, values_of_head));
  FDMA_TRY(const DenseMatrix out_matrix, matrix(csr.num_rows, shape.head_dim_v, out_rows));
  FDMA_TRY_VOID(
      library->check(library->spmm(handle.get(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                                   CUSPARSE_OPERATION_NON_TRANSPOSE, &one,
                                   pattern.probabilities.get(), v_matrix.get(), &zero,
                                   out_matrix.get(), CUDA_R_32F, spmm, pattern.spmm_buffer.data()),
                     "cusparseSpMM"));
  if (is_direct) return {};
  return check_cuda(
      cusparse::copy_rows(out_rows, out_of_head, csr.num_rows, shape.head_dim_v, stream),
      "copy_rows");
}

Result<void> PreparedMask::run(const CheckedCall& call, Stream stream) {
  FDMA_TRY_VOID(library->check(library->set_stream(handle.get(), stream), "cusparseSetStream"));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    if (shape.q_len(b) == 0) continue;
    const std::int64_t kv_len = shape.kv_len(b);
    for (std::int64_t h_kv = 0; h_kv < shape.heads_kv; ++h_kv) {
      Rows keys_of_head, values_of_head;
      if (kv_len > 0) {  // once for all query heads of the group
        FDMA_TRY(keys_of_head,
                 readable(head_of(call.k, b, h_kv), kv_len, shape.head_dim, k, stream));
        FDMA_TRY(values_of_head,
                 readable(head_of(call.v, b, h_kv), kv_len, shape.head_dim_v, v, stream));
      }
      for (std::int64_t h = h_kv * shape.group_size(); h < (h_kv + 1) * shape.group_size(); ++h) {
        const auto group =
            static_cast<std::size_t>(pattern_of[static_cast<std::size_t>(b * shape.heads_q + h)]);
        FDMA_TRY_VOID(run_head(patterns[group], call, b, h, keys_of_head, values_of_head, stream));
      }
    }
  }
  return {};
}

class CudaCusparse final : public cusparse::GpuCusparse {
 public:
  Result<std::string> version(const std::string& path) const override {
    FDMA_TRY(const cusparse::Library* const library, cusparse::open_library(path));
    return library->version();
  }

  Result<std::unique_ptr<CusparseAttention::Impl>> prepare(
      const BlockMask& mask, const AttentionShape& shape, const ScoreSpec& score,
      const CusparseOptions& options) const override {
    auto prepared = std::make_unique<PreparedMask>();
    FDMA_TRY(prepared->library, cusparse::open_library(options.library));
    FDMA_TRY(prepared->device, current_device());
    FDMA_TRY(prepared->handle, cusparse::make_handle(*prepared->library));
    prepared->shape = shape;
    prepared->score = score;
    prepared->types = step_types(shape, options.precision);
    prepared->spmm = spmm_algorithm(options.spmm);
    try {
      FDMA_TRY_VOID(prepared->make_patterns(mask, options.has_wide_indices));
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::out_of_memory,
                   "mask: no host memory for the key intervals of its rows"};
    }
    FDMA_TRY_VOID(prepared->make_buffers());
    for (Pattern& pattern : prepared->patterns) FDMA_TRY_VOID(prepared->prepare(pattern));
    FDMA_TRY_VOID(check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"));
    return Result<std::unique_ptr<CusparseAttention::Impl>>(std::move(prepared));
  }
};

}  // namespace

const cusparse::GpuCusparse& with_cuda::cusparse() {
  static const CudaCusparse cusparse;
  return cusparse;
}

}  // namespace fdma
