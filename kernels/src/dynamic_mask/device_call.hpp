// Dynamic Mask Attention on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma::dynamic_mask {

/// What a DynamicMaskAttention for sm90 holds on its device.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;
  virtual SelectionReading reading() const = 0;
  virtual std::int32_t heads_per_tile() const = 0;
  virtual int device() const = 0;
  virtual std::int64_t size_bytes() const = 0;
  virtual std::int64_t workspace_bytes() const = 0;
  virtual Result<void> run(const DynamicMaskTensors& tensors, void* workspace,
                           std::uint32_t* status, Stream stream,
                           const DynamicMaskOptions& options) const = 0;
  virtual std::int64_t backward_workspace_bytes(const BackwardOptions& options) const = 0;
  virtual Result<void> backward(const DynamicMaskBackwardTensors& tensors, void* workspace,
                                Stream stream, const BackwardOptions& options) const = 0;
  virtual Result<std::vector<ColumnIntervals>> to_host(const Interval* kept,
                                                       Stream stream) const = 0;
};

/// Implemented by device_call.cu.
class GpuDynamicMask {
 public:
  /// On the current device. Errors: those of DynamicMaskAttention::make.
  virtual Result<std::unique_ptr<DeviceCall>> prepare(const DynamicMaskSpec& spec,
                                                      const TopkRows& rows,
                                                      Stream stream) const = 0;

 protected:
  ~GpuDynamicMask() = default;
};

}  // namespace fdma::dynamic_mask
