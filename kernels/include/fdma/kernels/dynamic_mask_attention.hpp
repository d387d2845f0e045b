// Dynamic Mask Attention in one call: scores of keys from their values, for each query the keys
// with the best scores, attention over those; and its gradients in another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// What is added to the logit of a kept key; keys are ranked by the same.
enum class ScoreBias : std::uint8_t {
  exp,   ///< exp(A softplus(dt)), or scores as they are given
  log,   ///< A softplus(dt), or scores as they are given
  none,  ///< nothing; ranked as with exp
};
std::string_view to_string(ScoreBias bias);
/// "exp", "log", "none"; else invalid_argument.
Result<ScoreBias> parse_score_bias(std::string_view name);

/// How attention on a GPU reads what was selected.
enum class SelectionReading : std::uint8_t {
  automatic,  ///< what is predicted to be faster, from w, lengths and heads
  gather,     ///< lists of the kept keys of each query tile, made on the GPU
  scan,       ///< every tile with a visible key, cells from the intervals of its keys
  all,        ///< no query sees more than w keys: M itself is the mask
};
std::string_view to_string(SelectionReading reading);

/// What a DynamicMaskAttention is made for.
struct DynamicMaskSpec {
  AttentionShape shape;
  /// Keys that each query keeps at most (keep_window_size).
  std::int64_t w = 0;
  ScoreBias bias = ScoreBias::exp;
  /// A key whose score is 0 is dropped, whoever would keep it.
  bool drops_zero_scores = false;
  /// The masks M among whose keys is selected; none: causal, bottom-right aligned.
  std::vector<ColumnIntervals> masks;
  /// [batch * heads_kv], indices into masks; may be empty where there is one mask.
  std::vector<std::int32_t> mask_of;
  Backend backend = Backend::cpu;
  /// Of sm90; `all` cannot be asked for where it does not hold.
  SelectionReading reading = SelectionReading::automatic;
  /// What `backward` needs is prepared too.
  bool has_gradients = false;
};

/// The tensors of one call, all on the host (cpu) or all on the object's device (sm90).
///
/// Shapes      q, kv, out, lse, out_residual: see AttentionTensors; dt_proj, a_coef: see
/// zoh_scores, values being
///             those of kv.v; scores in place of dt_proj and a_coef: float32 [batch, heads_kv,
///             kv_len], contiguous along keys. Wanted, or data = nullptr: made_scores, the scores
///             of this call, the same shape; kept int32 [batch, heads_kv, kv_len, 2], contiguous:
///             the queries that keep each key, {0, 0} for none
struct DynamicMaskTensors {
  TensorView q;
  KvView kv;
  TensorView dt_proj;
  TensorView a_coef;
  TensorView scores = {};
  MutableTensorView out;
  MutableTensorView lse = {};
  MutableTensorView made_scores = {};
  MutableTensorView kept = {};
  MutableTensorView out_residual = {};
};

/// The tensors of a backward call, all where those of the forward call are.
///
/// Shapes      q, kv, dt_proj, a_coef: those of the forward call (dt_proj and a_coef with data =
///             nullptr where its scores were given); scores: those given, or its made_scores; kept:
///             of that call. The host may do without (data = nullptr): it selects once more; where
///             reading() is all, nothing is read. out, lse, out_residual, dout, dlse, dq, dk, dv:
///             see BackwardTensors. Wanted, or data = nullptr: dscores, the gradient of the scores,
///             shape of the scores and contiguous along keys; ddt_proj, da_coef: shapes of dt_proj
///             and a_coef, each of that input's dtype or float32
/// Written     all of dscores, ddt_proj and da_coef; dq, dk and dv as by attention_backward, of
///             keys that no query keeps 0. dv has the gradient through scores that were made of v
///             as well. Without a bias nothing comes through scores: dscores, ddt_proj and da_coef
///             are 0
/// Invariants  outputs overlap no other tensor
struct DynamicMaskBackwardTensors {
  TensorView q;
  KvView kv;
  TensorView dt_proj = {};
  TensorView a_coef = {};
  TensorView scores;
  TensorView kept = {};
  TensorView out;
  TensorView lse;
  TensorView dout;
  TensorView dlse = {};
  MutableTensorView dq;
  MutableTensorView dk;
  MutableTensorView dv;
  MutableTensorView dscores = {};
  MutableTensorView ddt_proj = {};
  MutableTensorView da_coef = {};
  TensorView out_residual = {};
};

/// The parts of a call, in their order.
enum class DynamicMaskStage : std::uint8_t { scores, selection, lists, attention };

