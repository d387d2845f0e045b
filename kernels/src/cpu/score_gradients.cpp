#include "cpu/score_gradients.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/backward.hpp"
#include "cpu/float16.hpp"
#include "fdma/base/parallel.hpp"

namespace fdma::cpu {
namespace {

void store_element(void* data, DType dtype, std::int64_t index, float value) {
  if (dtype == DType::float32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(data)[index] =
        dtype == DType::bfloat16 ? bfloat16_from_float(value) : float16_from_float(value);
  }
}

// Calls visit(row, offset) for the rows of a tensor along its last axis: the number of the row, and
// the index of its first element.
template <class Visit>
void for_each_row(const MutableTensorView& tensor, const Visit& visit) {
  std::int64_t num_rows = tensor.data == nullptr ? 0 : 1;
  for (int axis = 0; axis + 1 < tensor.rank; ++axis) {
    num_rows *= tensor.extents[static_cast<std::size_t>(axis)];
  }
  fdma::parallel_for(std::int64_t{0}, num_rows, [&](std::int64_t row) {
    std::int64_t offset = 0, rest = row;
    for (int axis = tensor.rank - 2; axis >= 0; --axis) {
      const auto at = static_cast<std::size_t>(axis);
      offset += rest % tensor.extents[at] * tensor.strides[at];
      rest /= tensor.extents[at];
    }
    visit(row, offset);
  });
}

void clear(const MutableTensorView& tensor) {
  if (tensor.data == nullptr) return;
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  for_each_row(tensor, [&](std::int64_t, std::int64_t offset) {
    const std::int64_t element_bytes = size_bytes(tensor.dtype);
    if (tensor.strides[last] == 1) {
      std::memset(static_cast<char*>(tensor.data) + offset * element_bytes, 0,
                  static_cast<std::size_t>(tensor.extents[last] * element_bytes));
      return;
    }
    for (std::int64_t i = 0; i < tensor.extents[last]; ++i) {
      store_element(tensor.data, tensor.dtype, offset + i * tensor.strides[last], 0);
    }
  });
}

// True iff each element of dbias belongs to one pair.
bool is_of_one_pair(const AttentionShape& shape, const MutableTensorView& dbias) {
  return dbias.extents[0] == shape.batch && dbias.extents[1] == shape.heads_q &&
         (dbias.extents[2] > 1 || shape.max_q_len() <= 1);
}

}  // namespace

ScoreGradients::ScoreGradients(const BackwardRun& run) {
  const AttentionShape& shape = run.plan->shape;
  clear(run.dbias_view);
  clear(run.drelative_view);
  clear(run.dsinks_view);
  if (run.dsinks.data != nullptr) sink_rows.resize(run.row_index(shape.batch, 0, 0));
  if (run.drelative.data != nullptr) {
    relative_turns = Turns(static_cast<std::size_t>(shape.heads_q));
  }
  sums_bias = run.dbias.data != nullptr && !is_of_one_pair(shape, run.dbias_view);
  if (!sums_bias) return;
  bias_turns = Turns(static_cast<std::size_t>(
      shape.batch * shape.heads_q * ceil_div(shape.max_kv_len(), run.plan->tile.block_kv)));
  const MutableTensorView& view = run.dbias_view;
  bias_sums = {nullptr,
               DType::float32,
               run.dbias.batch_stride,
               run.dbias.head_stride,
               run.dbias.row_stride,
               run.dbias.heads_per_index};
  if (view.dtype == DType::float32) {
    bias_sums.data = static_cast<float*>(view.data);
    return;
  }
  const std::int64_t row = view.extents[3], head = row * view.extents[2];
  bias_memory.resize(static_cast<std::size_t>(head * view.extents[1] * view.extents[0]));
  bias_sums.data = bias_memory.data();
  if (bias_sums.batch_stride != 0) bias_sums.batch_stride = head * view.extents[1];
  if (bias_sums.head_stride != 0) bias_sums.head_stride = head;
  if (bias_sums.row_stride != 0) bias_sums.row_stride = row;
}

std::size_t ScoreGradients::bias_place(const BackwardRun& run, std::int32_t batch,
                                       std::int32_t head, std::int32_t key_tile) const {
  const AttentionShape& shape = run.plan->shape;
  const std::int64_t key_tiles = ceil_div(shape.max_kv_len(), run.plan->tile.block_kv);
  const std::int64_t of_batch = run.dbias.batch_stride == 0 ? 0 : batch;
  const std::int64_t of_head = run.dbias.head_stride == 0 ? 0 : head / run.dbias.heads_per_index;
  return static_cast<std::size_t>((of_batch * shape.heads_q + of_head) * key_tiles + key_tile);
}

std::size_t ScoreGradients::relative_place(const BackwardRun& run, std::int32_t head) {
  return run.drelative.head_stride == 0 ? 0 : static_cast<std::size_t>(head);
}

SumTickets ScoreGradients::draw(const BackwardRun& run, const WorkTile& work_tile) {
  SumTickets tickets;
  if (sums_bias) {
    tickets.bias =
        bias_turns.draw(bias_place(run, work_tile.batch, work_tile.head, work_tile.q_tile));
  }
  if (run.drelative.data != nullptr) {
    tickets.relative = relative_turns.draw(relative_place(run, work_tile.head));
  }
  return tickets;
}

void ScoreGradients::store(const BackwardRun& run) const {
  const AttentionShape& shape = run.plan->shape;
  if (!bias_memory.empty()) {
    const std::int64_t length = run.dbias_view.extents[3];
    for_each_row(run.dbias_view, [&](std::int64_t row, std::int64_t offset) {
      for (std::int64_t i = 0; i < length; ++i) {
        store_element(run.dbias_view.data, run.dbias_view.dtype, offset + i,
                      bias_memory[static_cast<std::size_t>(row * length + i)]);
      }
    });
  }
  if (sink_rows.empty()) return;
  const bool is_per_row = run.dsinks_view.rank == 3;
  fdma::parallel_for(std::int64_t{0}, std::int64_t{shape.heads_q}, [&](std::int64_t head) {
    const auto h = static_cast<std::int32_t>(head);
    double of_head = 0;
    for (std::int32_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t q = 0; q < run.q_len(b); ++q) {
        const float value = sink_rows[run.row_index(b, h, q)];
        of_head += value;
        if (is_per_row) {
          store_element(run.dsinks.data, run.dsinks.dtype, run.dsinks.offset(b, h, q), value);
        }
      }
    }
    if (is_per_row) return;
    store_element(run.dsinks.data, run.dsinks.dtype, run.dsinks.offset(0, h, 0),
                  static_cast<float>(of_head));
  });
}

