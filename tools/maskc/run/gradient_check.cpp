#include "run/gradient_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cli/number_text.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "run/attention_run.hpp"
#include "run/checked_rows.hpp"
#include "run/element_values.hpp"
#include "run/parallel_rows.hpp"

namespace fdma::maskc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The figures of a query that its gradients need: lse and D, in both precisions.
struct QueryFigures {
  double lse64 = -kInfinity, shift64 = 0;
  float lse32 = 0, shift32 = 0;

  bool is_empty() const { return lse64 == -kInfinity; }
};

// A cell of P and dS in both precisions.
struct GradientCell {
  double p64 = 0, ds64 = 0, dx64 = 0;  // P, and the gradients of the logit and the scaled product
  float p32 = 0, ds32 = 0, dx32 = 0;
};

// A sum of rows in both precisions, and the result that it is compared with.
struct Sum {
  std::vector<double> in64;
  std::vector<float> in32, got;

  explicit Sum(std::int64_t dim = 0)
      : in64(static_cast<std::size_t>(dim)), in32(in64.size()), got(in64.size()) {}
  void clear() {
    std::fill(in64.begin(), in64.end(), 0.0);
    std::fill(in32.begin(), in32.end(), 0.0f);
  }
  void add(double weight64, float weight32, const std::vector<float>& row) {
    for (std::size_t d = 0; d < in64.size(); ++d) {
      in64[d] += weight64 * static_cast<double>(row[d]);
      in32[d] += weight32 * row[d];
    }
  }
  void compare(const MutableTensorView& tensor, const TensorRow& row, bool is_exact,
               TensorError& error) {
    load_row(tensor.view(), row.batch, row.row, row.head, static_cast<std::int64_t>(got.size()),
             got.data());
    for (std::size_t d = 0; d < got.size(); ++d) {
      error.take(in64[d], static_cast<double>(rounded_to(tensor.dtype, in32[d])),
                 static_cast<double>(got[d]), row, is_exact);
    }
  }
};

// The buffers of one thread, and the errors that it has found so far.
struct Worker {
  std::vector<Interval> intervals;
  std::vector<double> logits64;
  std::vector<float> logits32;
  std::vector<float> q, k, v, dout;
  Sum out, dq, dk, dv;
  TensorError dq_error, dk_error, dv_error, dkey_bias_error;
};

