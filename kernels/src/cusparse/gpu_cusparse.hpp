// What cusparse_attention.cpp asks of a build with cusparse.h; cusparse_attention.cu implements it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "call/attention_call.hpp"
#include "fdma/kernels/cusparse_attention.hpp"

namespace fdma {

/// A mask and shape on a device.
struct CusparseAttention::Impl {
  AttentionShape shape;
  ScoreSpec score;
  int device = -1;
  std::int64_t size_bytes = 0;
  std::int64_t num_cells = 0;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  virtual ~Impl() = default;
  /// Runs a call that was checked against shape and score, on `device`, which is the current one.
  virtual Result<void> run(const CheckedCall& call, Stream stream) = 0;
};

namespace cusparse {

class GpuCusparse {
 public:
  /// cusparse_version
  virtual Result<std::string> version(const std::string& library) const = 0;
  /// CusparseAttention::make of a mask that fits the shape.
  virtual Result<std::unique_ptr<CusparseAttention::Impl>> prepare(
      const BlockMask& mask, const AttentionShape& shape, const ScoreSpec& score,
      const CusparseOptions& options) const = 0;

 protected:
  ~GpuCusparse() = default;
};

}  // namespace cusparse
}  // namespace fdma