// ---- one thread

ScoreGradientSums::ScoreGradientSums(BackwardRun& run)
    : run_(run), block_kv_(static_cast<std::size_t>(run.plan->tile.block_kv)) {
  if (run.dkey_bias.data != nullptr) keys_.resize(block_kv_);
  if (run.score_gradients->sums_bias) {
    const std::int64_t rows = run.dbias.row_stride == 0 ? 1 : run.plan->shape.max_q_len();
    bias_.resize(static_cast<std::size_t>(rows) * block_kv_);
  }
  if (run.drelative.data != nullptr) {
    table_.resize(static_cast<std::size_t>(run.drelative.left + run.drelative.right) + 1);
  }
}

void ScoreGradientSums::begin_group(const WorkTile& first, const SumTickets* tickets) {
  first_ = first;
  tickets_ = tickets;
}

void ScoreGradientSums::begin_keys(std::int64_t first_key, std::size_t num_keys) {
  first_key_ = first_key;
  num_keys_ = num_keys;
  std::fill(keys_.begin(), keys_.end(), 0.0F);
}

void ScoreGradientSums::begin_head(std::int32_t batch, std::int32_t head) {
  batch_ = batch;
  head_ = head;
  first_query_ = run_.plan->shape.max_q_len();
  end_query_ = 0;
  first_element_ = static_cast<std::int64_t>(table_.size());
  end_element_ = 0;
}

void ScoreGradientSums::add(const float* ds, std::size_t num_keys, std::int64_t query,
                            std::size_t row, std::int64_t distance) {
  if (!keys_.empty()) {
    float* to = keys_.data() + row;
    for (std::size_t i = 0; i < num_keys; ++i) to[i] += ds[i];
  }
  if (run_.dbias.data != nullptr) add_to_bias(ds, num_keys, query, row);
  if (!table_.empty()) add_to_table(ds, num_keys, distance + static_cast<std::int64_t>(row));
}