class GradientChecker {
 public:
  GradientChecker(const AttentionShape& shape, const BackwardTensors& tensors, float softmax_scale,
                  float softcap)
      : shape_(shape),
        tensors_(tensors),
        scale_(softmax_scale != 0 ? softmax_scale
                                  : 1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
        softcap_(softcap),
        figures_(static_cast<std::size_t>(shape.batch * shape.heads_q * shape.max_q_len())) {}

  Worker make_worker() const {
    Worker worker;
    worker.intervals.reserve(64);
    worker.logits64.resize(static_cast<std::size_t>(shape_.max_kv_len()));
    worker.logits32.resize(worker.logits64.size());
    worker.q.resize(static_cast<std::size_t>(shape_.head_dim));
    worker.k.resize(worker.q.size());
    worker.v.resize(static_cast<std::size_t>(shape_.head_dim_v));
    worker.dout.resize(worker.v.size());
    worker.out = worker.dv = Sum(shape_.head_dim_v);
    worker.dq = worker.dk = Sum(shape_.head_dim);
    return worker;
  }

  // Computes the figures of a query by definition.
  void define_figures(const SegmentMask& mask, const TensorRow& row, Worker& worker) {
    QueryFigures& figures = figures_of(row);
    const std::int64_t head_kv = row.head / shape_.group_size();
    load_query(row, worker);
    row_intervals_of(mask, row.row, worker.intervals);
    std::size_t count = 0;
    for (const Interval& keys : worker.intervals) {
      for (std::int64_t key = keys.begin; key < keys.end; ++key, ++count) {
        load_row(tensors_.kv.k, row.batch, key, head_kv, shape_.head_dim, worker.k.data());
        worker.logits64[count] = logit64(worker) + bias_of<double>(row.batch, head_kv, key);
        worker.logits32[count] = logit32(worker) + bias_of<float>(row.batch, head_kv, key);
      }
    }
    if (count == 0) return;
    figures.lse64 = softmax(worker.logits64.data(), count);
    figures.lse32 = softmax(worker.logits32.data(), count);
    worker.out.clear();
    std::size_t i = 0;
    for (const Interval& keys : worker.intervals) {
      for (std::int64_t key = keys.begin; key < keys.end; ++key, ++i) {
        load_row(tensors_.kv.v, row.batch, key, head_kv, shape_.head_dim_v, worker.v.data());
        const float weight = rounded_to(shape_.v_dtype, worker.logits32[i]);
        worker.out.add(worker.logits64[i], weight, worker.v);
      }
    }
    for (std::size_t d = 0; d < worker.dout.size(); ++d) {
      figures.shift64 += worker.out.in64[d] * static_cast<double>(worker.dout[d]);
      worker.out.in32[d] = rounded_to(shape_.out_dtype, worker.out.in32[d]);
    }
    figures.shift32 = dot32(worker.out.in32.data(), worker.dout.data(), shape_.head_dim_v);
  }

  // Takes the figures of a query from the results of the forward call.
  void take_figures(const TensorRow& row, Worker& worker) {
    QueryFigures& figures = figures_of(row);
    figures.lse32 = element_at(tensors_.lse, row.batch, row.head, row.row);
    figures.lse64 = static_cast<double>(figures.lse32);
    load_query(row, worker);
    load_row(tensors_.out, row.batch, row.row, row.head, shape_.head_dim_v, worker.v.data());
    figures.shift64 = dot64(worker.v.data(), worker.dout.data(), shape_.head_dim_v);
    figures.shift32 = dot32(worker.v.data(), worker.dout.data(), shape_.head_dim_v);
  }

  void check_query(const SegmentMask& mask, const TensorRow& row, Worker& worker) {
    const QueryFigures& figures = figures_of(row);
    const std::int64_t head_kv = row.head / shape_.group_size();
    worker.dq.clear();
    if (!figures.is_empty()) {
      load_query(row, worker);
      row_intervals_of(mask, row.row, worker.intervals);
      for (const Interval& keys : worker.intervals) {
        for (std::int64_t key = keys.begin; key < keys.end; ++key) {
          load_key(row.batch, head_kv, key, worker);
          const GradientCell cell = cell_of(figures, row.batch, head_kv, key, worker);
          worker.dq.add(static_cast<double>(scale_) * cell.dx64,
                        scale_ * rounded_to(shape_.q_dtype, cell.dx32), worker.k);
        }
      }
    }
    worker.dq.compare(tensors_.dq, row, figures.is_empty(), worker.dq_error);
  }

  /// `queries` has the transposed mask of each query head of the group.
  void check_key(const GroupsOfRows& queries, const TensorRow& row, bool has_key_bias,
                 Worker& worker) {
    worker.dk.clear();
    worker.dv.clear();
    GradientCell bias;
    std::int64_t num_queries = 0;
    load_key(row.batch, row.head, row.row, worker);
    for (std::int64_t i = 0; i < shape_.group_size(); ++i) {
      const std::int64_t head = row.head * shape_.group_size() + i;
      row_intervals_of(queries.of(row.batch, head), row.row, worker.intervals);
      for (const Interval& seeing : worker.intervals) {
        for (std::int64_t q = seeing.begin; q < seeing.end; ++q) {
          const TensorRow query{row.batch, head, q};
          const QueryFigures& figures = figures_of(query);
          if (figures.is_empty()) continue;
          ++num_queries;
          load_query(query, worker);
          const GradientCell cell = cell_of(figures, row.batch, row.head, row.row, worker);
          worker.dv.add(cell.p64, rounded_to(shape_.v_dtype, cell.p32), worker.dout);
          worker.dk.add(static_cast<double>(scale_) * cell.dx64,
                        scale_ * rounded_to(shape_.q_dtype, cell.dx32), worker.q);
          bias.ds64 += cell.ds64;
          bias.ds32 += cell.ds32;
        }
      }
    }
    const bool is_exact = num_queries == 0;
    worker.dk.compare(tensors_.dk, row, is_exact, worker.dk_error);
    worker.dv.compare(tensors_.dv, row, is_exact, worker.dv_error);
    if (!has_key_bias) return;
    const float got = element_at(tensors_.dkey_bias.view(), row.batch, row.head, row.row);
    worker.dkey_bias_error.take(bias.ds64, static_cast<double>(bias.ds32), static_cast<double>(got),
                                row, is_exact);
  }

 private:
  QueryFigures& figures_of(const TensorRow& row) {
    return figures_[static_cast<std::size_t>(
        (row.batch * shape_.heads_q + row.head) * shape_.max_q_len() + row.row)];
  }

  void load_query(const TensorRow& row, Worker& worker) const {
    load_row(tensors_.q, row.batch, row.row, row.head, shape_.head_dim, worker.q.data());
    load_row(tensors_.dout, row.batch, row.row, row.head, shape_.head_dim_v, worker.dout.data());
  }
  void load_key(std::int64_t b, std::int64_t head_kv, std::int64_t key, Worker& worker) const {
    load_row(tensors_.kv.k, b, key, head_kv, shape_.head_dim, worker.k.data());
    load_row(tensors_.kv.v, b, key, head_kv, shape_.head_dim_v, worker.v.data());
  }

  double product64(const Worker& worker) const {
    return static_cast<double>(scale_) * dot64(worker.q.data(), worker.k.data(), shape_.head_dim);
  }
  float product32(const Worker& worker) const {
    return scale_ * dot32(worker.q.data(), worker.k.data(), shape_.head_dim);
  }
  double logit64(const Worker& worker) const {
    return capped(product64(worker), static_cast<double>(softcap_));
  }
  float logit32(const Worker& worker) const { return capped(product32(worker), softcap_); }
  template <class T>
  T bias_of(std::int64_t b, std::int64_t head_kv, std::int64_t key) const {
    if (tensors_.key_bias.data == nullptr) return 0;
    return static_cast<T>(element_at(tensors_.key_bias, b, head_kv, key));
  }

  // The cell of the query and the key that the worker holds.
  GradientCell cell_of(const QueryFigures& figures, std::int64_t b, std::int64_t head_kv,
                       std::int64_t key, const Worker& worker) const {
    GradientCell cell;
    cell.p64 = std::exp(logit64(worker) + bias_of<double>(b, head_kv, key) - figures.lse64);
    cell.p32 = std::exp(logit32(worker) + bias_of<float>(b, head_kv, key) - figures.lse32);
    cell.ds64 = cell.p64 *
                (dot64(worker.dout.data(), worker.v.data(), shape_.head_dim_v) - figures.shift64);
    cell.ds32 = cell.p32 *
                (dot32(worker.dout.data(), worker.v.data(), shape_.head_dim_v) - figures.shift32);
    cell.dx64 = cell.ds64 * slope_of_capped(product64(worker), static_cast<double>(softcap_));
    cell.dx32 = cell.ds32 * slope_of_capped(product32(worker), softcap_);
    return cell;
  }

  const AttentionShape& shape_;
  const BackwardTensors& tensors_;
  float scale_, softcap_;              // softcap_ 0: none
  std::vector<QueryFigures> figures_;  // [batch, heads_q, max_q_len]
};

// Whether comparing everything is affordable, by its multiplications: figures, dq, and dk with dv.
bool is_affordable(const BlockMask& mask, const AttentionShape& shape) {
  constexpr double kProducts = 5;  // for each pair and column
  return static_cast<double>(allowed_pairs(mask, shape)) * (shape.head_dim + shape.head_dim_v) *
             kProducts <=
         static_cast<double>(kMaxProducts);
}

std::int64_t affordable_rows(std::int64_t row_length, const AttentionShape& shape) {
  constexpr std::int64_t kProducts = 4;
  return std::max(kMinRowsChecked, kMaxProducts / kProducts /
                                       (std::max<std::int64_t>(row_length, 1) *
                                        (shape.head_dim + shape.head_dim_v)));
}

}  // namespace

