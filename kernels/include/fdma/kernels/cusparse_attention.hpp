// Attention by cuSPARSE alone: scores on the cells of a mask, softmax of each row, times V.
//
// This is what a user of the sparse library gets, and an oracle for tests that shares nothing with
// the attention kernels. The cells are the elements of a matrix in compressed rows (CSR); neither
// tiles nor plans exist. For each batch element and head
//
//     SDDMM     logits = (q k^T) at the cells that the mask keeps
//     softmax   of softmax_scale * logits + key bias, row by row (a kernel of FDMA's own)
//     SpMM      out = probabilities v
//
// Memory is 8 bytes or more a cell, so this is for thousands of tokens, not for millions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// What is rounded on the way from q, k, v to out. In both cases logits are float32, products are
/// summed and rows normalised in float32, and out is rounded once.
enum class CusparsePrecision : std::uint8_t {
  float32,  ///< 16-bit tensors are widened, which is exact; probabilities stay float32
  tensor,  ///< the types of the tensors where cuSPARSE takes them: probabilities are rounded to v's
           ///< type; q and k are widened unless both are float16 (cuSPARSE has no bfloat16 SDDMM)
};

/// cuSPARSE's algorithms for SpMM on CSR, by its names (CUSPARSE_SPMM_CSR_ALG1 to 3). The third
/// gives the same bits every run and is the fastest at nearly all that the benchmark measures.
enum class CusparseSpmm : std::uint8_t { alg1, alg2, alg3 };

struct CusparseOptions {
  CusparsePrecision precision = CusparsePrecision::float32;
  CusparseSpmm spmm = CusparseSpmm::alg3;
  /// 64-bit indices even where 32-bit ones are enough (they are below 2^31 cells a mask).
  bool has_wide_indices = false;
  /// The path of libcusparse.so.12, or of the folder that holds it. Empty: the environment variable
  /// FDMA_CUSPARSE; without it a copy that the process has loaded (PyTorch's, for example), or the
  /// one that the dynamic linker finds.
  std::string library;
};

/// The version of the cuSPARSE that calls would use, for example "12.6.3". The first call opens the
/// library; nothing else of FDMA opens it.
///
/// Errors      unsupported: the library is not there (the message says how to get it), or this
///             build has no cuSPARSE path
Result<std::string> cusparse_version(const std::string& library = {});

/// A mask and shape prepared for cuSPARSE: one CSR pattern for each distinct mask, descriptors and
/// buffers. Make once, run many times.
///
/// Owner       owns its device memory (size_bytes), released by the destructor, which waits for the
///             kernels that use it
class CusparseAttention {
 public:
  /// Prepares on the current device. Everything has run when the call returns; the mask may be
  /// destroyed then.
  ///
  /// Shapes      `mask` fits `shape` as in make_plan: 1 or `batch` elements, 1 or heads_q heads
  /// Errors      shape_mismatch, invalid_argument; unsupported (library, build, GPU, score);
  ///             out_of_memory; cuda
  /// Cost        4 B (8 B with 64-bit indices) a cell of each distinct mask, and the buffers that
  ///             cuSPARSE asks for (0 to 11 B a cell, as measured)
  ///             4 B a cell of the largest mask, 6 B where probabilities are 16-bit
  ///             the tensors of one head
  static Result<CusparseAttention> make(const BlockMask& mask, const AttentionShape& shape,
                                        const ScoreSpec& score = {},
                                        const CusparseOptions& options = {});

  CusparseAttention(CusparseAttention&&) noexcept;
  CusparseAttention& operator=(CusparseAttention&&) noexcept;
  ~CusparseAttention();

  const AttentionShape& shape() const;
  /// The CUDA device that holds it.
  int device() const;
  std::int64_t size_bytes() const;
  /// Cells of all distinct masks.
  std::int64_t num_cells() const;

  /// attention_forward (attention.hpp) in the order of `stream`, one head after the other, without
  /// waiting. Only one call runs at a time, because calls share buffers. Any strides whose last is
  /// 1 are accepted; operands whose row strides are no multiples of 16 bytes, or whose rows
  /// overlap, are copied first. With alg1 and alg2 bits may differ from run to run.
  /// options.num_threads, num_work_tiles_done and is_cancelled do not apply.
  ///
  /// Errors      shape_mismatch, invalid_argument, unsupported (device), cuda
  Result<void> forward(const AttentionTensors& tensors, Stream stream = nullptr,
                       const AttentionOptions& options = {});

  struct Impl;

 private:
  explicit CusparseAttention(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fdma
