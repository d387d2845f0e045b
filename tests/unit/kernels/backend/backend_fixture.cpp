#include "backend/backend_fixture.hpp"

#include <algorithm>
#include <new>

#include "attention_reference.hpp"
#include "backend/part_arrays.hpp"

namespace fdma::testing {
namespace {

constexpr std::align_val_t kAlignment{256};

// Appends `num_rows` decoded rows of one head, from row `first` on.
void append_rows(std::vector<double>& values, const TensorView& tensor, std::int64_t b,
                 std::int64_t h, std::int64_t first, std::int64_t num_rows) {
  for (std::int64_t i = first; i < first + num_rows; ++i) {
    const std::int64_t at = b * tensor.strides[0] + i * tensor.strides[1] + h * tensor.strides[2];
    for (std::int64_t d = 0; d < tensor.extents[3]; ++d)
      values.push_back(reference::decode(tensor.data, tensor.dtype, at + d));
  }
}

// Appends the results of tasks [begin, end), which are all of one head of one batch element.
void append_head(const ReferenceProblem& problem, std::size_t begin, std::size_t end,
                 ReferenceRows& rows) {
  const AttentionShape& shape = problem.shape;
  const AttentionTensors& tensors = problem.host_tensors;
  const std::int64_t b = problem.tasks[begin].b, h = problem.tasks[begin].h;
  const std::int64_t h_kv = h / shape.group_size(), kv_len = shape.kv_len(b);
  reference::HeadProblem head;
  head.q_len = static_cast<std::int64_t>(end - begin);
  head.kv_len = kv_len;
  head.head_dim = shape.head_dim;
  head.head_dim_v = shape.head_dim_v;
  head.softmax_scale = problem.softmax_scale;
  head.softcap = problem.softcap;
  std::vector<char> cells;
  std::vector<std::int32_t> rows_of_head;
  for (std::size_t i = begin; i < end; ++i) {
    const RowTask& task = problem.tasks[i];
    append_rows(head.q, tensors.q, b, h, task.row, 1);
    rows_of_head.push_back(task.row);
    const auto first = problem.cells.begin() + task.first_cell;
    cells.insert(cells.end(), first, first + kv_len);
  }
  head.cells = cells.data();
  append_rows(head.k, tensors.kv.k, b, h_kv, 0, kv_len);
  append_rows(head.v, tensors.kv.v, b, h_kv, 0, kv_len);
  const TensorView& bias = tensors.key_bias;
  for (std::int64_t k = 0; bias.data != nullptr && k < kv_len; ++k) {
    head.bias.push_back(
        static_cast<const float*>(bias.data)[b * bias.strides[0] + h_kv * bias.strides[1] + k]);
  }
  if (problem.parts != nullptr) problem.parts->add_to(head, b, h, rows_of_head);
  const auto exact = reference::attention_float64(head);
  const auto in_own_type = reference::attention_explicit(head, shape.v_dtype, shape.out_dtype);
  rows.out.insert(rows.out.end(), exact.out.begin(), exact.out.end());
  rows.lse.insert(rows.lse.end(), exact.lse.begin(), exact.lse.end());
  for (const double x : in_own_type.out) rows.explicit_out.push_back(static_cast<float>(x));
  for (const double x : in_own_type.lse) rows.explicit_lse.push_back(static_cast<float>(x));
}

}  // namespace

ReferenceRows reference_on_host(const ReferenceProblem& problem) {
  ReferenceRows rows;
  const std::vector<RowTask>& tasks = problem.tasks;
  for (std::size_t begin = 0; begin < tasks.size();) {
    std::size_t end = begin;
    while (end < tasks.size() && tasks[end].b == tasks[begin].b && tasks[end].h == tasks[begin].h)
      ++end;
    append_head(problem, begin, end, rows);
    begin = end;
  }
  return rows;
}

unsigned char* CpuFixture::allocate(std::int64_t bytes) {
  return static_cast<unsigned char*>(
      ::operator new(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), kAlignment));
}

void CpuFixture::release(unsigned char* memory) { ::operator delete(memory, kAlignment); }

void CpuFixture::write(unsigned char* to, const unsigned char* from, std::int64_t bytes) {
  std::copy_n(from, bytes, to);
}

void CpuFixture::read(unsigned char* to, const unsigned char* from, std::int64_t bytes) {
  std::copy_n(from, bytes, to);
}

Result<void> CpuFixture::forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                                 const AttentionOptions& options) {
  return attention_forward(plan, tensors, options);
}

Result<void> CpuFixture::backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                  const BackwardOptions& options) {
  return attention_backward(plan, tensors, options);
}

ReferenceRows CpuFixture::reference(const ReferenceProblem& problem) {
  return reference_on_host(problem);
}

}  // namespace fdma::testing
