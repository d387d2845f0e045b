// Dynamic Mask Attention in one call: scores of keys from their values, selection of the keys with
// the best scores for each query, and attention over those. Another call gives the gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

struct DeviceProfile;

/// What is added to the logit of a kept key. Keys are ranked by the same number.
enum class ScoreBias : std::uint8_t {
  exp,   ///< exp(A softplus(dt)), or scores as they are given
  log,   ///< A softplus(dt), or scores as they are given
  none,  ///< nothing; ranked as with exp
};
std::string_view to_string(ScoreBias bias);
/// "exp", "log", "none"; else invalid_argument.
Result<ScoreBias> parse_score_bias(std::string_view name);

/// How attention on a GPU reads the selection.
enum class SelectionReading : std::uint8_t {
  automatic,  ///< the predicted faster one, from w, lengths and heads
  gather,     ///< kv index lists of the kept keys of each query tile, made on the GPU
  scan,       ///< every tile with a visible key; its cells follow from the intervals of its keys
  all,        ///< no query sees more than w keys, so M itself is the mask
};
std::string_view to_string(SelectionReading reading);

/// What a DynamicMaskAttention is prepared for.
struct DynamicMaskSpec {
  AttentionShape shape;
  /// Keys that each query keeps at most (keep_window_size).
  std::int64_t w = 0;
  ScoreBias bias = ScoreBias::exp;
  /// A key whose score is 0 is dropped for every query.
  bool drops_zero_scores = false;
  /// The masks M whose visible keys are selected from; none: causal, bottom-right aligned.
  std::vector<ColumnIntervals> masks;
  /// [batch * heads_kv], indices into masks; may be empty where there is one mask.
  std::vector<std::int32_t> mask_of;
  Backend backend = Backend::cpu;
  /// sm90 only; `all` is an error where it does not hold.
  SelectionReading reading = SelectionReading::automatic;
  /// The device whose costs decide how the selection is read (cpu: by the plan of each call); null:
  /// the default_profile of the backend.
  std::shared_ptr<const DeviceProfile> profile;
  /// Also prepares what `backward` needs.
  bool has_gradients = false;
};

/// The tensors of one call, all on the host (cpu) or all on the object's device (sm90).
///
/// Shapes      q, kv, out, lse, out_low: see AttentionTensors
///             dt_proj, a_coef  see zoh_scores, whose values are kv.v
///             scores           [batch, heads_kv, kv_len] float32, contiguous along keys, in place
///                              of dt_proj and a_coef
///             made_scores      the scores of this call, in the same shape, optional
///             kept             [batch, heads_kv, kv_len, 2] int32, contiguous, optional: the
///                              queries that keep each key, {0, 0} for none
///             an optional tensor that is not wanted has data = nullptr
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
  MutableTensorView out_low = {};
};

/// The tensors of a backward call, on the host or device of the forward call.
///
/// Shapes      q, kv            those of the forward call
///             dt_proj, a_coef  those of the forward call; data = nullptr where scores were given
///             scores           those given to the forward call, or its made_scores
///             kept             that of the forward call. On the host it may be absent (data =
///                              nullptr): the host selects once more. It is not read where
///                              reading() is `all`
///             out, lse, out_low, dout, dlse, dq, dk, dv: see BackwardTensors
///             dscores          gradient of the scores in their shape, contiguous along keys,
///                              optional
///             ddt_proj, da_coef: shapes of dt_proj and a_coef, each of that input's dtype or
///                              float32, optional
///             an optional tensor that is not wanted has data = nullptr
/// Written     all of dscores, ddt_proj and da_coef
///             dq, dk and dv as by attention_backward, 0 for keys that no query keeps; dv includes
///             the gradient through scores that were made of v
///             without a bias no gradient comes through scores: dscores, ddt_proj and da_coef are 0
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
  TensorView out_low = {};
};

/// The stages of a call, in their order.
enum class DynamicMaskStage : std::uint8_t { scores, selection, lists, attention };

struct DynamicMaskOptions {
  AttentionOptions attention;
  /// sm90 only, to time stages: only [first, last] run. The results of earlier stages are taken
  /// from the workspace as the last call, with the same tensors, has left it.
  DynamicMaskStage first = DynamicMaskStage::scores;
  DynamicMaskStage last = DynamicMaskStage::attention;
};