struct DynamicMaskOptions {
  AttentionOptions attention;
  /// Of sm90, to time parts: only [first, last] run; what earlier ones make is taken from the
  /// workspace as the last call has left it, with the same tensors.
  DynamicMaskStage first = DynamicMaskStage::scores;
  DynamicMaskStage last = DynamicMaskStage::attention;
};

/// Dynamic Mask Attention prepared for a shape, w and M: tensors change from call to call, these do
/// not. On a GPU one serves any number of calls and streams at once.
///
/// Example     w >= kv_len and ScoreBias::none: causal attention
/// Invariants  out and lse are those of attention under the mask that select_topk finds for the
/// same
///             scores, with the scores as key bias; the same bits every run
/// Owner       owns its device memory (size_bytes): that of DeviceTopk, 40 to 64 B for each query
/// tile
///             and head
class DynamicMaskAttention {
 public:
  /// Prepares; for sm90 on the current device, in the order of `stream` and not while one is
  /// captured. Takes masks and mask_of of `spec` over.
  ///
  /// Errors  invalid_argument (w, mask_of), shape_mismatch; unsupported: what make_plan refuses,
  /// and
  ///         for sm90 a mask that needs several intervals per key: the message names backend cpu;
  ///         out_of_memory, cuda
  static Result<DynamicMaskAttention> make(DynamicMaskSpec spec, Stream stream = nullptr);

  DynamicMaskAttention(DynamicMaskAttention&&) noexcept;
  DynamicMaskAttention& operator=(DynamicMaskAttention&&) noexcept;
  ~DynamicMaskAttention();

  const DynamicMaskSpec& spec() const;
  /// Never automatic. Of cpu: scan; there each call's plan decides, tile row by tile row.
  SelectionReading reading() const;
  /// Query heads that share a tile.
  std::int32_t heads_per_tile() const;
  int device() const;  ///< -1: the host
  /// Bytes of device memory that it holds; 0 on the host.
  std::int64_t size_bytes() const;
  /// Bytes of workspace of one call, a constant of the object; 0 on the host.
  std::int64_t workspace_bytes() const;

  /// Attention. On a GPU in the order of `stream`: returns after the launches, without waiting; a
  /// graph may capture them. `workspace`: workspace_bytes() of device memory, 256-aligned, of no
  /// other call at the same time; `status`: one word there, or null: kTopkSawNan is or-ed in where
  /// somebody sees a score that is NaN (on the host that is an error).
  ///
  /// Errors  those of zoh_scores, selection and attention_forward, by the names of the tensors;
  ///         checked before the first launch; on the host before anything is written, but for NaN
  ///         and for `kept` where a key has several intervals (unsupported)
  /// Cost    scores read v once; selection O(kv_len log w); attention 4 head_dim FLOP for each kept
  ///         (query, key) pair and up to 127 more keys a query tile (gather)
  Result<void> run(const DynamicMaskTensors& tensors, void* workspace = nullptr,
                   std::uint32_t* status = nullptr, Stream stream = nullptr,
                   const DynamicMaskOptions& options = {}) const;

  /// Bytes of workspace of one backward call with these options; 0 on the host, or without
  /// has_gradients. Deterministic calls need more: 4 bytes for each item of 128 listed keys and
  /// tile of 128 queries, and where keys live long up to half as many rows of sums again for each
  /// end of a segment (device_kv_worklist.hpp).
  std::int64_t backward_workspace_bytes(const BackwardOptions& options = {}) const;

  /// The gradients of a call with the same tensors, selection taken as it was: a selection has no
  /// gradient, the scores that it adds have. On a GPU in the order of `stream`, without waiting; a
  /// graph may capture it. `workspace`: backward_workspace_bytes(options) of device memory,
  /// 256-aligned, of no other call at the same time. On a GPU RowSums::automatic is `output`, which
  /// with out_residual is as good: without it half of the time again is too much for the last
  /// digits of gradients of scores.
  ///
  /// Errors  those of attention_backward and zoh_scores_backward, by the names of the tensors;
  ///         invalid_argument: made without has_gradients, no kept on a GPU. Checked before
  ///         anything is written
  /// Cost    10 head_dim FLOP for each (query, key) pair that is kept, times 1.1 to 1.4 for tiles
  ///         in which some keys have died; on a GPU kept keys are put in the order of their
  ///         lifetimes first (device_kv_worklist.hpp), then every row of k, v, dk and dv is touched
  ///         about once
  Result<void> backward(const DynamicMaskBackwardTensors& tensors, void* workspace = nullptr,
                        Stream stream = nullptr, const BackwardOptions& options = {}) const;

  /// `kept` of a call as a mask of heads_q heads on the host; waits for `stream`. To look at.
  Result<BlockMask> to_mask(const Interval* kept, BlockShape block, Stream stream = nullptr) const;

  struct Impl;
  explicit DynamicMaskAttention(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fdma
