// attention_backward on the GPU. It checks the tensors, makes their TMA tensor maps and launches
// three kernels. The first prepares lse and deltas of each query, the main one computes dK and dV
// and accumulates dQ, and the last one stores dQ.
//
// Over worklist keys, kernels before and after these handle the gradients that the main kernel does
// not write (key_gradients.hpp). The main kernel zeroes most accumulators itself where KV heads
// have tile groups for all multiprocessors (ZeroFill). With DeltaSource::corrected two more kernels
// follow the first: an instance of the main kernel that sums rows of dS (the correction pass of the
// exact delta), and one that adds the sums to D.
//
// The file is longer than most: these launches share the parameters and the workspace of one call.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <type_traits>

#include "call/backward_call.hpp"
#include "call/tensor_checks.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/key_rows.hpp"
#include "cuda/launch_checks.hpp"
#include "cuda/pair_gradients.hpp"
#include "cuda/query_passes.hpp"
#include "cuda/score_numbers.hpp"
#include "cuda/sink_rows.hpp"
#include "sm90/backward/attention_backward.hpp"
#include "sm90/backward/kernels.hpp"
#include "sm90/backward/workspace.hpp"
#include "sm90/shared/tensor_map.hpp"

namespace fdma::sm90 {
namespace {

constexpr const char* kWithoutOrder =
    "deterministic: the plan was prepared without an order; set PrepareOptions::deterministic";

template <class T, class Score, class Reader, int kDim, class Weight = NoWeight>
constexpr BackwardKernel kernel() {
  constexpr int kStepQueries = BackwardLayout<kDim, kDim>::kStepQueries;
  // The shifts' kernel is general.
  using ShiftScore = std::conditional_t<std::is_same_v<Score, LinearScore>, KeyBiasScore, Score>;
  constexpr auto kShifts =
      launch_backward<T, ShiftScore, Weight, Reader, Gradients::shifts, kDim, kDim>;
  if constexpr (kDim > 128) {
    return {kDim,
            kStepQueries,
            kShifts,
            {launch_backward<T, Score, Weight, Reader, Gradients::values, kDim, kDim>,
             launch_backward<T, Score, Weight, Reader, Gradients::keys, kDim, kDim>}};
  } else {
    return {kDim,
            kStepQueries,
            kShifts,
            {launch_backward<T, Score, Weight, Reader, Gradients::all, kDim, kDim>, nullptr}};
  }
}

template <class T, class Score, class Reader>
constexpr BackwardKernel kKernels[] = {
#define FDMA_SM90_BACKWARD(dim) kernel<T, Score, Reader, dim>(),
#include "sm90/instances.def"
};

template <class T, class Reader>
constexpr BackwardKernel kSoftcapKernels[] = {
#define FDMA_SM90_SOFTCAP_BACKWARD(dim) kernel<T, SoftcapScore, Reader, dim>(),
#include "sm90/instances.def"
};

template <class T>
constexpr BackwardKernel kPartsKernels[] = {
#define FDMA_SM90_PARTS_BACKWARD(dim) kernel<T, PartsScore, KeyTiles, dim>(),
#include "sm90/instances.def"
};

template <class T>
constexpr BackwardKernel kDropoutKernels[] = {
#define FDMA_SM90_DROPOUT_BACKWARD(dim) kernel<T, PartsScore, KeyTiles, dim, DropoutWeight>(),
#include "sm90/instances.def"
};

// What the planner takes for the head sizes of the kernels.
template <std::size_t kCount>
constexpr bool have_dims(const BackwardKernel (&kernels)[kCount], const int (&dims)[kCount]) {
  return std::equal(std::begin(dims), std::end(dims), std::begin(kernels),
                    [](int dim, const BackwardKernel& each) { return dim == each.dim; });
}
static_assert(have_dims(kKernels<__half, LinearScore, KeyTiles>, kBackwardDims) &&
              have_dims(kSoftcapKernels<__half, KeyTiles>, kSoftcapBackwardDims) &&
              have_dims(kPartsKernels<__half>, kPartsBackwardDims) &&
              have_dims(kDropoutKernels<__half>, kPartsBackwardDims));

template <class T, class Score>
std::span<const BackwardKernel> kernels_for(bool has_worklist) {
  if (has_worklist) return kKernels<T, Score, WorklistKeys>;
  return kKernels<T, Score, KeyTiles>;
}

template <class T>
std::span<const BackwardKernel> softcap_kernels_for(bool has_worklist) {
  if (has_worklist) return kSoftcapKernels<T, WorklistKeys>;
  return kSoftcapKernels<T, KeyTiles>;
}

// `is_ordered`: dQ is added in the accumulation order.
template <class T>
const BackwardKernel& kernel_for(int dim, const CheckedBackwardCall& call, bool is_ordered,
                                 bool has_worklist) {
  const bool is_linear = call.key_bias.data == nullptr && call.scale_log2 > 0.0f &&
                         (!is_ordered || dim <= kMaxBulkDim);
  // Plans for terms of pairs and for dropout have no worklists.
  const std::span<const BackwardKernel> kernels =
      call.dropout.rate > 0  ? std::span<const BackwardKernel>(kDropoutKernels<T>)
      : has_pair_terms(call) ? std::span<const BackwardKernel>(kPartsKernels<T>)
      : call.softcap != 0.0f ? softcap_kernels_for<T>(has_worklist)
      : is_linear            ? kernels_for<T, LinearScore>(has_worklist)
                             : kernels_for<T, KeyBiasScore>(has_worklist);
  return *std::find_if(kernels.begin(), kernels.end() - 1,
                       [&](const BackwardKernel& each) { return each.dim == dim; });
}

// RowsView has one type for rows that kernels read and those that they write.
template <class Data>
RowsView rows_view(const BasicStrided<Data>& tensor) {
  return {const_cast<void*>(static_cast<const void*>(tensor.data)),
          {tensor.batch_stride, tensor.row_stride, tensor.head_stride},
          tensor.dtype == DType::float32};
}

// Compared with lengths, which are at most kMaxLength.
std::int32_t rows_of(const Strided& tensor) {
  return static_cast<std::int32_t>(std::min(tensor.num_rows(), kMaxLength));
}

Result<void> set_inputs(const CheckedBackwardCall& call, int group_size, int step_queries,
                        BackwardParams& params) {
  const TileBox queries{step_queries}, keys{kTileRows};
  const bool has_queries = call.q.num_rows() > 0;
  const Strided& any = call.k;  // in place of tensors without rows, which are not read
  FDMA_TRY(params.k, make_named_map(call.k.view(), 1, keys, "k"));
  FDMA_TRY(params.v, make_named_map(call.v.view(), 1, keys, "v"));
  FDMA_TRY(params.q, make_named_map((has_queries ? call.q : any).view(),
                                    has_queries ? group_size : 1, queries, "q"));
  FDMA_TRY(params.dout, make_named_map((has_queries ? call.dout : any).view(),
                                       has_queries ? group_size : 1, queries, "dout"));
  params.q_rows = rows_of(call.q);
  params.dout_rows = rows_of(call.dout);
  params.k_rows = rows_of(call.k);
  params.v_rows = rows_of(call.v);
  params.group_size = group_size;
  params.scale = call.scale;
  params.scale_log2 = call.scale_log2;
  params.key_bias = call.key_bias;
  params.lengths = {call.q_lens, call.kv_lens, call.cu_seqlens, call.cu_seqlens_batch_stride,
                    call.num_borders};
  return {};
}

void set_gradients(const CheckedBackwardCall& call, const AttentionShape& shape,
                   BackwardParams& params) {
  params.dk = rows_view(call.dk);
  params.dv = rows_view(call.dv);
  params.head_dim = shape.head_dim;
  params.head_dim_v = shape.head_dim_v;
  params.dkey_bias = call.dkey_bias;
  params.dropout = dropout_params(call.dropout, shape.heads_q);
}

QueryParams query_params(const CheckedBackwardCall& call, const AttentionShape& shape,
                         const BackwardParams& params, int dim) {
  QueryParams queries{};
  queries.places = params.places;
  queries.lengths = params.plan.lengths;
  queries.q_lens = call.q_lens;
  queries.batch = static_cast<std::int32_t>(shape.batch);
  queries.dim = dim;
  queries.head_dim = shape.head_dim;
  queries.head_dim_v = shape.head_dim_v;
  queries.out = rows_view(call.out);
  queries.out_low = rows_view(call.out_low);
  queries.dout = rows_view(call.dout);
  queries.lse = call.lse;
  if (call.sinks.data == nullptr) queries.dlse = call.dlse;  // else take_sinks takes it
  queries.corrects_delta = call.corrects_delta;
  queries.next_tile_groups = params.next_tile_group;
  queries.dq_semaphores = params.dq_semaphores;
  queries.dq = rows_view(call.dq);
  queries.scale = call.scale;
  // The main kernel clears the others
  const bool is_first_zeroed = params.zero_fill.counters != nullptr;
  queries.zeroed_heads = is_first_zeroed ? params.group_size : params.places.heads_q;
  queries.zeroed_elements = is_first_zeroed ? 1 : queries.batch;
  return queries;
}

// `terms`: room for a number of each row.
SinkParams sink_params(const CheckedBackwardCall& call, const BackwardTensors& tensors,
                       const QueryParams& queries, float* terms) {
  SinkParams sinks{};
  sinks.places = queries.places;
  sinks.lengths = queries.lengths;
  sinks.q_lens = queries.q_lens;
  sinks.batch = queries.batch;
  sinks.lse = call.lse;
  sinks.dlse = call.dlse;
  sinks.sinks = call.sinks;
  sinks.dsinks = call.dsinks;
  sinks.num_dsinks_rows = tensors.dsinks.extents[2];
  sinks.corrects_delta = call.corrects_delta;
  sinks.terms = terms;
  return sinks;
}

// Parameters of the kernels that handle the gradients that the main kernel does not write.
KeyGradientParams key_gradient_params(const CheckedBackwardCall& call, const AttentionShape& shape,
                                      const BackwardParams& params, int dim,
                                      const BackwardWorklist& worklist) {
  KeyGradientParams keys{};
  keys.dk = params.dk;
  keys.dv = params.dv;
  keys.dkey_bias = params.dkey_bias;
  keys.lengths = params.plan.lengths;
  keys.max_kv_len = shape.max_kv_len();
  keys.batch = static_cast<std::int32_t>(shape.batch);
  keys.heads_kv = shape.heads_kv;
  keys.head_dim = shape.head_dim;
  keys.head_dim_v = shape.head_dim_v;
  keys.seen = worklist.seen;
  keys.sums = worklist.sums;
  keys.sums.dim_qk = keys.sums.dim_v = dim;
  keys.scale = call.scale;
  return keys;
}

// An upper bound of the tile groups of a launch.
int num_units_of(const DevicePlan& plan, const BackwardWorklist* worklist) {
  if (worklist == nullptr) return plan.arrays.num_work_tiles / plan.shape.group_size();
  return static_cast<int>(
      std::min<std::int64_t>(worklist->max_work_tiles, plan.num_multiprocessors));
}

// Decides whether the main kernel zeroes the accumulators of all KV heads but the first, and zeroes
// their counters.
Result<void> set_zeros(const ZeroFill& zero_fill, const CheckedBackwardCall& call, int dim,
                       BackwardParams& params, Stream stream) {
  if (zero_fill.counters == nullptr || params.dq_semaphores != nullptr || call.corrects_delta ||
      dim > kMaxBulkDim || params.places.padded_q_len == 0) {
    return {};
  }
  params.zero_fill = zero_fill;
  return check_cuda(
      cudaMemsetAsync(zero_fill.counters, 0,
                      static_cast<std::size_t>(zero_fill.num_rows) * sizeof(ZeroFillCounters),
                      stream),
      "cudaMemsetAsync");
}

// The correction pass of D. It has its own tile group counter and its own dQ semaphore.
template <class T>
Result<void> launch_shifts(const BackwardKernel& kernel, BackwardParams params,
                           const ScoreNumbers& numbers, int num_blocks, const QueryParams& queries,
                           const SinkParams& sinks, Stream stream) {
  params.next_tile_group += kNumCounters - 1;
  if (params.dq_semaphores != nullptr) params.dq_semaphores += queries.num_rows() / kSumRows * 2;
  FDMA_TRY_VOID(check_cuda(kernel.shifts(params, numbers, num_blocks, stream),
                           "launch of the kernel that adds up rows"));
  return check_cuda(sinks.sinks.data != nullptr ? add_missing_to_sinks<T>(sinks, stream)
                                                : add_missing(queries, stream),
                    "launch of the kernel that adds what D lacks");
}

// True iff several pairs share an element of the gradient of the bias.
bool sums_dbias(const CheckedBackwardCall& call, const AttentionShape& shape) {
  const PairValues<void>& dbias = call.dbias;
  return dbias.data != nullptr &&
         ((dbias.batch_stride == 0 && shape.batch > 1) ||
          (dbias.head_stride == 0 && shape.heads_q > 1) ||
          (dbias.row_stride == 0 && shape.max_q_len() > 1) || dbias.heads_per_index > 1);
}

// Zeroes the gradients of a bias of pairs and of a table, to which the main kernel adds. Sums of a
// 16-bit bias are float32 in `sums`.
Result<void> set_score_gradients(const CheckedBackwardCall& call, const BackwardTensors& tensors,
                                 const AttentionShape& shape, GradientSums& sums, Stream stream,
                                 ScoreNumbers& numbers) {
  numbers.dbias = call.dbias;
  numbers.drelative = call.drelative;
  if (call.drelative.data != nullptr) {
    FDMA_TRY_VOID(check_cuda(zero_gradient(tensors.drelative, stream), "zero fill of drelative"));
  }
  if (call.dbias.data == nullptr) return {};
  numbers.sums_dbias = sums_dbias(call, shape);
  if (!numbers.sums_dbias || call.dbias.dtype == DType::float32) {
    return check_cuda(zero_gradient(tensors.dbias, stream), "zero fill of dbias");
  }
  FDMA_TRY_VOID(sums.allocate(tensors.dbias, stream));
  if (sums.is_allocated()) {
    numbers.dbias = pair_values<void>(sums.view(), call.dbias.heads_per_index);
  }
  return {};
}

// Gradients that are added where they fall have no fixed order.
Result<void> check_order(const CheckedBackwardCall& call, const AttentionShape& shape,
                         const BackwardOptions& options) {
  if (!options.deterministic) return {};
  if (call.drelative.data != nullptr) {
    return Error{ErrorCode::unsupported,
                 "deterministic: drelative is added in no fixed order; leave drelative or "
                 "deterministic out, or give the table as a bias of pairs"};
  }
  if (sums_dbias(call, shape)) {
    return Error{
        ErrorCode::unsupported,
        "deterministic: the gradient of a bias that batch elements, heads or rows share is "
        "added in no fixed order; give a bias of [batch, heads_q, q_len, kv_len] and add "
        "up its gradient, or leave deterministic out"};
  }
  return {};
}

template <class T>
Result<void> launch(const DevicePlan& plan, const CheckedBackwardCall& call,
                    const BackwardTensors& tensors, BackwardParams& params, float* sink_terms,
                    const BackwardWorklist* worklist, DqSemaphoreOffsets* dq_semaphore_offsets,
                    ZeroFillCounters* zero_counters, const BackwardKernel* own_kernel,
                    Stream stream) {
  const AttentionShape& shape = plan.shape;
  const int num_units = num_units_of(plan, worklist);
  const int dim = backward_dim(shape, plan.score);
  const BackwardKernel& kernel =
      own_kernel != nullptr
          ? *own_kernel
          : kernel_for<T>(dim, call, params.dq_semaphores != nullptr, worklist != nullptr);
  ScoreNumbers numbers = score_numbers(call);
  GradientSums dbias_sums;
  FDMA_TRY_VOID(set_score_gradients(call, tensors, shape, dbias_sums, stream, numbers));
  if (num_units > 0) {
    FDMA_TRY_VOID(set_inputs(call, shape.group_size(), kernel.step_queries, params));
  }
  set_gradients(call, shape, params);
  KeyGradientParams keys{};
  if (worklist != nullptr) {
    params.worklist = {worklist->keys,          worklist->work_tiles,    worklist->num_work_tiles,
                       worklist->sums.dk,       worklist->sums.dv,       worklist->sums.dbias,
                       key_rows(call.k.view()), key_rows(call.v.view()), worklist->first_positions,
                       worklist->positions};
    keys = key_gradient_params(call, shape, params, kernel.dim, *worklist);
    if (num_units > 0) {
      const ZeroFill zero_fill{worklist->zero_counters, worklist->sums.num_rows,
                               worklist->sums.rows_of_group, worklist->sums.num_groups,
                               shape.heads_kv};
      FDMA_TRY_VOID(set_zeros(zero_fill, call, kernel.dim, params, stream));
    }
    KeyGradientParams zeroed = keys;
    if (params.zero_fill.counters != nullptr) zeroed.sums.num_groups = 1;
    FDMA_TRY_VOID(check_cuda(zero_key_gradients(zeroed, stream),
                             "launch of the kernels that zero gradients"));
  } else if (plan.is_by_row) {
    const ZeroFill zero_fill{zero_counters, nullptr, 0,
                             static_cast<std::int32_t>(shape.batch) * shape.heads_kv,
                             shape.heads_kv};
    FDMA_TRY_VOID(set_zeros(zero_fill, call, kernel.dim, params, stream));
  }
  const QueryParams queries = query_params(call, shape, params, kernel.dim);
  const bool has_queries = params.places.padded_q_len > 0;
  if (params.tile_rows != nullptr && num_units > 0) {
    const auto batch = static_cast<int>(shape.batch);
    FDMA_TRY_VOID(check_cuda(
        dq_semaphore_offsets != nullptr
            ? number_tile_rows(plan.arrays, params.lengths, batch, params.tile_rows,
                               dq_semaphore_offsets, params.places.padded_q_len / kTileKeys,
                               params.next_tile_group, stream)
            : order_tile_rows(plan.arrays, params.lengths, batch, params.tile_rows,
                              params.next_tile_group, stream),
        "launch of the kernel that orders tile rows"));
  }
  if (has_queries) {
    FDMA_TRY_VOID(check_cuda(prepare_queries<T>(queries, stream),
                             "launch of the kernel that prepares queries"));
  } else {
    for (int i = 0; i < kNumCounters; ++i) {
      FDMA_TRY_VOID(check_cuda(zero_counter(params.next_tile_group + i, stream),
                               "launch of the kernel that zeroes the counter"));
    }
  }
  const SinkParams sinks = sink_params(call, tensors, queries, sink_terms);
  if (call.sinks.data != nullptr && has_queries) {
    FDMA_TRY_VOID(
        check_cuda(take_sinks<T>(sinks, stream), "launch of the kernel that takes sinks"));
  }
  const int num_blocks = std::min(plan.num_multiprocessors, num_units);
  if (call.corrects_delta && has_queries && num_units > 0) {
    FDMA_TRY_VOID(launch_shifts<T>(kernel, params, numbers, num_blocks, queries, sinks, stream));
  }
  if (call.dsinks.data != nullptr) {
    FDMA_TRY_VOID(check_cuda(store_sink_gradients<T>(sinks, stream),
                             "launch of the kernel that stores the gradients of sinks"));
  }
  for (const auto launch_kernel : kernel.launches) {
    if (launch_kernel == nullptr || num_units == 0) continue;
    FDMA_TRY_VOID(check_cuda(launch_kernel(params, numbers, num_blocks, stream),
                             "launch of the backward kernel"));
    ++params.next_tile_group;
  }
  if (dbias_sums.is_allocated()) {
    FDMA_TRY_VOID(check_cuda(dbias_sums.store(),
                             "launch of the kernel that stores the gradient of the bias"));
  }
  if (!has_queries) return {};
  FDMA_TRY_VOID(
      check_cuda(store_query_gradients<T>(queries, stream), "launch of the kernel that stores dq"));
  if (worklist == nullptr) return {};
  return check_cuda(store_key_gradients<T>(keys, stream),
                    "launch of the kernel that stores dk and dv");
}

Result<void> run(const DevicePlan& impl, const BackwardTensors& tensors, const Launch& launched,
                 const BackwardOptions& options, const BackwardWorklist* worklist,
                 const BackwardKernel* own_kernel = nullptr) {
  void* const workspace = launched.workspace;
  const Stream stream = launched.stream;
  const AttentionShape& shape = impl.shape;
  FDMA_TRY(const CheckedBackwardCall call,
           checked_backward_call(impl.direction, shape, impl.score, tensors, options, Device::cuda,
                                 impl.arrays.num_closed_forms > 0));
  FDMA_TRY_VOID(check_launch(impl, workspace));
  FDMA_TRY_VOID(check_order(call, shape, options));
  FDMA_TRY_VOID(check_vectors(call.out.view(), "out"));
  if (call.out_low.data != nullptr) {
    FDMA_TRY_VOID(check_vectors(call.out_low.view(), "out_low"));
  }
  FDMA_TRY_VOID(check_vectors(call.dout.view(), "dout"));
  FDMA_TRY_VOID(check_vectors(call.dq.view(), "dq"));
  FDMA_TRY_VOID(check_vectors(call.dk.view(), "dk"));
  FDMA_TRY_VOID(check_vectors(call.dv.view(), "dv"));
  if (options.deterministic && worklist != nullptr && worklist->positions == nullptr) {
    return Error{ErrorCode::unsupported, kWithoutOrder};
  }
  const bool is_closed_form = impl.arrays.num_closed_forms > 0;  // the order is made in each call
  if (options.deterministic && worklist == nullptr && !is_closed_form && !impl.is_ordered) {
    return Error{ErrorCode::unsupported, kWithoutOrder};
  }

  BackwardParams params{};
  const BackwardWorkspace places(impl);
  char* const base = static_cast<char*>(workspace);
  params.plan = impl.arrays;
  params.next_tile_group = reinterpret_cast<std::int32_t*>(base);
  params.places = {reinterpret_cast<float*>(base + places.lse_log2),
                   reinterpret_cast<float*>(base + places.deltas),
                   reinterpret_cast<float*>(base + places.missing),
                   reinterpret_cast<float*>(base + places.dq_accum),
                   shape.heads_q,
                   static_cast<std::int32_t>(places.padded_q_len)};
  if (options.deterministic)
    params.dq_semaphores = reinterpret_cast<std::int32_t*>(base + places.dq_semaphores);
  params.walks_down = options.deterministic && impl.arrays.walks_down;
  auto* const zero_counters = reinterpret_cast<ZeroFillCounters*>(base + places.zero_counters);
  DqSemaphoreOffsets* dq_semaphore_offsets = nullptr;
  if (is_closed_form) {
    params.tile_rows = reinterpret_cast<TileRow*>(base + places.tile_rows);
    if (options.deterministic) {
      dq_semaphore_offsets =
          reinterpret_cast<DqSemaphoreOffsets*>(base + places.dq_semaphore_offsets);
    }
    params.dq_semaphore_offsets = dq_semaphore_offsets;
  }
  auto* const sink_terms = reinterpret_cast<float*>(base + places.sink_terms);
  return shape.q_dtype == DType::bfloat16
             ? launch<__nv_bfloat16>(impl, call, tensors, params, sink_terms, worklist,
                                     dq_semaphore_offsets, zero_counters, own_kernel, stream)
             : launch<__half>(impl, call, tensors, params, sink_terms, worklist,
                              dq_semaphore_offsets, zero_counters, own_kernel, stream);
}

// The kv worklist of an uploaded plan, with its accumulators in the workspace.
BackwardWorklist lists_of(const DevicePlan& plan, void* workspace) {
  const KvWorklistOnDevice& worklist = plan.worklist;
  const BackwardWorkspace places(plan);
  char* const base = static_cast<char*>(workspace);
  const int dim = backward_dim(plan.shape, plan.score);
  const KvAccum sums{
      worklist.accum_keys,
      reinterpret_cast<float*>(base + places.dk_accum),
      reinterpret_cast<float*>(base + places.dv_accum),
      plan.is_ordered ? reinterpret_cast<float*>(base + places.dbias_accum) : nullptr,
      worklist.num_accum_rows,
      nullptr,
      1,
      dim,
      dim};
  return {worklist.keys,
          worklist.work_tiles,
          worklist.num_work_tiles,
          worklist.max_work_tiles,
          sums,
          plan.is_ordered ? plan.arrays.first_positions : nullptr,
          plan.is_ordered ? plan.arrays.positions : nullptr,
          nullptr,
          nullptr};
}

}  // namespace

Result<void> attention_backward(const DevicePlan& plan, const BackwardTensors& tensors,
                                const Launch& launch, const BackwardOptions& options) {
  if (!plan.has_worklist) return run(plan, tensors, launch, options, nullptr);
  const BackwardWorklist worklist = lists_of(plan, launch.workspace);
  return run(plan, tensors, launch, options, &worklist);
}

Result<void> attention_backward_by(const BackwardKernel& kernel, const DevicePlan& plan,
                                   const BackwardTensors& tensors, const Launch& launch,
                                   const BackwardOptions& options) {
  return run(plan, tensors, launch, options, nullptr, &kernel);
}

Result<void> attention_backward_with_worklist(const DevicePlan& plan,
                                              const BackwardTensors& tensors, const Launch& launch,
                                              const BackwardOptions& options,
                                              const BackwardWorklist& worklist) {
  return run(plan, tensors, launch, options, &worklist);
}

std::int64_t backward_workspace_bytes(const DevicePlan& plan) {
  return BackwardWorkspace(plan).bytes;
}

}  // namespace fdma::sm90
