#include "run/attention_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "run/attention_run.hpp"
#include "run/checked_rows.hpp"
#include "run/element_values.hpp"
#include "run/parallel_rows.hpp"
#include "run/score_definition.hpp"

namespace fdma::maskc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The buffers of one thread for one row, and the errors that the thread has found so far.
struct Worker {
  std::vector<Interval> intervals;
  std::vector<double> logits64;
  std::vector<float> logits32;
  std::vector<float> q, kv, got, out32;
  std::vector<double> out64;
  TensorError out, lse;
};

class Checker {
 public:
  Checker(const AttentionShape& shape, const AttentionTensors& tensors,
          const AttentionOptions& options)
      : shape_(shape),
        tensors_(tensors),
        scale_(scale_of(options.softmax_scale, shape)),
        score_(shape, tensors, options) {}

  Worker make_worker() const {
    const auto keys = static_cast<std::size_t>(shape_.max_kv_len());
    const auto dim_v = static_cast<std::size_t>(shape_.head_dim_v);
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    Worker worker;
    worker.intervals.reserve(64);
    worker.logits64.resize(keys);
    worker.logits32.resize(keys);
    worker.q.resize(dim);
    worker.kv.resize(std::max(dim, dim_v));
    worker.got.resize(dim_v);
    worker.out32.resize(dim_v);
    worker.out64.resize(dim_v);
    return worker;
  }

  void check_row(const SegmentMask& mask, const TensorRow& row, Worker& worker) const {
    const std::int64_t head_kv = row.head / shape_.group_size();
    row_intervals_of(mask, row.row, worker.intervals);
    load_row(tensors_.q, row.batch, row.row, row.head, shape_.head_dim, worker.q.data());
    load_row(tensors_.out.view(), row.batch, row.row, row.head, shape_.head_dim_v,
             worker.got.data());
    const auto got_lse =
        static_cast<double>(element_at(tensors_.lse.view(), row.batch, row.head, row.row));
    const std::size_t count = logits(row, head_kv, worker);
    if (count == 0) {
      for (const float got : worker.got) {
        worker.out.take(0, 0, static_cast<double>(got), row, true);
      }
      worker.lse.take(-kInfinity, -kInfinity, got_lse, row, true);
      return;
    }
    const double lse64 = softmax(worker.logits64.data(), count);
    const float lse32 = softmax(worker.logits32.data(), count);
    finish_weights(row, lse64, lse32, worker);
    weighted_values(row.batch, head_kv, worker);
    for (std::size_t d = 0; d < worker.got.size(); ++d) {
      // A row whose every logit is -inf has no softmax; it counts as a row without keys.
      const bool is_empty = lse64 == -kInfinity;
      worker.out.take(is_empty ? 0 : worker.out64[d],
                      static_cast<double>(rounded_to(shape_.out_dtype, worker.out32[d])),
                      static_cast<double>(worker.got[d]), row, is_empty);
    }
    worker.lse.take(lse64, static_cast<double>(lse32), got_lse, row, false);
  }

 private:
  // Logits of the visible keys in both precisions; returns how many there are.
  std::size_t logits(const TensorRow& row, std::int64_t head_kv, Worker& worker) const {
    std::size_t count = 0;
    for (const Interval& interval : worker.intervals) {
      for (std::int64_t key = interval.begin; key < interval.end; ++key, ++count) {
        load_row(tensors_.kv.k, row.batch, key, head_kv, shape_.head_dim, worker.kv.data());
        const Pair pair{row.batch, row.head, row.row, key};
        worker.logits64[count] = score_.logit(
            static_cast<double>(scale_) * dot64(worker.q.data(), worker.kv.data(), shape_.head_dim),
            pair);
        const float exact =
            score_.logit(scale_ * dot32(worker.q.data(), worker.kv.data(), shape_.head_dim), pair);
        const float rounded = rounded_to(shape_.q_dtype, exact);
        worker.logits32[count] = std::isinf(rounded) ? exact : rounded;
      }
    }
    return count;
  }

  // Weights of the row after the sink and dropout, from those after the softmax.
  void finish_weights(const TensorRow& row, double lse64, float lse32, Worker& worker) const {
    const double share64 = score_.share_of_keys(lse64, row.batch, row.head, row.row);
    const float share32 = score_.share_of_keys(lse32, row.batch, row.head, row.row);
    std::size_t i = 0;
    for (const Interval& interval : worker.intervals) {
      for (std::int64_t key = interval.begin; key < interval.end; ++key, ++i) {
        const Pair pair{row.batch, row.head, row.row, key};
        worker.logits64[i] *= share64 * score_.kept<double>(pair);
        worker.logits32[i] =
            rounded_to(shape_.v_dtype, worker.logits32[i] * share32 * score_.kept<float>(pair));
      }
    }
  }

