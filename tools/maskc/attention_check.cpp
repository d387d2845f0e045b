#include "attention_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <new>
#include <tuple>
#include <vector>

#include "attention_run.hpp"
#include "element_values.hpp"
#include "fdma/formats/convert.hpp"
#include "number_text.hpp"
#include "parallel_rows.hpp"
#include "progress.hpp"

namespace fdma::maskc {
namespace {

constexpr std::int64_t kMaxProducts = std::int64_t{1} << 31;
constexpr std::int64_t kMinRows = 64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  std::int64_t batch, head, q;
  friend bool operator==(const Row&, const Row&) = default;
  friend bool operator<(const Row& a, const Row& b) {
    return std::tie(a.batch, a.head, a.q) < std::tie(b.batch, b.head, b.q);
  }
};

std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
  return x ^ (x >> 33);
}

// All rows, or `num_rows` of them: heads in turn, and in each the first row, the last, then by
// turns the first row of a tile, the last row of a tile and any row.
std::vector<Row> rows_to_check(const AttentionShape& shape, std::int64_t block_q,
                               std::int64_t num_rows, std::int64_t total_rows) {
  std::vector<Row> rows;
  const std::int64_t num_pairs = shape.batch * shape.heads_q;
  if (num_rows >= total_rows) {
    rows.reserve(static_cast<std::size_t>(total_rows));
    for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
      const std::int64_t b = pair / shape.heads_q;
      for (std::int64_t q = 0; q < shape.q_len(b); ++q) {
        rows.push_back({b, pair % shape.heads_q, q});
      }
    }
    return rows;
  }
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const bool covers_all = num_rows >= num_pairs;
    const std::int64_t pair = covers_all ? i % num_pairs : i * num_pairs / num_rows;
    const std::int64_t turn = covers_all ? i / num_pairs : i;
    const std::int64_t b = pair / shape.heads_q;
    const std::int64_t q_len = shape.q_len(b);
    if (q_len == 0) continue;
    const std::uint64_t random = scrambled(static_cast<std::uint64_t>(i) + 1);
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random % static_cast<std::uint64_t>(n));
    };
    const std::int64_t tile = below((q_len + block_q - 1) / block_q);
    std::int64_t q = 0;
    if (turn == 1) q = q_len - 1;
    if (turn > 1 && turn % 4 == 0) q = tile * block_q;
    if (turn > 1 && turn % 4 == 1) q = std::min((tile + 1) * block_q, q_len) - 1;
    if (turn > 1 && turn % 4 > 1) q = below(q_len);
    rows.push_back({b, pair % shape.heads_q, q});
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// Sums in eight lanes, as a vector unit would.
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

// What one thread needs for one row, and what it has found so far.
struct Worker {
  std::vector<Interval> intervals;
  std::vector<double> logits64;
  std::vector<float> logits32;
  std::vector<float> q, kv, got, out32;
  std::vector<double> out64;
  TensorError out, lse;
};

Row place_of(const TensorError& tally) { return {tally.batch, tally.head, tally.q}; }

void put_place(TensorError& tally, const Row& row) {
  tally.batch = row.batch;
  tally.head = row.head;
  tally.q = row.q;
}

// Takes one element into a tally. `explicit_value` is the yardstick's. The place does not depend on
// the order of rows: the first wrong element, else the largest error, the first of equals.
void take(TensorError& tally, double reference, double explicit_value, double got, const Row& row,
          bool is_exact) {
  if (!std::isfinite(reference) || !std::isfinite(got) || is_exact) {
    if (reference == got || (std::isnan(reference) && std::isnan(got))) return;
    if (tally.num_wrong == 0 || row < place_of(tally)) put_place(tally, row);
    ++tally.num_wrong;
    return;
  }
  tally.max_reference = std::max(tally.max_reference, std::abs(reference));
  if (std::isfinite(explicit_value)) {
    tally.yardstick = std::max(tally.yardstick, std::abs(explicit_value - reference));
  }
  const double error = std::abs(got - reference);
  const bool is_worst =
      error > tally.max_error || (error == tally.max_error && row < place_of(tally));
  if (is_worst && tally.num_wrong == 0) put_place(tally, row);
  tally.max_error = std::max(tally.max_error, error);
}

void merge(TensorError& into, const TensorError& from) {
  const bool is_earlier = place_of(from) < place_of(into);
  const bool takes_place =
      from.num_wrong > 0
          ? into.num_wrong == 0 || is_earlier
          : into.num_wrong == 0 && (from.max_error > into.max_error ||
                                    (from.max_error == into.max_error && is_earlier));
  if (takes_place) put_place(into, place_of(from));
  into.num_wrong += from.num_wrong;
  into.max_error = std::max(into.max_error, from.max_error);
  into.yardstick = std::max(into.yardstick, from.yardstick);
  into.max_reference = std::max(into.max_reference, from.max_reference);
}

