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
#include "run/score_definition.hpp"

namespace fdma::maskc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The figures of a query that its gradients need, in both precisions: lse, the share of its keys beside
// the sink, and D.
struct QueryFigures {
  double lse64 = -kInfinity, share64 = 1, shift64 = 0;
  float lse32 = 0, share32 = 1, shift32 = 0;

  bool is_empty() const { return lse64 == -kInfinity; }
};

// A cell of P and dS in both precisions.
struct GradientCell {
  // P after dropout, and the gradients of the logit and the scaled product.
  double p64 = 0, ds64 = 0, dx64 = 0;
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

// The gradients of a row of a tensor of the score, which are sums of dS.
struct LogitSum {
  std::vector<double> in64;
  std::vector<float> in32;
  std::vector<std::int64_t> num_pairs;

  void clear(std::int64_t size) {
    in64.assign(static_cast<std::size_t>(size), 0.0);
    in32.assign(in64.size(), 0.0f);
    num_pairs.assign(in64.size(), 0);
  }
  void add(std::int64_t index, double ds64, float ds32) {
    const auto i = static_cast<std::size_t>(index);
    in64[i] += ds64;
    in32[i] += ds32;
    ++num_pairs[i];
  }
  // `first` is the index of the row's first element.
  void compare(const MutableTensorView& tensor, std::int64_t first, const TensorRow& row,
               TensorError& error) const {
    for (std::size_t i = 0; i < in64.size(); ++i) {
      float got = 0;
      load_elements(tensor.data, tensor.dtype, first + static_cast<std::int64_t>(i), 1, &got);
      error.take(in64[i], static_cast<double>(rounded_to(tensor.dtype, in32[i])),
                 static_cast<double>(got), row, num_pairs[i] == 0);
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
  LogitSum logits;
  TensorError dq_error, dk_error, dv_error;
  OfScoreTensors<TensorError> score_errors;
};

class GradientChecker {
 public:
  GradientChecker(const AttentionShape& shape, const BackwardTensors& tensors,
                  const AttentionOptions& options)
      : shape_(shape),
        tensors_(tensors),
        scale_(scale_of(options.softmax_scale, shape)),
        score_(shape, tensors, options),
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
        const Pair pair{row.batch, row.head, row.row, key};
        worker.logits64[count] = score_.logit(product64(worker), pair);
        worker.logits32[count] = score_.logit(product32(worker), pair);
      }
    }
    if (count == 0) return;
    figures.lse64 = softmax(worker.logits64.data(), count);
    figures.lse32 = softmax(worker.logits32.data(), count);
    set_shares(row, figures);
    worker.out.clear();
    std::size_t i = 0;
    for (const Interval& keys : worker.intervals) {
      for (std::int64_t key = keys.begin; key < keys.end; ++key, ++i) {
        load_row(tensors_.kv.v, row.batch, key, head_kv, shape_.head_dim_v, worker.v.data());
        const Pair pair{row.batch, row.head, row.row, key};
        const float weight = worker.logits32[i] * figures.share32 * score_.kept<float>(pair);
        worker.out.add(worker.logits64[i] * figures.share64 * score_.kept<double>(pair),
                       rounded_to(shape_.v_dtype, weight), worker.v);
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
    set_shares(row, figures);
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
          const GradientCell cell = cell_of(figures, {row.batch, row.head, row.row, key}, worker);
          worker.dq.add(static_cast<double>(scale_) * cell.dx64,
                        scale_ * rounded_to(shape_.q_dtype, cell.dx32), worker.k);
        }
      }
    }
    worker.dq.compare(tensors_.dq, row, figures.is_empty(), worker.dq_error);
  }

  /// `queries` has the transposed mask of each query head of the group.
  void check_key(const GroupsOfRows& queries, const TensorRow& row, bool compares_key_bias,
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
          const GradientCell cell = cell_of(figures, {row.batch, head, q, row.row}, worker);
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
    if (!compares_key_bias) return;
    const float got = element_at(tensors_.dkey_bias.view(), row.batch, row.head, row.row);
    worker.score_errors[index_of(&ScoreSpec::key_bias)].take(
        bias.ds64, static_cast<double>(bias.ds32), static_cast<double>(got), row, is_exact);
  }

  /// `row` is a row of bias, [batch, head, query] of its own extents.
  void check_bias(const GroupsOfRows& keys, const TensorRow& row, Worker& worker) {
    const MutableTensorView& dbias = tensors_.dbias;
    worker.logits.clear(dbias.extents[3]);
    const auto add = [&](const TensorRow& query) {
      add_logits(
          keys, query, [](const Pair& pair) { return pair.key; }, worker);
    };
    for_each_query(row, {dbias.extents[0], dbias.extents[1], dbias.extents[2]}, add);
    worker.logits.compare(
        dbias,
        row.batch * dbias.strides[0] + row.head * dbias.strides[1] + row.row * dbias.strides[2],
        row, worker.score_errors[index_of(&ScoreSpec::bias)]);
  }

  /// `row` is a row of relative, of one head or of all.
  void check_relative(const GroupsOfRows& keys, const TensorRow& row, Worker& worker) {
    const MutableTensorView& drelative = tensors_.drelative;
    worker.logits.clear(drelative.extents[1]);
    for_each_query(row, {1, drelative.extents[0], 1}, [&](const TensorRow& query) {
      add_logits(
          keys, query, [&](const Pair& pair) { return score_.relative_index(pair); }, worker);
    });
    worker.logits.compare(drelative, row.head * drelative.strides[0], row,
                          worker.score_errors[index_of(&ScoreSpec::relative_table)]);
  }

  /// `row` is an element of sinks: that of a head, or of a row.
  void check_sink(const TensorRow& row, Worker& worker) {
    const MutableTensorView& dsinks = tensors_.dsinks;
    const bool is_of_row = dsinks.rank == 3;
    worker.logits.clear(1);
    const auto add = [&](const TensorRow& query) {
      const QueryFigures& figures = figures_of(query);
      if (figures.is_empty()) return;
      const double share64 =
          score_.share_of_sink(figures.lse64, query.batch, query.head, query.row);
      const float share32 = score_.share_of_sink(figures.lse32, query.batch, query.head, query.row);
      worker.logits.add(0, -share64 * figures.shift64, -share32 * figures.shift32);
    };
    for_each_query(row,
                   is_of_row ? TensorRow{dsinks.extents[0], dsinks.extents[1], dsinks.extents[2]}
                             : TensorRow{1, dsinks.extents[0], 1},
                   add);
    const std::int64_t index = is_of_row
                                   ? row.batch * dsinks.strides[0] + row.head * dsinks.strides[1] +
                                         row.row * dsinks.strides[2]
                                   : row.head * dsinks.strides[0];
    worker.logits.compare(dsinks, index, row, worker.score_errors[index_of(&ScoreSpec::sink)]);
  }

  static std::size_t index_of(bool ScoreSpec::*part) {
    return static_cast<std::size_t>(std::ranges::find(kScoreTensors, part, &ScoreTensor::part) -
                                    kScoreTensors.begin());
  }

 private:
  QueryFigures& figures_of(const TensorRow& row) {
    return figures_[static_cast<std::size_t>(
        (row.batch * shape_.heads_q + row.head) * shape_.max_q_len() + row.row)];
  }

  void set_shares(const TensorRow& row, QueryFigures& figures) const {
    figures.share64 = score_.share_of_keys(figures.lse64, row.batch, row.head, row.row);
    figures.share32 = score_.share_of_keys(figures.lse32, row.batch, row.head, row.row);
  }

  // Calls work for each query that row `row` of a tensor with these extents is added to.
  template <class Work>
  void for_each_query(const TensorRow& row, const TensorRow& extents, const Work& work) const {
    const std::int64_t batches = shape_.batch / extents.batch;
    const std::int64_t heads = shape_.heads_q / extents.head;
    const std::int64_t rows = shape_.max_q_len() / extents.row;
    for (std::int64_t b = row.batch * batches; b < (row.batch + 1) * batches; ++b) {
      for (std::int64_t h = row.head * heads; h < (row.head + 1) * heads; ++h) {
        const std::int64_t end = std::min((row.row + 1) * rows, shape_.q_len(b));
        for (std::int64_t q = row.row * rows; q < end; ++q) work(TensorRow{b, h, q});
      }
    }
  }

  // Adds dS of every pair of a query to the element index(pair) of the worker's sums.
  template <class Index>
  void add_logits(const GroupsOfRows& keys, const TensorRow& query, const Index& index,
                  Worker& worker) {
    const QueryFigures& figures = figures_of(query);
    if (figures.is_empty()) return;
    load_query(query, worker);
    row_intervals_of(keys.of(query.batch, query.head), query.row, worker.intervals);
    for (const Interval& seen : worker.intervals) {
      for (std::int64_t key = seen.begin; key < seen.end; ++key) {
        const Pair pair{query.batch, query.head, query.row, key};
        load_key(query.batch, query.head / shape_.group_size(), key, worker);
        const GradientCell cell = cell_of(figures, pair, worker);
        worker.logits.add(index(pair), cell.ds64, cell.ds32);
      }
    }
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
  // The cell of the query and the key that the worker holds.
  GradientCell cell_of(const QueryFigures& figures, const Pair& pair, const Worker& worker) const {
    const double x64 = product64(worker);
    const float x32 = product32(worker);
    const double weight64 = figures.share64 * std::exp(score_.logit(x64, pair) - figures.lse64);
    const float weight32 = figures.share32 * std::exp(score_.logit(x32, pair) - figures.lse32);
    const double kept64 = score_.kept<double>(pair);
    const float kept32 = score_.kept<float>(pair);
    const double dp64 = kept64 * dot64(worker.dout.data(), worker.v.data(), shape_.head_dim_v);
    const float dp32 = kept32 * dot32(worker.dout.data(), worker.v.data(), shape_.head_dim_v);
    GradientCell cell;
    cell.p64 = weight64 * kept64;
    cell.p32 = weight32 * kept32;
    cell.ds64 = weight64 * (dp64 - figures.shift64);
    cell.ds32 = weight32 * (dp32 - figures.shift32);
    cell.dx64 = cell.ds64 * score_.slope(x64);
    cell.dx32 = cell.ds32 * score_.slope(x32);
    return cell;
  }

  const AttentionShape& shape_;
  const BackwardTensors& tensors_;
  float scale_;
  ScoreDefinition score_;
  std::vector<QueryFigures> figures_;  // [batch, heads_q, max_q_len]
};

