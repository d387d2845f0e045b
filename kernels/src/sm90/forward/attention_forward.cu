// attention_forward on the GPU. It checks the tensors, makes their TMA tensor maps and launches the
// kernels of a call: one that orders tile rows, permutes keys or zeroes the counter, the forward
// kernel, and for plans with split rows the combine kernel.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "call/attention_call.hpp"
#include "cuda/combine_partials.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/key_rows.hpp"
#include "cuda/launch_checks.hpp"
#include "cuda/permute_kv.hpp"
#include "cuda/score_numbers.hpp"
#include "cuda/tile_rows.hpp"
#include "cuda/workspace.hpp"
#include "sm90/forward/attention_forward.hpp"
#include "sm90/forward/kernels.hpp"
#include "sm90/shared/tensor_map.hpp"

namespace fdma::sm90 {
namespace {

template <class T, class Score, class Reader, int kDimQk, int kDimV, class Weight = NoWeight>
constexpr ForwardKernel kernel() {
  return {kDimQk, kDimV, ForwardLayout<kDimQk, kDimV>::kStepKeys,
          launch_forward<T, Score, Weight, Reader, kDimQk, kDimV>};
}

template <class T, class Score>
constexpr ForwardKernel kKernels[] = {
#define FDMA_SM90_FORWARD(dim_qk, dim_v) kernel<T, Score, ContiguousKeys, dim_qk, dim_v>(),
#include "sm90/instances.def"
};

// Only up to kMaxGatherDim, because more threads leave fewer registers to each.
template <class T, class Score>
constexpr ForwardKernel kGatherKernels[] = {
#define FDMA_SM90_GATHER(dim_qk, dim_v) kernel<T, Score, IndexedKeys, dim_qk, dim_v>(),
#include "sm90/instances.def"
};

template <class T>
constexpr ForwardKernel kSoftcapKernels[] = {
#define FDMA_SM90_SOFTCAP_FORWARD(dim_qk, dim_v) \
  kernel<T, SoftcapScore, ContiguousKeys, dim_qk, dim_v>(),
#include "sm90/instances.def"
};
template <class T>
constexpr ForwardKernel kSoftcapGatherKernels[] = {
#define FDMA_SM90_SOFTCAP_GATHER(dim_qk, dim_v) \
  kernel<T, SoftcapScore, IndexedKeys, dim_qk, dim_v>(),
#include "sm90/instances.def"
};

template <class T>
constexpr ForwardKernel kPartsKernels[] = {
#define FDMA_SM90_PARTS_FORWARD(dim_qk, dim_v) \
  kernel<T, PartsScore, ContiguousKeys, dim_qk, dim_v>(),
#include "sm90/instances.def"
};

template <class T>
constexpr ForwardKernel kDropoutKernels[] = {
#define FDMA_SM90_DROPOUT_FORWARD(dim_qk, dim_v) \
  kernel<T, PartsScore, ContiguousKeys, dim_qk, dim_v, DropoutWeight>(),
#include "sm90/instances.def"
};

template <class T, class Score>
std::span<const ForwardKernel> kernels_for(bool is_gathering) {
  if (is_gathering) return kGatherKernels<T, Score>;
  return kKernels<T, Score>;
}

template <class T>
std::span<const ForwardKernel> kernels_for(const CheckedCall& call, bool is_gathering) {
  // Plans for these gather nothing.
  if (call.dropout.rate > 0) return kDropoutKernels<T>;
  if (has_pair_terms(call)) return kPartsKernels<T>;
  if (call.softcap != 0.0f) {
    if (is_gathering) return kSoftcapGatherKernels<T>;
    return kSoftcapKernels<T>;
  }
  const bool is_linear = call.key_bias.data == nullptr && call.scale_log2 > 0.0f;
  return is_linear ? kernels_for<T, LinearScore>(is_gathering)
                   : kernels_for<T, KeyBiasScore>(is_gathering);
}

const ForwardKernel& kernel_for(const AttentionShape& shape, const CheckedCall& call,
                                bool is_gathering) {
  const auto kernels = shape.q_dtype == DType::bfloat16
                           ? kernels_for<__nv_bfloat16>(call, is_gathering)
                           : kernels_for<__half>(call, is_gathering);
  return *std::find_if(kernels.begin(), kernels.end() - 1, [&](const ForwardKernel& each) {
    return shape.head_dim <= each.dim_qk && shape.head_dim_v <= each.dim_v;
  });
}

Result<void> set_tensors(const CheckedCall& call, const DevicePlan& plan, int step_keys,
                         ForwardParams& params) {
  const int group_size = plan.shape.group_size();
  const int heads_per_tile = 1 << plan.arrays.pack_shift;
  const TileBox rows{kHalfRows / heads_per_tile, heads_per_tile}, keys{step_keys};
  FDMA_TRY(params.q, make_named_map(call.q.view(), group_size, rows, "q"));
  FDMA_TRY(params.out_map, make_named_map(call.out.view(), group_size, rows, "out"));
  // Without any key the one tile that a work tile reads is masked, so any tensor will do.
  const bool has_keys = call.k.num_rows() > 0;
  FDMA_TRY(params.k, make_named_map((has_keys ? call.k : call.q).view(), 1, keys, "k"));
  FDMA_TRY(params.v, make_named_map((has_keys ? call.v : call.q).view(), 1, keys, "v"));
  // Compared with lengths, which are at most kMaxLength.
  const auto rows_of = [](std::int64_t extent) {
    return static_cast<std::int32_t>(std::min(extent, kMaxLength));
  };
  params.group_size = group_size;
  params.head_dim_v = plan.shape.head_dim_v;
  params.v_rows = has_keys ? rows_of(call.v.num_rows()) : 0;
  params.out_rows = rows_of(call.out.num_rows());
  params.out = call.out.data;
  params.out_low = call.out_low.data;
  params.out_strides = {call.out.batch_stride, call.out.row_stride, call.out.head_stride};
  params.lse = call.lse;
  params.key_bias = call.key_bias;
  params.scale_log2 = call.scale_log2;
  params.sinks = call.sinks;
  params.dropout = dropout_params(call.dropout, plan.shape.heads_q);
  params.lengths = {call.q_lens, call.kv_lens, call.cu_seqlens, call.cu_seqlens_batch_stride,
                    call.num_borders};
  return {};
}

// out_low is written in pieces of 16 bytes at the same offsets as out, so its strides must be
// those of out.
Result<void> check_out_low(const CheckedCall& call) {
  if (call.out_low.data == nullptr) return {};
  const TensorView out = call.out.view(), out_low = call.out_low.view();
  FDMA_TRY_VOID(check_vectors(out_low, "out_low"));
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (out_low.extents[axis] > 1 && out_low.strides[axis] != out.strides[axis]) {
      return Error{ErrorCode::unsupported, "out_low: expected the strides of out"};
    }
  }
  return {};
}

// View of the permuted rows of `tensor`, K or V.
TensorView permuted_view(const TensorView& tensor, std::int64_t max_keys, const void* data) {
  const std::int64_t heads = tensor.extents[2], dim = tensor.extents[3];
  TensorView moved = tensor;
  moved.data = data;
  moved.extents[1] = max_keys;
  moved.strides = {heads * max_keys * dim, dim, max_keys * dim, 1};
  return moved;
}

// For plans with kv permutations, before the forward kernel: copies the permuted rows. The copying
// kernel also zeroes the counter, so it replaces the kernel that does.
Result<void> permute_kv(const CheckedCall& call, const DevicePlan& plan, int step_keys,
                        char* workspace, Stream stream, ForwardParams& params) {
  const Workspace places(plan);
  const std::int64_t max_keys = plan.orders.max_keys;
  PermuteParams moved{};
  moved.orders = plan.orders;
  moved.k = params.k_gather;
  moved.v = params.v_gather;
  moved.batch = static_cast<std::int32_t>(plan.shape.batch);
  moved.heads_kv = plan.shape.heads_kv;
  moved.permuted_k = reinterpret_cast<std::uint8_t*>(workspace + places.permuted_k);
  moved.permuted_v = reinterpret_cast<std::uint8_t*>(workspace + places.permuted_v);
  moved.key_bias = params.key_bias;
  moved.permuted_bias = reinterpret_cast<float*>(workspace + places.permuted_bias);
  moved.counter = params.next_work_tile;
  const TileBox box{step_keys};
  FDMA_TRY(params.permuted_k,
           make_named_map(permuted_view(call.k.view(), max_keys, moved.permuted_k), 1, box, "k"));
  FDMA_TRY(params.permuted_v,
           make_named_map(permuted_view(call.v.view(), max_keys, moved.permuted_v), 1, box, "v"));
  params.permuted_bias = moved.permuted_bias;
  params.max_permuted_keys = max_keys;
  return check_cuda(permute_kv(moved, stream), "launch of the kernel that moves keys");
}

// After the forward kernel: combines the rows whose keys were split.
cudaError_t combine(const ForwardParams& params, const DevicePlan& plan, cudaStream_t stream) {
  const PlanArrays& arrays = plan.arrays;
  CombineParams combined{};
  combined.partial_out = params.partial_out;
  combined.partial_lse = params.partial_lse;
  combined.grid = {arrays.max_tile_rows, arrays.heads_kv * arrays.num_sets, arrays.num_splits};
  combined.num_rows = arrays.num_split_rows;
  if (arrays.num_closed_forms == 0) {
    combined.split_rows = arrays.split_rows;
  } else {
    combined.num_rows = arrays.num_work_tiles / arrays.num_splits;
  }
  combined.max_partials = plan.max_partials;
  combined.block_q = arrays.block_q;
  combined.heads_per_tile = 1 << arrays.pack_shift;
  combined.group_size = params.group_size;
  combined.head_dim_v = params.head_dim_v;
  combined.max_q_len = static_cast<std::int32_t>(plan.shape.max_q_len());
  combined.lengths = arrays.lengths;
  combined.q_lens = params.lengths.q_lens;
  combined.is_bfloat16 = plan.shape.out_dtype == DType::bfloat16;
  combined.out = params.out;
  combined.out_low = params.out_low;
  combined.out_strides = params.out_strides;
  combined.lse = params.lse;
  combined.sinks = params.sinks;
  return combine_partials(combined, stream);
}

Result<void> run(const DevicePlan& impl, const AttentionTensors& tensors, const Launch& launch,
                 const AttentionOptions& options, const KvIndexArrays& gather,
                 const ForwardKernel* own_kernel = nullptr) {
  void* const workspace = launch.workspace;
  const Stream stream = launch.stream;
  const AttentionShape& shape = impl.shape;
  FDMA_TRY_VOID(check_direction(impl.direction, Direction::forward));
  FDMA_TRY(const CheckedCall call, checked_call(shape, impl.score, tensors, options, Device::cuda,
                                                impl.arrays.num_closed_forms > 0));
  FDMA_TRY_VOID(check_launch(impl, workspace));
  FDMA_TRY_VOID(check_out_low(call));
  if (impl.is_gathering && gather.lists == nullptr) {
    return Error{
        ErrorCode::invalid_argument,
        "plan: its segments name kv index lists that are made on the device, and none came "
        "with the call"};
  }
  if (impl.arrays.num_work_tiles == 0) return {};

  const ForwardKernel& kernel =
      own_kernel != nullptr ? *own_kernel : kernel_for(shape, call, impl.is_gathering);
  ForwardParams params{};
  FDMA_TRY_VOID(set_tensors(call, impl, kernel.step_keys, params));
  params.gather = gather;
  params.k_gather = key_rows(call.k.view());
  params.v_gather = key_rows(call.v.view());
  const Workspace places(impl);
  char* const base = static_cast<char*>(workspace);
  params.plan = impl.arrays;
  if (gather.column_intervals != nullptr) params.plan.column_intervals = gather.column_intervals;
  params.next_work_tile = work_tile_counter(workspace);
  params.partial_out = reinterpret_cast<float*>(base + places.partial_out);
  params.partial_lse = reinterpret_cast<float*>(base + places.partial_lse);
  if (impl.arrays.num_closed_forms > 0) {
    auto* rows = reinterpret_cast<TileRow*>(base + places.tile_rows);
    params.tile_rows = rows;
    FDMA_TRY_VOID(
        check_cuda(order_tile_rows(impl.arrays, params.lengths, static_cast<int>(shape.batch), rows,
                                   params.next_work_tile, stream),
                   "launch of the kernel that orders tile rows"));
  } else if (impl.orders.max_keys > 0) {
    FDMA_TRY_VOID(permute_kv(call, impl, kernel.step_keys, base, stream, params));
  } else if (!launch.is_kept) {
    FDMA_TRY_VOID(check_cuda(zero_counter(params.next_work_tile, stream),
                             "launch of the kernel that zeroes the counter"));
  }
  const int num_blocks = std::min(impl.num_multiprocessors, impl.arrays.num_work_tiles);
  FDMA_TRY_VOID(check_cuda(kernel.launch(params, score_numbers(call), num_blocks, stream),
                           "launch of the forward kernel"));
  if (impl.num_partials == 0) return {};
  return check_cuda(combine(params, impl, stream), "launch of the combine kernel");
}

}  // namespace

Result<void> attention_forward(const DevicePlan& plan, const AttentionTensors& tensors,
                               const Launch& launch, const AttentionOptions& options) {
  return run(plan, tensors, launch, options, plan.gather);
}

Result<void> attention_forward_with_lists(const DevicePlan& plan, const AttentionTensors& tensors,
                                          const Launch& launch, const AttentionOptions& options,
                                          const KvIndexArrays& gather) {
  return run(plan, tensors, launch, options, gather);
}

Result<void> attention_forward_by(const ForwardKernel& kernel, const DevicePlan& plan,
                                  const AttentionTensors& tensors, const Launch& launch,
                                  const AttentionOptions& options) {
  return run(plan, tensors, launch, options, plan.gather, &kernel);
}

std::int64_t forward_workspace_bytes(const DevicePlan& plan) { return Workspace(plan).bytes; }

std::int32_t* work_tile_counter(void* workspace) { return static_cast<std::int32_t*>(workspace); }

}  // namespace fdma::sm90