class Checker {
 public:
  Checker(const AttentionShape& shape, const AttentionTensors& tensors, float softmax_scale)
      : shape_(shape), tensors_(tensors) {
    // The scale that attention_forward uses, as the float that it is.
    scale_ =
        softmax_scale != 0 ? softmax_scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  }

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

  void check_row(const SegmentMask& mask, const Row& row, Worker& worker) const {
    const std::int64_t head_kv = row.head / shape_.group_size();
    row_intervals_of(mask, row.q, worker.intervals);
    load(tensors_.q, row.batch, row.q, row.head, shape_.head_dim, worker.q.data());
    load(tensors_.out.view(), row.batch, row.q, row.head, shape_.head_dim_v, worker.got.data());
    const double got_lse = lse_at(row);
    const std::size_t count = logits(row.batch, head_kv, worker);
    if (count == 0) {
      for (const float got : worker.got) {
        take(worker.out, 0, 0, static_cast<double>(got), row, true);
      }
      take(worker.lse, -kInfinity, -kInfinity, got_lse, row, true);
      return;
    }
    const double lse64 = softmax(worker.logits64.data(), count);
    const float lse32 = softmax(worker.logits32.data(), count);
    if (is_16bit(shape_.v_dtype)) {
      for (std::size_t i = 0; i < count; ++i) {
        worker.logits32[i] = rounded_to(shape_.v_dtype, worker.logits32[i]);
      }
    }
    weighted_values(row.batch, head_kv, worker);
    for (std::size_t d = 0; d < worker.got.size(); ++d) {
      // A row whose every logit is -inf has no softmax; it counts as a row without keys.
      const bool is_empty = lse64 == -kInfinity;
      take(worker.out, is_empty ? 0 : worker.out64[d],
           static_cast<double>(rounded_to(shape_.out_dtype, worker.out32[d])),
           static_cast<double>(worker.got[d]), row, is_empty);
    }
    take(worker.lse, lse64, static_cast<double>(lse32), got_lse, row, false);
  }

 private:
  static bool is_16bit(DType dtype) { return dtype != DType::float32; }

  static void load(const TensorView& tensor, std::int64_t b, std::int64_t position,
                   std::int64_t head, std::int64_t count, float* values) {
    load_elements(tensor.data, tensor.dtype,
                  b * tensor.strides[0] + position * tensor.strides[1] + head * tensor.strides[2],
                  count, values);
  }

  double lse_at(const Row& row) const {
    const MutableTensorView& lse = tensors_.lse;
    return static_cast<double>(static_cast<const float*>(
        lse.data)[row.batch * lse.strides[0] + row.head * lse.strides[1] + row.q * lse.strides[2]]);
  }

  // Scaled logits of the visible keys in both precisions; returns how many there are.
  std::size_t logits(std::int64_t b, std::int64_t head_kv, Worker& worker) const {
    std::size_t count = 0;
    const TensorView& bias = tensors_.key_bias;
    for (const Interval& interval : worker.intervals) {
      for (std::int64_t key = interval.begin; key < interval.end; ++key, ++count) {
        load(tensors_.kv.k, b, key, head_kv, shape_.head_dim, worker.kv.data());
        const float added = bias.data == nullptr
                                ? 0.0f
                                : static_cast<const float*>(
                                      bias.data)[b * bias.strides[0] + head_kv * bias.strides[1] +
                                                 key * bias.strides[2]];
        worker.logits64[count] = static_cast<double>(scale_) *
                                     dot64(worker.q.data(), worker.kv.data(), shape_.head_dim) +
                                 static_cast<double>(added);
        const float exact =
            scale_ * dot32(worker.q.data(), worker.kv.data(), shape_.head_dim) + added;
        const float rounded = rounded_to(shape_.q_dtype, exact);
        worker.logits32[count] = std::isinf(rounded) ? exact : rounded;
      }
    }
    return count;
  }

