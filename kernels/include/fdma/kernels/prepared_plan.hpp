// A plan where its backend runs it, and attention by it.
//
//     FDMA_TRY(AttentionPlan plan, make_plan(mask, shape, score, {.backend = default_backend()}));
//     FDMA_TRY(const std::unique_ptr<PreparedPlan> prepared, prepare(std::move(plan)));
//     FDMA_TRY_VOID(prepared->forward(tensors, {.workspace = workspace, .stream = stream}));
#pragma once

#include <cstdint>
#include <memory>

#include "fdma/base/result.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

struct PrepareOptions {
  /// Prepares what deterministic calls need. On a GPU a backward plan of work tiles or of kv
  /// worklists takes 4 bytes more for each tile that a work tile walks. Other plans need nothing
  /// more.
  bool deterministic = false;
};

/// Where one call runs.
struct Launch {
  /// workspace_bytes() bytes where the backend's tensors lie, 16-aligned, that no other launch uses
  /// at the same time. Not read where workspace_bytes() is 0.
  void* workspace = nullptr;
  Stream stream = nullptr;
  /// A forward launch in a workspace that is kept, which saves a kernel. prepare_workspace has
  /// prepared it, and since then only kept forward launches by this or other plans wrote to it.
  bool is_kept = false;
};

/// A plan that is ready to run. One can be used by every layer and step with the same mask, shapes
/// and dtypes, and by any number of threads and streams at once.
///
/// Owner       owns what it holds in the backend's memory (size_bytes); the destructor waits for the
///             kernels that use it
class PreparedPlan {
 public:
  virtual ~PreparedPlan() = default;
  PreparedPlan(const PreparedPlan&) = delete;
  PreparedPlan& operator=(const PreparedPlan&) = delete;

  Backend backend() const { return backend_; }
  const AttentionShape& shape() const { return shape_; }
  const ScoreSpec& score() const { return score_; }
  Direction direction() const { return direction_; }
  BlockShape tile() const { return tile_; }

  /// The CUDA device that holds it; -1: it runs on the host.
  virtual int device() const { return -1; }
  /// Bytes that it takes where its backend computes.
  virtual std::int64_t size_bytes() const = 0;
  /// Bytes of workspace that one launch needs, a constant of the plan.
  virtual std::int64_t workspace_bytes() const { return 0; }

  /// Prepares the workspace of forward launches to be kept (Launch::is_kept), in the order of
  /// `stream`, without waiting. Errors: cuda.
  virtual Result<void> prepare_workspace(void* /*workspace*/, Stream /*stream*/) const {
    return {};
  }

  /// attention_forward (attention.hpp) by this plan.
  ///
  /// On a GPU the call runs in the order of `launch.stream`. It returns after the launch, without
  /// waiting, and may be captured into a CUDA graph. The bits are the same every run.
  /// options.num_threads, num_work_tiles_done and is_cancelled do not apply. A value in v that is
  /// not finite also makes those rows of a visited tile NaN that do not see its key. Keys past an
  /// element's length never matter.
  ///
  /// Shapes      on a GPU head_dim is contiguous, other strides are multiples of 8 elements, and
  ///             addresses of q, k and v are multiples of 16 bytes
  /// Errors      those of attention_forward; on a GPU also unsupported (strides, alignment, device)
  ///             and cuda. All are checked before the launch
  virtual Result<void> forward(const AttentionTensors& tensors, const Launch& launch = {},
                               const AttentionOptions& options = {}) const = 0;

  /// attention_backward (attention_backward.hpp) by this backward plan. Launches are as of forward.
  ///
  /// On a GPU, with options.deterministic the bits are the same every run, and the call is somewhat
  /// slower; a plan that is not in closed form must have been prepared for it. A value in q, k, v
  /// or dout that is not finite may reach the gradients of any row and key of a visited tile,
  /// whether they see each other or not. Which ones it reaches may differ from run to run, also
  /// with options.deterministic. Elements past a length never matter.
  ///
  /// Errors      those of attention_backward; on a GPU also unsupported (strides, alignment, device)
  ///             and cuda. All are checked before the launch
  virtual Result<void> backward(const BackwardTensors& tensors, const Launch& launch = {},
                                const BackwardOptions& options = {}) const = 0;

 protected:
  explicit PreparedPlan(const AttentionPlan& plan)
      : backend_(plan.backend),
        shape_(plan.shape),
        score_(plan.score),
        direction_(plan.direction),
        tile_(plan.tile) {}

 private:
  Backend backend_;
  AttentionShape shape_;
  ScoreSpec score_;
  Direction direction_;
  BlockShape tile_;
};

/// Brings a plan to where its backend runs: the CPU keeps it, a GPU gets a copy on the current
/// device, in the order of `stream`, for which kernels on other streams must wait. Must not be
/// called while a stream is captured.
///
/// Errors      unsupported (build, GPU), out_of_memory, cuda
Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan> plan,
                                              Stream stream = nullptr,
                                              const PrepareOptions& options = {});
Result<std::unique_ptr<PreparedPlan>> prepare(AttentionPlan plan, Stream stream = nullptr,
                                              const PrepareOptions& options = {});

}  // namespace fdma
