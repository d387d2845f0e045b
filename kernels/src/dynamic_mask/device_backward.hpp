// The backward pass of Dynamic Mask Attention on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/device_plan.hpp"
#include "dynamic_mask/device_kv_worklist.hpp"
#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma::dynamic_mask {

/// What backward calls of a shape need. If a selection was made (`reading` of the forward call is
/// not all), the device lists the kept keys by live range. Otherwise the host plans M, once.
class DeviceBackward {
 public:
  /// Errors  those of make_plan and upload
  static Result<DeviceBackward> make(const DynamicMaskSpec& spec, const TopkRows& rows,
                                     SelectionReading reading, Stream stream);

  std::int64_t size_bytes() const { return plan_->size_bytes; }
  std::int64_t workspace_bytes(const BackwardOptions& options) const {
    return layout(options).bytes;
  }
  /// `q_lens`: [batch * heads_kv] on the device.
  Result<void> run(const DynamicMaskSpec& spec, const DynamicMaskBackwardTensors& tensors,
                   const std::int32_t* q_lens, void* workspace, Stream stream,
                   const BackwardOptions& options) const;

 private:
  // Offsets in the workspace, in bytes.
  struct Layout {
    std::int64_t scores = 0, zoh = 0, attention = 0;
    std::int64_t scratch = 0, keys = 0, work_tiles = 0, num_work_tiles = 0;
    std::int64_t accum_keys = 0, num_accum_rows = 0, zero_counters = 0, dk_accum = 0, dv_accum = 0;
    std::int64_t dbias_accum = 0, first_positions = 0, positions = 0;  // for deterministic calls
    std::int64_t bytes = 0;
  };

  DeviceBackward(std::unique_ptr<gpu::DevicePlan> plan, std::optional<KvWorklistRoom> room)
      : plan_(std::move(plan)), room_(room) {}
  KvWorklistRoom room(const BackwardOptions& options) const;
  Layout make_layout(const DynamicMaskSpec& spec, const BackwardOptions& options) const;
  const Layout& layout(const BackwardOptions& options) const {
    return options.deterministic ? deterministic_layout_ : layout_;
  }
  Result<void> attend_to_worklist(const BackwardTensors& tensors, const Interval* kept,
                                  const std::int32_t* q_lens, char* base, Stream stream,
                                  const BackwardOptions& options) const;

  std::unique_ptr<gpu::DevicePlan> plan_;  // of listed calls only its header is read
  std::optional<KvWorklistRoom> room_;     // for listed calls
  Layout layout_, deterministic_layout_;
};

}  // namespace fdma::dynamic_mask
