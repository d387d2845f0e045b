// Predicted against measured: attention of the mask suite on the CPU at hand, at 4K and 8K tokens,
// with head sizes 64 and 128, in float32 and bfloat16.
//
//   bench_estimate [--quick] [--cpu-time] [--threads N] [--json FILE]
//
// calibrate() measures the machine first; its masks are none of the mask suite. Then, for each
// mask, one row: predicted and measured time and their relative error; and for the order of
// alternatives every tile shape of the profile at 4K tokens, column intervals both scanned and
// gathered, each predicted and measured. Of several runs, taken in turns over all rows, the fastest
// counts.
// --quick: a quick calibration, 4K tokens, head size 64, float32 only. --cpu-time: measured is the
// CPU time of the process over the threads, for machines that others use (exact for one thread).
// benchmarks/run.sh stores the
// document and brings the tables of the pages up to date.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/estimate.hpp"
#include "mask_suite.hpp"
#include "program.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 3;
constexpr std::int32_t kHeads = 4;
/// Times closer than this are taken as equal where orders are compared.
constexpr double kTie = 0.05;

struct Settings {
  bool quick = false;
  bool cpu_time = false;
  int num_threads = 0;
  std::string json;
};

/// One way to run one mask, predicted and measured.
struct Row {
  std::string mask;
  std::int64_t tokens = 0;
  fdma::DType dtype = fdma::DType::float32;
  std::int32_t head_dim = 0;
  fdma::BlockShape tile;
  fdma::ColumnMode columns = fdma::ColumnMode::automatic;
  bool is_default = false;  ///< the tile and mode that run unless asked otherwise
  double predicted_us = 0;
  double measured_us = std::numeric_limits<double>::infinity();

  double error() const { return (predicted_us - measured_us) / measured_us; }
};

/// Random 16- or 32-bit elements in [-1, 1); bfloat16 by truncation.
std::vector<std::uint8_t> random_elements(std::int64_t count, fdma::DType dtype) {
  fdma::suite::Random random(static_cast<std::uint64_t>(count));
  const auto size = static_cast<std::size_t>(fdma::size_bytes(dtype));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * size);
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    const float value = static_cast<float>(random.below(1 << 20)) / float{1 << 19} - 1;
    std::uint8_t parts[sizeof(float)];
    std::memcpy(parts, &value, sizeof(float));
    std::memcpy(bytes.data() + i, parts + (sizeof(float) - size), size);
  }
  return bytes;
}

/// Tensors of one shape; every mask of that shape runs on them.
class Tensors {
 public:
  explicit Tensors(const fdma::AttentionShape& shape) {
    const std::int64_t count = shape.max_q_len() * shape.heads_q * shape.head_dim;
    for (std::vector<std::uint8_t>& each : bytes_) each = random_elements(count, shape.q_dtype);
    const std::int64_t extents[] = {1, shape.max_q_len(), shape.heads_q, shape.head_dim};
    const auto view = [&](int i) {
      return fdma::make_contiguous_mutable_view(bytes_[i].data(), shape.q_dtype, 4, extents);
    };
    views_.q = view(0).view();
    views_.kv.k = view(1).view();
    views_.kv.v = view(2).view();
    views_.out = view(3);
  }
  const fdma::AttentionTensors& views() const { return views_; }

 private:
  std::vector<std::uint8_t> bytes_[4];
  fdma::AttentionTensors views_;
};

fdma::AttentionShape shape_of(std::int64_t tokens, fdma::DType dtype, std::int32_t head_dim) {
  fdma::AttentionShape shape;
  shape.heads_q = shape.heads_kv = kHeads;
  shape.q_lens = {tokens};
  shape.kv_lens = {tokens};
  shape.head_dim = shape.head_dim_v = head_dim;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  return shape;
}

bool has_columns(const fdma::BlockMask& mask, fdma::BlockShape tile) {
  return !fdma::segment_of_group(mask, 0, tile).column_offsets.empty();
}

/// The rows of one shape, and their plans beside them.
class Runs {
 public:
  Runs(const fdma::AttentionShape& shape, const fdma::DeviceProfile& profile)
      : shape_(shape), profile_(profile), tensors_(shape) {}

  void add(Row row, const fdma::BlockMask& mask) {
    fdma::PlanOptions options;
    options.tile = row.tile;
    options.columns = row.columns;
    options.profile = std::make_shared<const fdma::DeviceProfile>(profile_);
    plans_.push_back(value_or_exit(fdma::make_plan(mask, shape_, {}, options), row.mask));
    row.predicted_us =
        value_or_exit(fdma::estimate_plan(plans_.back(), profile_), row.mask).time_us;
    rows_.push_back(std::move(row));
  }

