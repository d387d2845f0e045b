// cuSPARSE descriptors that destroy themselves.
#pragma once

#include <memory>
#include <type_traits>

#include "cusparse/cusparse_library.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::cusparse {

/// The cuSPARSE name of float32, float16 and bfloat16.
inline cudaDataType cuda_type(DType dtype) {
  if (dtype == DType::float16) return CUDA_R_16F;
  return dtype == DType::bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

struct EndHandle {
  const Library* library;
  void operator()(cusparseHandle_t handle) const { library->destroy(handle); }
};
struct EndSparse {
  const Library* library;
  void operator()(cusparseSpMatDescr_t matrix) const { library->destroy_sparse(matrix); }
};
struct EndDense {
  const Library* library;
  void operator()(cusparseDnMatDescr_t matrix) const { library->destroy_dense(matrix); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cusparseHandle_t>, EndHandle>;
using SparseMatrix = std::unique_ptr<std::remove_pointer_t<cusparseSpMatDescr_t>, EndSparse>;
using DenseMatrix = std::unique_ptr<std::remove_pointer_t<cusparseDnMatDescr_t>, EndDense>;

inline Result<Handle> make_handle(const Library& library) {
  cusparseHandle_t handle = nullptr;
  FDMA_TRY_VOID(library.check(library.create(&handle), "cusparseCreate"));
  return Result<Handle>(Handle(handle, EndHandle{&library}));
}

/// A CSR pattern in device memory.
struct Csr {
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  std::int64_t num_cells = 0;
  void* row_offsets = nullptr;
  void* columns = nullptr;
  bool is_wide = false;  ///< 64-bit offsets and columns
};

inline Result<SparseMatrix> make_csr(const Library& library, const Csr& csr, void* values,
                                     DType dtype) {
  const cusparseIndexType_t index = csr.is_wide ? CUSPARSE_INDEX_64I : CUSPARSE_INDEX_32I;
  cusparseSpMatDescr_t matrix = nullptr;
  FDMA_TRY_VOID(
      library.check(library.create_csr(&matrix, csr.num_rows, csr.num_columns, csr.num_cells,
                                       csr.row_offsets, csr.columns, values, index, index,
                                       CUSPARSE_INDEX_BASE_ZERO, cuda_type(dtype)),
                    "cusparseCreateCsr"));
  return Result<SparseMatrix>(SparseMatrix(matrix, EndSparse{&library}));
}

/// A matrix whose rows (or columns, by `order`) are `stride` elements apart.
inline Result<DenseMatrix> make_dense(const Library& library, std::int64_t num_rows,
                                      std::int64_t num_columns, std::int64_t stride,
                                      const void* data, DType dtype, cusparseOrder_t order) {
  cusparseDnMatDescr_t matrix = nullptr;
  // cuSPARSE has one type of descriptor, for matrices that it reads and those that it writes.
  FDMA_TRY_VOID(
      library.check(library.create_dense(&matrix, num_rows, num_columns, stride,
                                         const_cast<void*>(data), cuda_type(dtype), order),
                    "cusparseCreateDnMat"));
  return Result<DenseMatrix>(DenseMatrix(matrix, EndDense{&library}));
}

}  // namespace fdma::cusparse
