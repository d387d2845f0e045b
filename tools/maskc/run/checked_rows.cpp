#include "run/checked_rows.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>

#include "cli/progress.hpp"
#include "fdma/formats/convert.hpp"
#include "run/element_values.hpp"
#include "run/parallel_rows.hpp"

namespace fdma::maskc {
namespace {

std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
  return x ^ (x >> 33);
}

}  // namespace

std::int64_t RowSpace::num_rows() const {
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < batch; ++b) rows += length(b) * heads;
  return rows;
}

std::vector<TensorRow> rows_to_check(const RowSpace& space, std::int64_t num_rows) {
  std::vector<TensorRow> rows;
  const std::int64_t num_pairs = space.batch * space.heads;
  const std::int64_t total_rows = space.num_rows();
  if (num_rows >= total_rows) {
    rows.reserve(static_cast<std::size_t>(total_rows));
    for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
      const std::int64_t b = pair / space.heads;
      for (std::int64_t row = 0; row < space.length(b); ++row) {
        rows.push_back({b, pair % space.heads, row});
      }
    }
    return rows;
  }
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const bool covers_all = num_rows >= num_pairs;
    const std::int64_t pair = covers_all ? i % num_pairs : i * num_pairs / num_rows;
    const std::int64_t turn = covers_all ? i / num_pairs : i;
    const std::int64_t b = pair / space.heads;
    const std::int64_t length = space.length(b);
    if (length == 0) continue;
    const std::uint64_t random = scrambled(static_cast<std::uint64_t>(i) + 1);
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random % static_cast<std::uint64_t>(n));
    };
    const std::int64_t tile = below((length + space.tile_rows - 1) / space.tile_rows);
    std::int64_t row = 0;
    if (turn == 1) row = length - 1;
    if (turn > 1 && turn % 4 == 0) row = tile * space.tile_rows;
    if (turn > 1 && turn % 4 == 1) row = std::min((tile + 1) * space.tile_rows, length) - 1;
    if (turn > 1 && turn % 4 > 1) row = below(length);
    rows.push_back({b, pair % space.heads, row});
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::int32_t GroupsOfRows::group_of(std::int64_t batch, std::int64_t head) const {
  return mask_.group(mask_.shape.num_batches == 1 ? 0 : batch,
                     mask_.shape.num_heads == 1 ? 0 : head);
}

void GroupsOfRows::make(std::int64_t batch, std::int64_t head) {
  const std::int32_t group = group_of(batch, head);
  if (groups_.contains(group)) return;
  groups_.emplace(group, segment_of_group(mask_, group, mask_.block));
}

const SegmentMask& GroupsOfRows::of(std::int64_t batch, std::int64_t head) const {
  return groups_.at(group_of(batch, head));
}

Status check_each(std::int64_t count, int num_workers, Progress& progress,
                  const std::function<void(std::int64_t i, int worker)>& work) {
  std::atomic<std::int64_t> num_done{0};
  std::atomic<bool> is_out_of_memory{false};
  parallel_for(count, num_workers, [&](std::int64_t i, int worker) {
    try {  // a row may have more intervals than any before it
      work(i, worker);
    } catch (const std::bad_alloc&) {
      is_out_of_memory = true;
    }
    const std::int64_t done = ++num_done;
    if (worker == 0) progress.update(done, count);
  });
  if (!is_out_of_memory) return Nothing{};
  return CommandFailure{ExitCode::unsupported, "out of memory while checking"};
}

void load_row(const TensorView& tensor, std::int64_t b, std::int64_t position, std::int64_t head,
              std::int64_t count, float* values) {
  load_elements(tensor.data, tensor.dtype,
                b * tensor.strides[0] + position * tensor.strides[1] + head * tensor.strides[2],
                count, values);
}

float element_at(const TensorView& tensor, std::int64_t b, std::int64_t head,
                 std::int64_t position) {
  return static_cast<const float*>(
      tensor.data)[b * tensor.strides[0] + head * tensor.strides[1] + position * tensor.strides[2]];
}

float dot32(const float* a, const float* b, std::int64_t n) {
  float lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) lanes[i % 8] += a[i] * b[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double dot64(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

template <class T>
T softmax(T* logits, std::size_t count) {
  T greatest = -std::numeric_limits<T>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(logits[i])) greatest = logits[i];
    if (std::isnan(greatest)) break;
    greatest = std::max(greatest, logits[i]);
  }
  if (greatest == -std::numeric_limits<T>::infinity()) {
    std::fill(logits, logits + count, T{0});
    return greatest;
  }
  T sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    logits[i] = std::exp(logits[i] - greatest);
    sum += logits[i];
  }
  for (std::size_t i = 0; i < count; ++i) logits[i] /= sum;
  return greatest + std::log(sum);
}

template float softmax(float*, std::size_t);
template double softmax(double*, std::size_t);

}  // namespace fdma::maskc