/// Dynamic Mask Attention prepared for a shape, w and M. Tensors may change from call to call,
/// these may not. On a GPU one object can be used by any number of calls and streams at once.
///
/// Example     w >= kv_len and ScoreBias::none: causal attention
/// Invariants  out and lse are those of attention under the mask that select_topk finds for the
///             same scores, with the scores as key bias; the same bits every run
/// Owner       owns its device memory (size_bytes): that of DeviceTopk, and 40 to 64 B for each
///             query tile and head
class DynamicMaskAttention {
 public:
  /// Prepares; for sm90 on the current device, in the order of `stream`. Must not be called while a
  /// stream is captured. Takes over masks and mask_of of `spec`.
  ///
  /// Errors      invalid_argument (w, mask_of); shape_mismatch
  ///             unsupported: what make_plan refuses; for sm90, a mask that needs several intervals
  ///             per key (the message names backend cpu)
  ///             out_of_memory, cuda
  static Result<DynamicMaskAttention> make(DynamicMaskSpec spec, Stream stream = nullptr);

  DynamicMaskAttention(DynamicMaskAttention&&) noexcept;
  DynamicMaskAttention& operator=(DynamicMaskAttention&&) noexcept;
  ~DynamicMaskAttention();

  const DynamicMaskSpec& spec() const;
  /// Never automatic. cpu: scan, where the plan of each call decides for each tile row.
  SelectionReading reading() const;
  /// Query heads that share a tile.
  std::int32_t heads_per_tile() const;
  int device() const;  ///< -1: the host
  /// Bytes of device memory that it holds; 0 on the host.
  std::int64_t size_bytes() const;
  /// Bytes of workspace of one call, a constant of the object; 0 on the host.
  std::int64_t workspace_bytes() const;

  /// Attention. On a GPU it runs in the order of `stream` and returns after the launches, without
  /// waiting; a graph may capture them.
  ///
  /// Shapes      workspace  workspace_bytes() of device memory, 256-aligned, that no other call
  ///                        uses at the same time
  ///             status     one word of device memory, or null; kTopkSawNan is or-ed in where a
  ///                        visible score is NaN (on the host that is an error)
  /// Errors      those of zoh_scores, selection and attention_forward, naming the tensors. They are
  ///             checked before the first launch, and on the host before anything is written,
  ///             except NaN, and except `kept` where a key has several intervals (unsupported)
  /// Cost        scores read v once; selection O(kv_len log w); attention 4 * head_dim FLOP for
  ///             each kept (query, key) pair, and for up to 127 more keys a query tile (gather)
  Result<void> run(const DynamicMaskTensors& tensors, void* workspace = nullptr,
                   std::uint32_t* status = nullptr, Stream stream = nullptr,
                   const DynamicMaskOptions& options = {}) const;

  /// Bytes of workspace of one backward call with these options; 0 on the host, or without
  /// has_gradients. Deterministic calls need more: 4 bytes for each pair of a work tile of 128
  /// worklist keys and a tile of 128 queries. Where keys live long they also need up to half as
  /// many rows of fp32 accumulators again for each end of a segment (device_kv_worklist.hpp).
  std::int64_t backward_workspace_bytes(const BackwardOptions& options = {}) const;

  /// The gradients of a call with the same tensors and the same selection. A selection has no
  /// gradient; the scores that it adds to logits have one. On a GPU it runs in the order of
  /// `stream`, without waiting; a graph may capture it. On a GPU DeltaSource::automatic means
  /// `output`, which is as good with out_low. Without out_low `keys` would cost half of the time
  /// again, too much for the last digits of gradients of scores.
  ///
  /// Shapes      workspace: backward_workspace_bytes(options) of device memory, 256-aligned, that
  ///             no other call uses at the same time
  /// Errors      those of attention_backward and zoh_scores_backward, naming the tensors;
  ///             invalid_argument: made without has_gradients, no kept on a GPU. All are checked
  ///             before anything is written
  /// Cost        10 * head_dim FLOP for each kept (query, key) pair, times 1.1 to 1.4 for tiles in
  ///             which some keys are already evicted. A GPU first orders kept keys by their live
  ///             ranges (device_kv_worklist.hpp) and then touches every row of k, v, dk and dv about
  ///             once
  Result<void> backward(const DynamicMaskBackwardTensors& tensors, void* workspace = nullptr,
                        Stream stream = nullptr, const BackwardOptions& options = {}) const;

  /// `kept` of a call as a mask of heads_q heads on the host, for inspection. Waits for `stream`.
  Result<BlockMask> to_mask(const Interval* kept, BlockShape block, Stream stream = nullptr) const;

  struct Impl;
  explicit DynamicMaskAttention(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fdma