Outcome<GradientCheck> check_gradients(const BlockMask& mask, const AttentionPlan& plan,
                                       const BackwardTensors& tensors, float softmax_scale,
                                       float softcap, std::int64_t max_rows, int num_threads,
                                       Progress& progress) {
  const AttentionShape& shape = plan.shape;
  const RowSpace query_space{shape.batch, shape.heads_q, plan.tile.block_q,
                             [&](std::int64_t b) { return shape.q_len(b); }};
  const RowSpace key_space{shape.batch, shape.heads_kv, plan.tile.block_kv,
                           [&](std::int64_t b) { return shape.kv_len(b); }};
  GradientCheck check;
  check.total_rows = query_space.num_rows();
  check.total_keys = key_space.num_rows();
  const bool is_defined = is_affordable(mask, shape);
  const auto sample = [&](const RowSpace& space, std::int64_t total, std::int64_t row_length) {
    const std::int64_t affordable = is_defined ? total : affordable_rows(row_length, shape);
    return rows_to_check(space, max_rows > 0 ? std::min(max_rows, affordable) : affordable);
  };
  const std::vector<TensorRow> all_queries = rows_to_check(query_space, check.total_rows);
  const std::vector<TensorRow> queries = sample(query_space, check.total_rows, shape.max_kv_len());
  const std::vector<TensorRow> keys =
      sample(key_space, check.total_keys, shape.max_q_len() * shape.group_size());
  check.num_rows = std::ssize(queries);
  check.num_keys = std::ssize(keys);
  check.has_key_bias =
      tensors.dkey_bias.data != nullptr && (is_defined || shape.out_dtype == DType::float32);

  FDMA_TRY(const BlockMask transposed, transpose(mask));
  GroupsOfRows rows_of_queries(mask), rows_of_keys(transposed);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t head = 0; head < shape.heads_q; ++head) {
      rows_of_queries.make(b, head);
      rows_of_keys.make(b, head);
    }
  }
  GradientChecker checker(shape, tensors, softmax_scale, softcap);
  const int num_workers = thread_count(num_threads);
  std::vector<Worker> workers;
  for (int i = 0; i < num_workers; ++i) workers.push_back(checker.make_worker());
  const auto for_each = [&](const std::vector<TensorRow>& rows, auto&& work) {
    return check_each(std::ssize(rows), num_workers, progress, [&](std::int64_t i, int worker) {
      work(rows[static_cast<std::size_t>(i)], workers[static_cast<std::size_t>(worker)]);
    });
  };
  FDMA_TRY_VOID(for_each(all_queries, [&](const TensorRow& row, Worker& worker) {
    if (is_defined) {
      checker.define_figures(rows_of_queries.of(row.batch, row.head), row, worker);
    } else {
      checker.take_figures(row, worker);
    }
  }));
  FDMA_TRY_VOID(for_each(queries, [&](const TensorRow& row, Worker& worker) {
    checker.check_query(rows_of_queries.of(row.batch, row.head), row, worker);
  }));
  FDMA_TRY_VOID(for_each(keys, [&](const TensorRow& row, Worker& worker) {
    checker.check_key(rows_of_keys, row, check.has_key_bias, worker);
  }));
  for (const Worker& worker : workers) {
    check.dq.merge(worker.dq_error);
    check.dk.merge(worker.dk_error);
    check.dv.merge(worker.dv_error);
    check.dkey_bias.merge(worker.dkey_bias_error);
  }
  return check;
}