void ScoreGradientSums::add_to_bias(const float* ds, std::size_t num_keys, std::int64_t query,
                                    std::size_t row) {
  if (run_.score_gradients->sums_bias) {
    const std::int64_t of_query = run_.dbias.row_stride == 0 ? 0 : query;
    first_query_ = std::min(first_query_, of_query);
    end_query_ = std::max(end_query_, of_query + 1);
    float* to = bias_.data() + static_cast<std::size_t>(of_query) * block_kv_ + row;
    for (std::size_t i = 0; i < num_keys; ++i) to[i] += ds[i];
    return;
  }
  // A chunk may name a query twice, for different keys. The gradients of the others are 0.
  const std::int64_t at =
      run_.dbias.offset(batch_, head_, query) + first_key_ + static_cast<std::int64_t>(row);
  if (run_.dbias.dtype == DType::float32) {
    float* to = static_cast<float*>(run_.dbias.data) + at;
    for (std::size_t i = 0; i < num_keys; ++i) to[i] += ds[i];
    return;
  }
  for (std::size_t i = 0; i < num_keys; ++i) {
    if (ds[i] == 0.0F) continue;
    store_element(run_.dbias.data, run_.dbias.dtype, at + static_cast<std::int64_t>(i), ds[i]);
  }
}

void ScoreGradientSums::add_to_table(const float* ds, std::size_t num_keys, std::int64_t distance) {
  const std::int64_t first = distance + run_.drelative.left;
  const auto count = static_cast<std::int64_t>(num_keys);
  const auto last = static_cast<std::int64_t>(table_.size()) - 1;
  first_element_ = std::min(first_element_, std::clamp<std::int64_t>(first, 0, last));
  end_element_ = std::max(end_element_, std::clamp<std::int64_t>(first + count - 1, 0, last) + 1);
  // Keys before the table, in it, and after it.
  const std::int64_t inside = std::clamp<std::int64_t>(-first, 0, count);
  const std::int64_t after = std::clamp<std::int64_t>(last + 1 - first, inside, count);
  for (std::int64_t i = 0; i < inside; ++i) table_.front() += ds[i];
  double* to = table_.data() + first;
  for (std::int64_t i = inside; i < after; ++i) to[i] += ds[i];
  for (std::int64_t i = after; i < count; ++i) table_.back() += ds[i];
}

void ScoreGradientSums::end_head() {
  ScoreGradients& gradients = *run_.score_gradients;
  const SumTickets& tickets = tickets_[head_ - first_.head];
  if (gradients.sums_bias) {
    const std::size_t place = gradients.bias_place(run_, batch_, head_, first_.q_tile);
    gradients.bias_turns.wait(place, tickets.bias);
    for (std::int64_t query = first_query_; query < end_query_; ++query) {
      float* from = bias_.data() + static_cast<std::size_t>(query) * block_kv_;
      float* to =
          gradients.bias_sums.data + gradients.bias_sums.offset(batch_, head_, query) + first_key_;
      for (std::size_t i = 0; i < num_keys_; ++i) to[i] += from[i];
    }
    gradients.bias_turns.finish(place, tickets.bias);
    if (first_query_ < end_query_) {
      const auto stride = static_cast<std::int64_t>(block_kv_);
      std::fill(bias_.begin() + first_query_ * stride, bias_.begin() + end_query_ * stride, 0.0F);
    }
  }
  if (!table_.empty()) {
    const std::size_t place = ScoreGradients::relative_place(run_, head_);
    gradients.relative_turns.wait(place, tickets.relative);
    float* to = run_.drelative.data + head_ * run_.drelative.head_stride;
    for (std::int64_t i = first_element_; i < end_element_; ++i) {
      to[i] += static_cast<float>(table_[static_cast<std::size_t>(i)]);
    }
    gradients.relative_turns.finish(place, tickets.relative);
    if (first_element_ < end_element_) {
      std::fill(table_.begin() + first_element_, table_.begin() + end_element_, 0.0);
    }
  }
}

void ScoreGradientSums::end_keys() {
  if (keys_.empty()) return;
  const std::int32_t kv_head = first_.head / run_.plan->shape.group_size();
  std::copy_n(keys_.data(), num_keys_, run_.dkey_bias.place(batch_, kv_head, first_key_));
}

}  // namespace fdma::cpu
