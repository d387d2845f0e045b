// One block computes one row in three passes over its keys: logits, exponentials, the product with
// v. Every pass is a plain loop over keys or columns by the definition. Logits are kept in shared
// memory, or in global memory for long rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "device_array.hpp"
#include "reference_rows.hpp"

namespace fdma::gpu_test {
namespace {

using testing::ReferenceProblem;
using testing::ReferenceRows;
using testing::RowTask;

constexpr int kThreads = 128;
constexpr int kMaxSharedBytes = 200 * 1024;

struct Operand {
  const void* data;
  std::int64_t batch_stride, row_stride, head_stride;
};

struct Arguments {
  Operand q, k, v;
  const float* bias;  ///< null if there is none
  std::int64_t bias_batch_stride, bias_head_stride;
  double softmax_scale, softcap;
  int head_dim, head_dim_v;
  int group_size;
  const int* kv_lens;
  const RowTask* tasks;
  const char* cells;
};

template <class T>
__device__ const T* row_of(const Operand& operand, std::int64_t b, std::int64_t row,
                           std::int64_t h) {
  return static_cast<const T*>(operand.data) + b * operand.batch_stride + row * operand.row_stride +
         h * operand.head_stride;
}

// Numbers in float64 are not rounded. The explicit computation in float32 rounds to T where a
// tensor of that type would.
template <class T>
__device__ double rounded(double x) {
  return x;
}
template <class T>
__device__ float rounded(float x) {
  return static_cast<float>(static_cast<T>(x));
}

// The maximum or sum of one number of each thread, returned to every thread.
template <class Real, class Combine>
__device__ Real over_block(Real mine, Real* shared, const Combine& combine) {
  shared[threadIdx.x] = mine;
  __syncthreads();
  Real all = shared[0];
  for (int i = 1; i < kThreads; ++i) all = combine(all, shared[i]);
  __syncthreads();
  return all;
}

template <class Real, class T>
__global__ void __launch_bounds__(kThreads)
    reference_rows(const Arguments arguments, Real* scratch, std::int64_t scratch_stride, Real* out,
                   Real* lse) {
  extern __shared__ double memory[];
  __shared__ Real shared[kThreads];
  // These are first logits and then exponentials.
  Real* terms =
      scratch != nullptr ? scratch + blockIdx.x * scratch_stride : reinterpret_cast<Real*>(memory);
  const RowTask task = arguments.tasks[blockIdx.x];
  const char* cells = arguments.cells + task.first_cell;
  const int kv_len = arguments.kv_lens[task.b], h_kv = task.h / arguments.group_size;
  const int thread = static_cast<int>(threadIdx.x);

  const T* q = row_of<T>(arguments.q, task.b, task.row, task.h);
  Real largest = -INFINITY;
  for (int key = thread; key < kv_len; key += kThreads) {
    terms[key] = -INFINITY;
    if (cells[key] == 0) continue;
    const T* k = row_of<T>(arguments.k, task.b, key, h_kv);
    Real sum = 0;
    for (int d = 0; d < arguments.head_dim; ++d) {
      sum +=
          static_cast<Real>(static_cast<float>(q[d])) * static_cast<Real>(static_cast<float>(k[d]));
    }
    Real logit = static_cast<Real>(arguments.softmax_scale) * sum;
    if (arguments.softcap != 0) {
      const Real cap = static_cast<Real>(arguments.softcap);
      logit = cap * tanh(logit / cap);
    }
    if (arguments.bias != nullptr) {
      logit +=
          arguments
              .bias[task.b * arguments.bias_batch_stride + h_kv * arguments.bias_head_stride + key];
    }
    terms[key] = logit;
    largest = max(largest, logit);
  }
  largest = over_block(largest, shared, [](Real a, Real b) { return max(a, b); });

  Real total = 0;
  for (int key = thread; key < kv_len; key += kThreads) {
    terms[key] = largest == -INFINITY ? Real(0) : exp(terms[key] - largest);
    total += terms[key];
  }
  total = over_block(total, shared, [](Real a, Real b) { return a + b; });

  const bool has_keys = total > 0;
  for (int d = thread; d < arguments.head_dim_v; d += kThreads) {
    Real sum = 0;
    for (int key = 0; has_keys && key < kv_len; ++key) {
      if (cells[key] == 0) continue;
      sum += rounded<T>(terms[key] / total) *
             static_cast<Real>(static_cast<float>(row_of<T>(arguments.v, task.b, key, h_kv)[d]));
    }
    out[std::int64_t{blockIdx.x} * arguments.head_dim_v + d] = rounded<T>(sum);
  }
  if (thread == 0) lse[blockIdx.x] = has_keys ? largest + log(total) : Real(-INFINITY);
}

template <class Real, class T>
void run(const Arguments& arguments, std::size_t num_tasks, std::int64_t max_kv_len,
         std::vector<Real>& out, std::vector<Real>& lse) {
  const DeviceArray<Real> d_out(num_tasks * static_cast<std::size_t>(arguments.head_dim_v)),
      d_lse(num_tasks);
  const std::int64_t row_bytes = max_kv_len * static_cast<std::int64_t>(sizeof(Real));
  const bool is_short = row_bytes <= kMaxSharedBytes;
  const DeviceArray<Real> scratch(is_short ? 0 : num_tasks * static_cast<std::size_t>(max_kv_len));
  if (num_tasks > 0) {
    launch(reference_rows<Real, T>, static_cast<int>(num_tasks), kThreads,
           is_short ? static_cast<int>(row_bytes) : 0, arguments,
           is_short ? static_cast<Real*>(nullptr) : scratch.data(), max_kv_len, d_out.data(),
           d_lse.data());
  }
  out = d_out.to_host();
  lse = d_lse.to_host();
}

Operand operand(const TensorView& tensor) {
  return {tensor.data, tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

}  // namespace

ReferenceRows reference_on_device(const ReferenceProblem& problem) {
  const AttentionShape& shape = problem.shape;
  std::vector<int> kv_lens;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    kv_lens.push_back(static_cast<int>(shape.kv_len(b)));
  const DeviceArray<int> d_kv_lens(kv_lens);
  const DeviceArray<RowTask> d_tasks(problem.tasks);
  const DeviceArray<char> d_cells(problem.cells);

  Arguments arguments{};
  arguments.q = operand(problem.tensors.q);
  arguments.k = operand(problem.tensors.kv.k);
  arguments.v = operand(problem.tensors.kv.v);
  const TensorView& bias = problem.tensors.key_bias;
  arguments.bias = static_cast<const float*>(bias.data);
  arguments.bias_batch_stride = bias.strides[0];
  arguments.bias_head_stride = bias.strides[1];
  arguments.softmax_scale = problem.softmax_scale;
  arguments.softcap = problem.softcap;
  arguments.head_dim = shape.head_dim;
  arguments.head_dim_v = shape.head_dim_v;
  arguments.group_size = shape.group_size();
  arguments.kv_lens = d_kv_lens.data();
  arguments.tasks = d_tasks.data();
  arguments.cells = d_cells.data();

  ReferenceRows rows;
  const std::size_t num_tasks = problem.tasks.size();
  const std::int64_t kv_len = shape.max_kv_len();
  if (shape.q_dtype == DType::bfloat16) {
    run<double, __nv_bfloat16>(arguments, num_tasks, kv_len, rows.out, rows.lse);
    run<float, __nv_bfloat16>(arguments, num_tasks, kv_len, rows.explicit_out, rows.explicit_lse);
  } else {
    run<double, __half>(arguments, num_tasks, kv_len, rows.out, rows.lse);
    run<float, __half>(arguments, num_tasks, kv_len, rows.explicit_out, rows.explicit_lse);
  }
  return rows;
}

}  // namespace fdma::gpu_test
