// The cuSPARSE of this process. It is opened at the first use and called through function pointers.
// It is 160 MB, so nothing links it.
#pragma once

#include <cusparse.h>

#include <string>

#include "fdma/base/result.hpp"

namespace fdma::cusparse {

/// The functions that FDMA calls, each with its declaration in cusparse.h.
struct Library {
  decltype(&::cusparseGetProperty) get_property = nullptr;
  decltype(&::cusparseGetErrorString) error_string = nullptr;
  decltype(&::cusparseCreate) create = nullptr;
  decltype(&::cusparseDestroy) destroy = nullptr;
  decltype(&::cusparseSetStream) set_stream = nullptr;
  decltype(&::cusparseCreateCsr) create_csr = nullptr;
  decltype(&::cusparseDestroySpMat) destroy_sparse = nullptr;
  decltype(&::cusparseCreateDnMat) create_dense = nullptr;
  decltype(&::cusparseDestroyDnMat) destroy_dense = nullptr;
  decltype(&::cusparseSDDMM_bufferSize) sddmm_buffer_size = nullptr;
  decltype(&::cusparseSDDMM_preprocess) sddmm_preprocess = nullptr;
  decltype(&::cusparseSDDMM) sddmm = nullptr;
  decltype(&::cusparseSpMM_bufferSize) spmm_buffer_size = nullptr;
  decltype(&::cusparseSpMM_preprocess) spmm_preprocess = nullptr;
  decltype(&::cusparseSpMM) spmm = nullptr;

  /// Success for CUSPARSE_STATUS_SUCCESS, otherwise unsupported, out_of_memory or cuda, with a
  /// message that names the call.
  Result<void> check(cusparseStatus_t status, const char* call) const;
  /// Major, minor and patch, for example "12.6.3".
  Result<std::string> version() const;
};

/// Opens the library at `path` (a file or a folder), or where CusparseOptions::library says. It
/// stays loaded until the process ends. Any thread may call this.
///
/// Errors  unsupported, with the reasons of the dynamic linker and how to get it
Result<const Library*> open_library(const std::string& path);

}  // namespace fdma::cusparse