std::string to_text(const GradientCheck& check) {
  const auto count = [](std::int64_t num, std::int64_t total, const char* what) {
    return num == total ? fmt::format("all {}", plural(total, what))
                        : fmt::format("{} of {}", count_text(num), plural(total, what));
  };
  std::string text =
      fmt::format("{} and {} against float64: max abs error {}, {}, {}",
                  count(check.num_rows, check.total_rows, "row"),
                  count(check.num_keys, check.total_keys, "key"), error_text("dq", check.dq),
                  error_text("dk", check.dk), error_text("dv", check.dv));
  if (check.has_key_bias) text += ", " + error_text("dkey_bias", check.dkey_bias);
  return text;
}

std::string complaint(const GradientCheck& check) {
  std::string text;
  append_complaint(text, "dq", "row", check.dq);
  append_complaint(text, "dk", "key", check.dk);
  append_complaint(text, "dv", "key", check.dv);
  append_complaint(text, "dkey_bias", "key", check.dkey_bias);
  return text;
}

Json to_json(const GradientCheck& check) {
  return {{"right", check.is_right()},
          {"num_rows", check.num_rows},
          {"total_rows", check.total_rows},
          {"num_keys", check.num_keys},
          {"total_keys", check.total_keys},
          {"dq", to_json(check.dq)},
          {"dk", to_json(check.dk)},
          {"dv", to_json(check.dv)},
          {"dkey_bias", check.has_key_bias ? to_json(check.dkey_bias) : Json(nullptr)}};
}

}  // namespace fdma::maskc