// Whether comparing everything is affordable, by its multiplications: figures, dq, and dk with dv, and
// dbias and drelative.
bool is_affordable(const BlockMask& mask, const AttentionShape& shape, const ScoreSpec& score) {
  // For each pair and column.
  const double kProducts = 5 + (score.bias ? 2 : 0) + (score.relative_table ? 2 : 0);
  return static_cast<double>(allowed_pairs(mask, shape)) * (shape.head_dim + shape.head_dim_v) *
             kProducts <=
         static_cast<double>(kMaxProducts);
}

std::vector<TensorRow> rows_of(std::int64_t batch, std::int64_t heads, std::int64_t length) {
  const RowSpace space{batch, heads, 1, [&](std::int64_t) { return length; }};
  return rows_to_check(space, space.num_rows());
}

std::int64_t affordable_rows(std::int64_t row_length, const AttentionShape& shape) {
  constexpr std::int64_t kProducts = 4;
  return std::max(kMinRowsChecked, kMaxProducts / kProducts /
                                       (std::max<std::int64_t>(row_length, 1) *
                                        (shape.head_dim + shape.head_dim_v)));
}

}  // namespace

Outcome<GradientCheck> check_gradients(const BlockMask& mask, const AttentionPlan& plan,
                                       const BackwardTensors& tensors,
                                       const AttentionOptions& options, std::int64_t max_rows,
                                       Progress& progress) {
  const AttentionShape& shape = plan.shape;
  const RowSpace query_space{shape.batch, shape.heads_q, plan.tile.block_q,
                             [&](std::int64_t b) { return shape.q_len(b); }};
  const RowSpace key_space{shape.batch, shape.heads_kv, plan.tile.block_kv,
                           [&](std::int64_t b) { return shape.kv_len(b); }};
  GradientCheck check;
  check.total_rows = query_space.num_rows();
  check.total_keys = key_space.num_rows();
  const bool is_defined = is_affordable(mask, shape, plan.score);
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
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    if (tensor.gradient == nullptr || (tensors.*tensor.gradient_view).data == nullptr) continue;
    const bool is_of_keys = tensor.part == &ScoreSpec::key_bias;
    check.compares[i] = is_defined || (is_of_keys && shape.out_dtype == DType::float32);
  }

  FDMA_TRY(const BlockMask transposed, transpose(mask));
  GroupsOfRows rows_of_queries(mask), rows_of_keys(transposed);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t head = 0; head < shape.heads_q; ++head) {
      rows_of_queries.make(b, head);
      rows_of_keys.make(b, head);
    }
  }
  GradientChecker checker(shape, tensors, options);
  const int num_workers = thread_count(options.num_threads);
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
    checker.check_key(rows_of_keys, row,
                      check.compares[GradientChecker::index_of(&ScoreSpec::key_bias)], worker);
  }));
  const auto compares = [&](bool ScoreSpec::*part) {
    return check.compares[GradientChecker::index_of(part)];
  };
  if (compares(&ScoreSpec::bias)) {
    FDMA_TRY_VOID(for_each(
        rows_of(tensors.dbias.extents[0], tensors.dbias.extents[1], tensors.dbias.extents[2]),
        [&](const TensorRow& row, Worker& worker) {
          checker.check_bias(rows_of_queries, row, worker);
        }));
  }
  if (compares(&ScoreSpec::relative_table)) {
    FDMA_TRY_VOID(for_each(rows_of(1, tensors.drelative.extents[0], 1),
                           [&](const TensorRow& row, Worker& worker) {
                             checker.check_relative(rows_of_queries, row, worker);
                           }));
  }
  if (compares(&ScoreSpec::sink)) {
    const auto& extents = tensors.dsinks.extents;
    const bool is_of_row = tensors.dsinks.rank == 3;
    FDMA_TRY_VOID(for_each(
        is_of_row ? rows_of(extents[0], extents[1], extents[2]) : rows_of(1, extents[0], 1),
        [&](const TensorRow& row, Worker& worker) { checker.check_sink(row, worker); }));
  }
  for (const Worker& worker : workers) {
    check.dq.merge(worker.dq_error);
    check.dk.merge(worker.dk_error);
    check.dv.merge(worker.dv_error);
    for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
      check.score[i].merge(worker.score_errors[i]);
    }
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
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (check.compares[i]) text += ", " + error_text(kScoreTensors[i].gradient, check.score[i]);
  }
  return text;
}

std::string complaint(const GradientCheck& check) {
  std::string text;
  append_complaint(text, "dq", "row", check.dq);
  append_complaint(text, "dk", "key", check.dk);
  append_complaint(text, "dv", "key", check.dv);
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    append_complaint(text, tensor.gradient, tensor.part == &ScoreSpec::key_bias ? "key" : "row",
                     check.score[i]);
  }
  return text;
}

Json to_json(const GradientCheck& check) {
  Json document{{"right", check.is_right()},      {"num_rows", check.num_rows},
                {"total_rows", check.total_rows}, {"num_keys", check.num_keys},
                {"total_keys", check.total_keys}, {"dq", to_json(check.dq)},
                {"dk", to_json(check.dk)},        {"dv", to_json(check.dv)}};
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (kScoreTensors[i].gradient == nullptr) continue;
    document[kScoreTensors[i].gradient] =
        check.compares[i] ? to_json(check.score[i]) : Json(nullptr);
  }
  return document;
}

}  // namespace fdma::maskc