  std::vector<Row> measure(bool cpu_time) {
    fdma::AttentionOptions options;
    options.num_threads = profile_.num_workers;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        const double cpu_before = fdma::cpu_seconds();
        const Clock::time_point start = Clock::now();
        fdma::require(fdma::attention_forward(plans_[i], tensors_.views(), options), rows_[i].mask);
        const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
        const double cpu_us = 1e6 * (fdma::cpu_seconds() - cpu_before) / profile_.num_workers;
        rows_[i].measured_us = std::min(rows_[i].measured_us, cpu_time ? cpu_us : elapsed.count());
      }
    }
    return rows_;
  }

 private:
  fdma::AttentionShape shape_;
  const fdma::DeviceProfile& profile_;
  Tensors tensors_;
  std::vector<Row> rows_;
  std::vector<fdma::AttentionPlan> plans_;
};

std::vector<Row> run_suite(std::int64_t tokens, const fdma::KernelCosts& kernel,
                           const fdma::DeviceProfile& profile, bool with_alternatives,
                           bool cpu_time) {
  Runs runs(shape_of(tokens, kernel.dtype, kernel.head_dim), profile);
  for (const fdma::suite::SuiteMask& suite_mask : fdma::suite::mask_suite(tokens)) {
    const fdma::BlockMask mask = fdma::compiled(suite_mask);
    Row row{.mask = suite_mask.name,
            .tokens = tokens,
            .dtype = kernel.dtype,
            .head_dim = kernel.head_dim,
            .tile = kernel.tiles.front().tile,
            .columns = fdma::ColumnMode::automatic,
            .is_default = true};
    runs.add(row, mask);
    if (!with_alternatives) continue;
    row.is_default = false;
    for (const fdma::TileCosts& costs : kernel.tiles) {
      row.tile = costs.tile;
      if (has_columns(mask, costs.tile)) {
        for (const auto columns : {fdma::ColumnMode::scan, fdma::ColumnMode::gather}) {
          row.columns = columns;
          runs.add(row, mask);
        }
      } else if (costs.tile != kernel.tiles.front().tile) {
        row.columns = fdma::ColumnMode::automatic;
        runs.add(row, mask);
      }
    }
  }
  return runs.measure(cpu_time);
}

/// How well the predicted order of the ways to run a mask is the measured one.
struct OrderSummary {
  std::int64_t pairs = 0;        ///< of ways whose measured times differ by more than kTie
  std::int64_t right_pairs = 0;  ///< of these, predicted in the same order
  std::vector<double> regrets;   ///< measured time of the way predicted best over the best one
};

OrderSummary summarize_order(const std::vector<Row>& rows) {
  OrderSummary summary;
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    const auto is_same = [&](const Row& row) {
      return row.mask == rows[begin].mask && row.tokens == rows[begin].tokens &&
             row.dtype == rows[begin].dtype && row.head_dim == rows[begin].head_dim;
    };
    while (end < rows.size() && is_same(rows[end])) ++end;
    if (end - begin > 1) {
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = rows.begin() + static_cast<std::ptrdiff_t>(end);
      const auto chosen = std::min_element(
          first, last, [](const Row& a, const Row& b) { return a.predicted_us < b.predicted_us; });
      const auto best = std::min_element(
          first, last, [](const Row& a, const Row& b) { return a.measured_us < b.measured_us; });
      summary.regrets.push_back(chosen->measured_us / best->measured_us - 1);
      for (auto a = first; a != last; ++a) {
        for (auto b = a + 1; b != last; ++b) {
          if (std::abs(a->measured_us / b->measured_us - 1) <= kTie) continue;
          ++summary.pairs;
          const bool is_measured_less = a->measured_us < b->measured_us;
          summary.right_pairs += is_measured_less == (a->predicted_us < b->predicted_us) ? 1 : 0;
        }
      }
    }
    begin = end;
  }
  return summary;
}

/// Magnitudes, of the ways that run unless asked otherwise.
std::vector<double> errors_of(const std::vector<Row>& rows) {
  std::vector<double> errors;
  for (const Row& row : rows) {
    if (row.is_default) errors.push_back(std::abs(row.error()));
  }
  return errors;
}

