// What host code asks of a GPU: interfaces that only a build with CUDA implements. The sources that
// ask are compiled in every build; gpu_library() alone knows whether there is an implementation.
//
// This header declares the interfaces and includes none of them: each is defined in its room, and a
// CUDA source of that room implements it. So it stands below all of these rooms.
#pragma once

#include <memory>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

struct MergeCall;        // call/merge_call.hpp
class AttentionBackend;  // fdma/kernels/attention_backend.hpp
class GpuMemory;         // cuda/gpu_memory.hpp
class GpuStreams;        // cuda/gpu_streams.hpp
namespace zoh {
class GpuScores;           // selection/scores/gpu_scores.hpp
class GpuScoreGradients;   // selection/scores/gpu_scores.hpp
class GpuTopk;             // selection/topk/device_topk.hpp
class GpuIncrementalTopk;  // selection/topk/device_incremental_topk.hpp
}  // namespace zoh
namespace dynamic_mask {
class GpuDynamicMask;  // dynamic_mask/device_call.hpp
}
namespace cusparse {
class GpuCusparse;  // cusparse/gpu_cusparse.hpp
}

/// The interfaces of a build with CUDA. They exist whether or not the machine has a GPU.
struct GpuLibrary {
  const GpuMemory& memory;
  const GpuStreams& streams;
  const zoh::GpuScores& scores;
  const zoh::GpuScoreGradients& score_gradients;
  const zoh::GpuTopk& topk;
  const zoh::GpuIncrementalTopk& incremental_topk;
  const dynamic_mask::GpuDynamicMask& dynamic_mask;
  std::unique_ptr<AttentionBackend> (*make_sm90_backend)();
  Result<void> (*merge)(const MergeCall& call, Stream stream);  ///< of one row or more
};

/// Errors      unsupported: this build has no CUDA
Result<const GpuLibrary*> gpu_library();

/// The baseline by cuSPARSE, which takes cusparse.h besides.
///
/// Errors      unsupported: this build has no CUDA, or was made without cusparse.h
Result<const cusparse::GpuCusparse*> gpu_cusparse();

/// The implementations, for gpu_library() and gpu_cusparse() alone. The CUDA source that is named
/// defines each.
namespace with_cuda {
const GpuMemory& memory();                                 // cuda/device_memory.cu
const GpuStreams& streams();                               // cuda/device_stream.cu
const zoh::GpuScores& scores();                            // selection/scores/zoh_scores.cu
const zoh::GpuScoreGradients& score_gradients();           // selection/scores/zoh_backward.cu
const zoh::GpuTopk& topk();                                // selection/topk/select_topk.cu
const zoh::GpuIncrementalTopk& incremental_topk();         // selection/topk/incremental_step.cu
const dynamic_mask::GpuDynamicMask& dynamic_mask();        // dynamic_mask/device_call.cu
std::unique_ptr<AttentionBackend> make_sm90_backend();     // backend/sm90_backend.cu
Result<void> merge(const MergeCall& call, Stream stream);  // cuda/merge.cu
const cusparse::GpuCusparse& cusparse();                   // cusparse/cusparse_attention.cu
}  // namespace with_cuda

}  // namespace fdma