  void weighted_values(std::int64_t b, std::int64_t head_kv, Worker& worker) const {
    std::fill(worker.out64.begin(), worker.out64.end(), 0.0);
    std::fill(worker.out32.begin(), worker.out32.end(), 0.0f);
    std::size_t i = 0;
    for (const Interval& interval : worker.intervals) {
      for (std::int64_t key = interval.begin; key < interval.end; ++key, ++i) {
        load_row(tensors_.kv.v, b, key, head_kv, shape_.head_dim_v, worker.kv.data());
        const double p64 = worker.logits64[i];
        const float p32 = worker.logits32[i];
        for (std::size_t d = 0; d < worker.out64.size(); ++d) {
          worker.out64[d] += p64 * static_cast<double>(worker.kv[d]);
          worker.out32[d] += p32 * worker.kv[d];
        }
      }
    }
  }

  const AttentionShape& shape_;
  const AttentionTensors& tensors_;
  float scale_;
  ScoreDefinition score_;
};

// The number of rows whose comparison stays within the limit; all rows if their visible pairs do.
std::int64_t affordable_rows(const BlockMask& mask, const AttentionShape& shape,
                             std::int64_t total_rows) {
  const std::int64_t dims = shape.head_dim + shape.head_dim_v;
  const auto pairs = static_cast<double>(allowed_pairs(mask, shape));
  if ((pairs + static_cast<double>(total_rows)) * static_cast<double>(dims) <=
      static_cast<double>(kMaxProducts)) {
    return total_rows;
  }
  return std::max(kMinRowsChecked,
                  kMaxProducts / (std::max<std::int64_t>(shape.max_kv_len(), 1) * dims));
}

}  // namespace

Outcome<AttentionCheck> check_attention(const BlockMask& mask, const AttentionPlan& plan,
                                        const AttentionTensors& tensors,
                                        const AttentionOptions& options, std::int64_t max_rows,
                                        Progress& progress) {
  const AttentionShape& shape = plan.shape;
  const RowSpace space{shape.batch, shape.heads_q, plan.tile.block_q,
                       [&](std::int64_t b) { return shape.q_len(b); }};
  AttentionCheck check;
  check.total_rows = space.num_rows();
  const std::vector<TensorRow> rows = rows_to_check(
      space, max_rows > 0 ? max_rows : affordable_rows(mask, shape, check.total_rows));
  check.num_rows = static_cast<std::int64_t>(rows.size());
  GroupsOfRows groups(mask);
  for (const TensorRow& row : rows) groups.make(row.batch, row.head);
  const Checker checker(shape, tensors, options);
  const int num_workers = thread_count(options.num_threads);
  std::vector<Worker> workers;
  for (int i = 0; i < num_workers; ++i) workers.push_back(checker.make_worker());
  FDMA_TRY_VOID(check_each(check.num_rows, num_workers, progress, [&](std::int64_t i, int worker) {
    const TensorRow& row = rows[static_cast<std::size_t>(i)];
    checker.check_row(groups.of(row.batch, row.head), row,
                      workers[static_cast<std::size_t>(worker)]);
  }));
  for (const Worker& worker : workers) {
    check.out.merge(worker.out);
    check.lse.merge(worker.lse);
  }
  return check;
}

std::string to_text(const AttentionCheck& check) {
  const std::string rows =
      check.num_rows == check.total_rows
          ? fmt::format("all {}", plural(check.total_rows, "row"))
          : fmt::format("{} of {}", count_text(check.num_rows), plural(check.total_rows, "row"));
  return fmt::format("{} against float64: max abs error {}, {}", rows, error_text("out", check.out),
                     error_text("lse", check.lse));
}

std::string complaint(const AttentionCheck& check) {
  std::string text;
  append_complaint(text, "out", "row", check.out);
  append_complaint(text, "lse", "row", check.lse);
  return text;
}

Json to_json(const AttentionCheck& check) {
  return {{"right", check.is_right()},
          {"num_rows", check.num_rows},
          {"total_rows", check.total_rows},
          {"out", to_json(check.out)},
          {"lse", to_json(check.lse)}};
}

}  // namespace fdma::maskc