void write_json(std::ostream& out, const fdma::DeviceProfile& profile, bool cpu_time,
                const std::vector<Row>& rows) {
  const std::vector<double> errors = errors_of(rows);
  const OrderSummary order = summarize_order(rows);
  out << std::setprecision(6) << "{\n\"compiler\": \"" << FDMA_COMPILER << "\",\n\"target\": \""
      << fdma::cpu_target() << "\",\n\"num_workers\": " << profile.num_workers << ",\n\"time\": \""
      << (cpu_time ? "cpu" : "elapsed") << "\",\n\"heads\": " << kHeads
      << ",\n\"median_error\": " << fdma::quantile(errors, 0.5)
      << ",\n\"p95_error\": " << fdma::quantile(errors, 0.95)
      << ",\n\"order_pairs\": " << order.pairs << ",\n\"order_right_pairs\": " << order.right_pairs
      << ",\n\"median_regret\": " << fdma::quantile(order.regrets, 0.5)
      << ",\n\"worst_regret\": " << fdma::quantile(order.regrets, 1) << ",\n\"rows\": [";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    out << (i == 0 ? "\n" : ",\n") << "{\"mask\": \"" << row.mask
        << "\", \"tokens\": " << row.tokens << ", \"dtype\": \"" << to_string(row.dtype)
        << "\", \"head_dim\": " << row.head_dim << ", \"tile\": \"" << row.tile.block_q << "x"
        << row.tile.block_kv << "\", \"columns\": \"" << to_string(row.columns)
        << "\", \"default\": " << (row.is_default ? "true" : "false")
        << ", \"predicted_us\": " << row.predicted_us << ", \"measured_us\": " << row.measured_us
        << "}";
  }
  out << "\n]\n}\n";
}

void print_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    std::cout << std::left << std::setw(24) << row.mask << std::right << std::setw(6) << row.tokens
              << " " << std::setw(8) << to_string(row.dtype) << std::setw(5) << row.head_dim << " "
              << std::setw(4) << row.tile.block_q << "x" << std::left << std::setw(4)
              << row.tile.block_kv << std::setw(10) << to_string(row.columns) << std::right
              << std::fixed << std::setprecision(2) << std::setw(10) << row.predicted_us / 1e3
              << " ms predicted" << std::setw(10) << row.measured_us / 1e3 << " ms measured"
              << std::showpos << std::setprecision(1) << std::setw(8) << 100 * row.error() << " %"
              << std::noshowpos << "\n";
  }
  std::cout.flush();
}

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--cpu-time") {
      settings.cpu_time = true;
    } else if (word == "--threads" && i + 1 < argc) {
      settings.num_threads = std::atoi(argv[++i]);
    } else if (word == "--json" && i + 1 < argc) {
      settings.json = argv[++i];
    } else {
      std::cerr << "usage: bench_estimate [--quick] [--cpu-time] [--threads N] [--json FILE]\n";
      std::exit(2);
    }
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  fdma::CalibrateOptions options;
  options.num_threads = settings.num_threads;
  options.quick = settings.quick;
  if (settings.quick) {
    options.head_dims = {64};
    options.dtypes = {fdma::DType::float32};
  }
  options.progress = [](int done, int total) {
    std::cerr << "calibrating " << done << " of " << total << "\n";
  };
  const fdma::DeviceProfile profile = value_or_exit(fdma::calibrate(options), "calibrate");
  std::vector<Row> rows;
  for (const fdma::KernelCosts& kernel : profile.kernels) {
    for (const std::int64_t tokens : {std::int64_t{4096}, std::int64_t{8192}}) {
      if (settings.quick && tokens > 4096) continue;
      const std::vector<Row> measured =
          run_suite(tokens, kernel, profile, tokens == 4096, settings.cpu_time);
      print_rows(measured);
      rows.insert(rows.end(), measured.begin(), measured.end());
    }
  }
  const std::vector<double> errors = errors_of(rows);
  const OrderSummary order = summarize_order(rows);
  std::cout << "error: median " << 100 * fdma::quantile(errors, 0.5) << " %, 95th percentile "
            << 100 * fdma::quantile(errors, 0.95) << " %; order right in " << order.right_pairs
            << " of " << order.pairs << " pairs; the way predicted best is slower than the best by "
            << 100 * fdma::quantile(order.regrets, 0.5) << " % (median), "
            << 100 * fdma::quantile(order.regrets, 1) << " % (worst)\n";
  if (!settings.json.empty()) {
    fdma::write_or_exit(settings.json, [&](std::ostream& out) {
      write_json(out, profile, settings.cpu_time, rows);
    });
  }
  return 0;
}