  // Turns logits into probabilities; returns log(sum(exp(logits))).
  template <class T>
  static T softmax(T* logits, std::size_t count) {
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

  void weighted_values(std::int64_t b, std::int64_t head_kv, Worker& worker) const {
    std::fill(worker.out64.begin(), worker.out64.end(), 0.0);
    std::fill(worker.out32.begin(), worker.out32.end(), 0.0f);
    std::size_t i = 0;
    for (const Interval& interval : worker.intervals) {
      for (std::int64_t key = interval.begin; key < interval.end; ++key, ++i) {
        load(tensors_.kv.v, b, key, head_kv, shape_.head_dim_v, worker.kv.data());
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
  float scale_ = 1;
};

// Rows whose comparison costs what is allowed: all, if their visible pairs do.
std::int64_t affordable_rows(const BlockMask& mask, const AttentionShape& shape,
                             std::int64_t total_rows) {
  const std::int64_t dims = shape.head_dim + shape.head_dim_v;
  const auto pairs = static_cast<double>(allowed_pairs(mask, shape));
  if ((pairs + static_cast<double>(total_rows)) * static_cast<double>(dims) <=
      static_cast<double>(kMaxProducts)) {
    return total_rows;
  }
  return std::max(kMinRows, kMaxProducts / (std::max<std::int64_t>(shape.max_kv_len(), 1) * dims));
}

}  // namespace

Outcome<AttentionCheck> check_attention(const BlockMask& mask, const AttentionPlan& plan,
                                        const AttentionTensors& tensors, float softmax_scale,
                                        std::int64_t max_rows, int num_threads,
                                        Progress& progress) {
  const AttentionShape& shape = plan.shape;
  AttentionCheck check;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    check.total_rows += shape.q_len(b) * shape.heads_q;
  }
  const std::int64_t wanted =
      max_rows > 0 ? max_rows : affordable_rows(mask, shape, check.total_rows);
  const std::vector<Row> rows = rows_to_check(shape, plan.tile.block_q, wanted, check.total_rows);
  check.num_rows = static_cast<std::int64_t>(rows.size());
  const auto group_of = [&](const Row& row) {
    return mask.group(mask.shape.num_batches == 1 ? 0 : row.batch,
                      mask.shape.num_heads == 1 ? 0 : row.head);
  };
  std::map<std::int32_t, SegmentMask> groups;
  for (const Row& row : rows) {
    const std::int32_t g = group_of(row);
    if (!groups.contains(g)) groups.emplace(g, segment_of_group(mask, g, mask.block));
  }
  const Checker checker(shape, tensors, softmax_scale);
  const int num_workers = thread_count(num_threads);
  std::vector<Worker> workers;
  for (int i = 0; i < num_workers; ++i) workers.push_back(checker.make_worker());
  std::atomic<std::int64_t> num_done{0};
  std::atomic<bool> is_out_of_memory{false};
  parallel_for(check.num_rows, num_workers, [&](std::int64_t i, int worker) {
    const Row& row = rows[static_cast<std::size_t>(i)];
    try {  // a row may have more intervals than any before it
      checker.check_row(groups.at(group_of(row)), row, workers[static_cast<std::size_t>(worker)]);
    } catch (const std::bad_alloc&) {
      is_out_of_memory = true;
    }
    const std::int64_t done = ++num_done;
    if (worker == 0) progress.update(done, check.num_rows);
  });
  if (is_out_of_memory) {
    return CommandFailure{ExitCode::unsupported, "out of memory while checking"};
  }
  for (const Worker& worker : workers) {
    merge(check.out, worker.out);
    merge(check.lse, worker.lse);
  }
  return check;
}

std::string to_text(const AttentionCheck& check) {
  const auto one = [](const char* name, const TensorError& error) {
    return fmt::format("{} {:.2e} (bound {:.2e})", name, error.max_error, error.bound());
  };
  const std::string rows =
      check.num_rows == check.total_rows
          ? fmt::format("all {}", plural(check.total_rows, "row"))
          : fmt::format("{} of {}", count_text(check.num_rows), plural(check.total_rows, "row"));
  return fmt::format("{} against float64: max abs error {}, {}", rows, one("out", check.out),
                     one("lse", check.lse));
}

std::string complaint(const AttentionCheck& check) {
  std::string text;
  const auto add = [&](const char* name, const TensorError& error) {
    if (error.is_right()) return;
    if (!text.empty()) text += '\n';
    const std::string place =
        fmt::format("batch {}, head {}, row {}", error.batch, error.head, error.q);
    text += error.num_wrong > 0
                ? fmt::format(
                      "{}: {} not as the float64 reference has them (NaN, infinite, or of "
                      "a row without keys), the first at {}",
                      name, plural(error.num_wrong, "element"), place)
                : fmt::format("{}: max abs error {:.3e}, bound {:.3e}, at {}", name,
                              error.max_error, error.bound(), place);
  };
  add("out", check.out);
  add("lse", check.lse);
  return text;
}

Json to_json(const AttentionCheck& check) {
  const auto one = [](const TensorError& error) {
    return Json{{"right", error.is_right()},
                {"max_error", error.max_error},
                {"bound", error.bound()},
                {"yardstick", error.yardstick},
                {"max_reference", error.max_reference},
                {"num_wrong", error.num_wrong}};
  };
  return {{"right", check.is_right()},
          {"num_rows", check.num_rows},
          {"total_rows", check.total_rows},
          {"out", one(check.out)},
          {"lse", one(check.lse)}};
}

}  // namespace fdma::maskc
