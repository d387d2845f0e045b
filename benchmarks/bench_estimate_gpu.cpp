// Predicted against measured on the GPU: attention of the mask suite by the sm90 kernels in
// bfloat16, forward, backward or both, head sizes 64 and 128, at 8K and 32K tokens with one
// sequence and 8 heads and at 8K, 32K and 128K with 32 heads (131,072 tokens in all).
//
//   bench_estimate_gpu [--direction forward|backward|both] [--quick] [--device NAME|FILE]
//                      [--seconds-each S] [--max-seconds S] [--json FILE]
//   bench_estimate_gpu --predict FILE [--device NAME|FILE]
//
// calibrate() measures the card first, unless --device names a profile; its masks are none of the
// mask suite. Then, for each shape and mask, one row: predicted and measured time and their
// relative error. Measured is the median of device events, of 15 samples or as many as fit into a
// third of a second (--seconds-each), at least 3, the card resting a millisecond for each call
// before a sample; calls that take less than 0.3 ms run up to 8 times between two events. --quick:
// a quick calibration and no sequences of 128K. benchmarks/gpu.sh stores the document and brings
// the tables of the pages up to date. That results are right is for tests/gpu and
// bench_attention_gpu.py to say. --predict: predicts the rows of such a document again, by the
// profile in it unless --device names one, and compares them with the times in it; no GPU runs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/estimate.hpp"
#include "fdma/kernels/prepared_plan.hpp"
#include "mask_suite.hpp"
#include "program.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTotalTokens = 131072;
constexpr std::int32_t kManyHeads = 32;
constexpr std::int32_t kFewHeads = 8;
constexpr double kSampleUs = 300;
constexpr int kMaxLaunches = 8;
constexpr std::size_t kMinSamples = 3;
constexpr std::size_t kMaxSamples = 15;
constexpr std::chrono::milliseconds kRest{1};
constexpr std::chrono::milliseconds kRestBetweenRows{100};
/// Calls that take less keep the device ahead of the host by one that does not count.
constexpr double kShortUs = 1e3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Settings {
  bool quick = false;
  std::string device;
  std::string json;
  std::string predict;
  std::vector<fdma::Direction> directions{fdma::Direction::forward};
  double seconds_each = 0.35;
  double max_seconds = 1e9;
};

/// Standard normal elements of bfloat16, by truncation; a few thousand repeat.
std::vector<std::uint8_t> random_bfloat16(std::int64_t bytes) {
  std::mt19937 random(20261121);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> period(4093);
  for (std::uint16_t& element : period) {
    const float value = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    element = static_cast<std::uint16_t>(bits >> 16);
  }
  std::vector<std::uint8_t> values(static_cast<std::size_t>(bytes));
  const std::size_t period_bytes = period.size() * sizeof(std::uint16_t);
  for (std::size_t at = 0; at < values.size(); at += period_bytes) {
    std::memcpy(values.data() + at, period.data(), std::min(period_bytes, values.size() - at));
  }
  return values;
}

struct Row {
  fdma::Direction direction = fdma::Direction::forward;
  std::string mask;
  std::int64_t batch = 0, tokens = 0;
  std::int32_t heads = 0, head_dim = 0;
  double predicted_us = 0;
  double measured_us = 0;  ///< median
  double fastest_us = 0;
  std::size_t num_samples = 0;

  double error() const { return predicted_us / measured_us - 1; }
};

fdma::AttentionShape shape_of(std::int64_t batch, std::int64_t tokens, std::int32_t heads,
                              std::int32_t head_dim) {
  fdma::AttentionShape shape;
  shape.batch = batch;
  shape.heads_q = shape.heads_kv = heads;
  shape.q_lens = shape.kv_lens = {tokens};
  shape.head_dim = shape.head_dim_v = head_dim;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = fdma::DType::bfloat16;
  return shape;
}

/// The tensors of one shape on the device: random, but for the lse of backward calls, which is that
/// of random scores.
class Tensors {
 public:
  Tensors(const fdma::AttentionShape& shape, bool has_gradients) {
    const std::int64_t extents[] = {shape.batch, shape.max_q_len(), shape.heads_q, shape.head_dim};
    const std::int64_t lse_extents[] = {shape.batch, shape.heads_q, shape.max_q_len()};
    const auto tensor = [&] { return add(fdma::DType::bfloat16, 4, extents); };
    views_.q = tensor().view();
    views_.kv.k = tensor().view();
    views_.kv.v = tensor().view();
    views_.out = tensor();
    views_.lse = add(fdma::DType::float32, 3, lse_extents);
    if (!has_gradients) return;
    const auto lse = static_cast<float>(std::log(static_cast<double>(shape.max_kv_len())));
    require(fdma::fill_with(static_cast<float*>(views_.lse.data), lse,
                            shape.batch * shape.heads_q * shape.max_q_len()),
            "tensors");
    gradients_.q = views_.q;
    gradients_.kv = views_.kv;
    gradients_.out = views_.out.view();
    gradients_.lse = views_.lse.view();
    gradients_.dout = tensor().view();
    gradients_.dq = tensor();
    gradients_.dk = tensor();
    gradients_.dv = tensor();
  }
  const fdma::AttentionTensors& views() const { return views_; }
  const fdma::BackwardTensors& gradients() const { return gradients_; }

 private:
  fdma::MutableTensorView add(fdma::DType dtype, int rank, const std::int64_t* extents) {
    std::int64_t bytes = fdma::size_bytes(dtype);
    for (int i = 0; i < rank; ++i) bytes *= extents[i];
    memory_.push_back(value_or_exit(fdma::DeviceMemory::allocate(bytes), "tensors"));
    if (memory_.size() > 1 && bytes == memory_.front().size_bytes()) {
      require(fdma::copy_on_device(memory_.back().data(), memory_.front().data(), bytes),
              "tensors");
    } else if (dtype == fdma::DType::bfloat16) {
      const std::vector<std::uint8_t> values = random_bfloat16(bytes);
      require(fdma::copy_to_device(memory_.back().data(), values.data(), bytes), "tensors");
    }
    fdma::MutableTensorView view =
        fdma::make_contiguous_mutable_view(memory_.back().data(), dtype, rank, extents);
    view.device = fdma::Device::cuda;
    return view;
  }

  std::vector<fdma::DeviceMemory> memory_;
  fdma::AttentionTensors views_;
  fdma::BackwardTensors gradients_;
};

/// The calls of one plan.
class Calls {
 public:
  Calls(const fdma::AttentionPlan& plan, const Tensors& tensors, fdma::StreamTimer& timer,
        double seconds_each)
      : plan_(value_or_exit(fdma::prepare(plan), "prepare")),
        workspace_(
            value_or_exit(fdma::DeviceMemory::allocate(plan_->workspace_bytes()), "workspace")),
        tensors_(tensors),
        timer_(timer),
        seconds_each_(seconds_each) {}

  void measure(Row& row) {
    std::this_thread::sleep_for(std::min(
        kRestBetweenRows, std::chrono::milliseconds(static_cast<int>(1e3 * seconds_each_))));
    const bool is_short = row.predicted_us < kShortUs;
    const double once_us = std::min(sample_us(1, is_short), sample_us(1, is_short));
    const int launches = std::clamp(static_cast<int>(kSampleUs / once_us), 1, kMaxLaunches);
    std::vector<double> samples_us;
    const Clock::time_point begin = Clock::now();
    while (samples_us.size() < kMinSamples ||
           (samples_us.size() < kMaxSamples && seconds_since(begin) < seconds_each_)) {
      samples_us.push_back(sample_us(launches, is_short));
    }
    std::sort(samples_us.begin(), samples_us.end());
    row.measured_us = samples_us[samples_us.size() / 2];
    row.fastest_us = samples_us.front();
    row.num_samples = samples_us.size();
  }

 private:
  void launch() {
    require(plan_->direction() == fdma::Direction::backward
                ? plan_->backward(tensors_.gradients(), {workspace_.data()})
                : plan_->forward(tensors_.views(), {workspace_.data()}),
            "attention");
  }
  double sample_us(int launches, bool is_short) {
    std::this_thread::sleep_for(kRest * launches);
    if (is_short) launch();
    require(timer_.start(), "timer");
    for (int i = 0; i < launches; ++i) launch();
    require(timer_.stop(), "timer");
    return value_or_exit(timer_.seconds(), "timer") * 1e6 / launches;
  }

  std::unique_ptr<fdma::PreparedPlan> plan_;
  fdma::DeviceMemory workspace_;
  const Tensors& tensors_;
  fdma::StreamTimer& timer_;
  double seconds_each_;
};

void print_row(const Row& row) {
  std::cout << std::left << std::setw(9) << fdma::to_string(row.direction) << std::setw(24)
            << row.mask << std::right << std::setw(7) << row.tokens << std::setw(4) << row.batch
            << " x" << std::setw(3) << row.heads << " heads of" << std::setw(4) << row.head_dim
            << std::fixed << std::setprecision(1) << std::setw(11) << row.predicted_us
            << " us predicted" << std::setw(11) << row.measured_us << " us measured" << std::showpos
            << std::setw(7) << 100 * row.error() << " %" << std::noshowpos << std::endl;
}

fdma::AttentionPlan plan_of(const fdma::BlockMask& mask, const fdma::AttentionShape& shape,
                            fdma::Direction direction, const fdma::DeviceProfile& profile) {
  fdma::PlanOptions options;
  options.backend = fdma::Backend::sm90;
  options.direction = direction;
  options.profile = std::make_shared<const fdma::DeviceProfile>(profile);
  return value_or_exit(fdma::make_plan(mask, shape, {}, options), "plan");
}

std::vector<Row> run_suite(const fdma::DeviceProfile& profile, const Settings& settings,
                           Clock::time_point begin) {
  struct Shape {
    std::int64_t batch, tokens;
    std::int32_t heads;
  };
  std::vector<Shape> shapes;
  for (const std::int64_t tokens : {8192, 32768}) shapes.push_back({1, tokens, kFewHeads});
  for (const std::int64_t tokens : {8192, 32768, 131072}) {
    if (settings.quick && tokens == kTotalTokens) continue;
    shapes.push_back({kTotalTokens / tokens, tokens, kManyHeads});
  }
  const bool has_gradients = std::count(settings.directions.begin(), settings.directions.end(),
                                        fdma::Direction::backward) > 0;
  fdma::StreamTimer timer = value_or_exit(fdma::StreamTimer::make(), "timer");
  std::vector<Row> rows;
  for (const Shape& each : shapes) {
    std::vector<fdma::AttentionShape> of_head_dims;
    std::vector<Tensors> tensors;
    for (const std::int32_t head_dim : {128, 64}) {
      of_head_dims.push_back(shape_of(each.batch, each.tokens, each.heads, head_dim));
      tensors.emplace_back(of_head_dims.back(), has_gradients);
    }
    for (const fdma::suite::SuiteMask& suite_mask : fdma::suite::mask_suite(each.tokens)) {
      if (seconds_since(begin) > settings.max_seconds) return rows;
      const fdma::BlockMask mask = fdma::compiled(suite_mask);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        for (const fdma::Direction direction : settings.directions) {
          const fdma::AttentionPlan plan = plan_of(mask, of_head_dims[i], direction, profile);
          Row row{direction,   suite_mask.name, each.batch,
                  each.tokens, each.heads,      of_head_dims[i].head_dim};
          row.predicted_us = value_or_exit(fdma::estimate_plan(plan, profile), row.mask).time_us;
          Calls(plan, tensors[i], timer, settings.seconds_each).measure(row);
          print_row(row);
          rows.push_back(std::move(row));
        }
      }
    }
  }
  return rows;
}

/// The rows of a document that an earlier run has written, predicted again.
std::vector<Row> predict_again(const nlohmann::json& document, const fdma::DeviceProfile& profile) {
  std::vector<Row> rows;
  std::map<std::pair<std::int64_t, std::string>, fdma::BlockMask> masks;
  for (const nlohmann::json& each : document.at("rows")) {
    Row row{value_or_exit(fdma::parse_direction(each.at("direction").get<std::string>()), "rows"),
            each.at("mask"),
            each.at("batch"),
            each.at("tokens"),
            each.at("heads"),
            each.at("head_dim")};
    row.measured_us = each.at("measured_us");
    row.fastest_us = each.at("fastest_us");
    row.num_samples = each.at("samples");
    const std::pair key{row.tokens, row.mask};
    if (masks.count(key) == 0) {
      for (const fdma::suite::SuiteMask& mask : fdma::suite::mask_suite(row.tokens)) {
        if (mask.name == row.mask) masks.emplace(key, fdma::compiled(mask));
      }
    }
    const fdma::AttentionShape shape = shape_of(row.batch, row.tokens, row.heads, row.head_dim);
    const fdma::AttentionPlan plan = plan_of(masks.at(key), shape, row.direction, profile);
    row.predicted_us = value_or_exit(fdma::estimate_plan(plan, profile), row.mask).time_us;
    print_row(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

void write_json(std::ostream& out, const fdma::DeviceProfile& profile, bool is_calibrated,
                double calibration_seconds, const std::vector<Row>& rows) {
  out << std::setprecision(7) << "{\n\"device\": \""
      << value_or_exit(fdma::current_device_name(), "device")
      << "\",\n\"calibrated_here\": " << (is_calibrated ? "true" : "false")
      << ",\n\"calibration_seconds\": " << calibration_seconds
      << ",\n\"profile\": " << fdma::to_json(profile) << ",\n\"rows\": [";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    out << (i == 0 ? "\n" : ",\n") << "{\"direction\": \"" << fdma::to_string(row.direction)
        << "\", \"mask\": \"" << row.mask << "\", \"batch\": " << row.batch
        << ", \"tokens\": " << row.tokens << ", \"heads\": " << row.heads
        << ", \"head_dim\": " << row.head_dim << ", \"predicted_us\": " << row.predicted_us
        << ", \"measured_us\": " << row.measured_us << ", \"fastest_us\": " << row.fastest_us
        << ", \"samples\": " << row.num_samples << "}";
  }
  out << "\n]\n}\n";
}

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--quick") {
      settings.quick = true;
    } else if (word == "--device" && has_value) {
      settings.device = argv[++i];
    } else if (word == "--json" && has_value) {
      settings.json = argv[++i];
    } else if (word == "--predict" && has_value) {
      settings.predict = argv[++i];
    } else if (word == "--max-seconds" && has_value) {
      settings.max_seconds = std::atof(argv[++i]);
    } else if (word == "--seconds-each" && has_value) {
      settings.seconds_each = std::atof(argv[++i]);
    } else if (word == "--direction" && has_value && std::strcmp(argv[i + 1], "both") == 0) {
      settings.directions = {fdma::Direction::forward, fdma::Direction::backward};
      ++i;
    } else if (word == "--direction" && has_value) {
      settings.directions = {value_or_exit(fdma::parse_direction(argv[++i]), word)};
    } else {
      std::cerr << "usage: bench_estimate_gpu [--direction forward|backward|both] [--quick] "
                   "[--device NAME|FILE] [--seconds-each S] [--max-seconds S] [--json FILE]\n"
                   "       bench_estimate_gpu --predict FILE [--device NAME|FILE]\n";
      std::exit(2);
    }
  }
  return settings;
}

fdma::DeviceProfile profile_of(const Settings& settings) {
  if (settings.device.empty()) {
    fdma::CalibrateOptions options = fdma::calibrate_options(fdma::Backend::sm90);
    options.quick = settings.quick;
    options.directions = settings.directions;
    options.progress = [](int done, int total) {
      std::cerr << "calibrating " << done << " of " << total << "\n";
    };
    return value_or_exit(fdma::calibrate(options), "calibrate");
  }
  const bool is_file = settings.device.find_first_of("./") != std::string::npos;
  return value_or_exit(
      is_file ? fdma::read_profile(settings.device) : fdma::shipped_profile(settings.device),
      settings.device);
}

void print_errors(const std::vector<Row>& rows) {
  std::vector<double> errors;
  for (const Row& row : rows) errors.push_back(std::abs(row.error()));
  std::cout << "error over " << rows.size() << " rows: median " << std::setprecision(1)
            << 100 * fdma::quantile(errors, 0.5) << " %, 95th percentile "
            << 100 * fdma::quantile(errors, 0.95) << " %";
}

int predict_rows(const Settings& settings) {
  std::ifstream file(settings.predict);
  const nlohmann::json document = nlohmann::json::parse(file);
  const fdma::DeviceProfile profile =
      settings.device.empty()
          ? value_or_exit(fdma::profile_from_json(document.at("profile").dump()), settings.predict)
          : profile_of(settings);
  print_errors(predict_again(document, profile));
  std::cout << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  if (!settings.predict.empty()) return predict_rows(settings);
  const Clock::time_point begin = Clock::now();
  const fdma::DeviceProfile profile = profile_of(settings);
  const double calibration_seconds = settings.device.empty() ? seconds_since(begin) : 0;
  const std::vector<Row> rows = run_suite(profile, settings, begin);
  print_errors(rows);
  std::cout << "; calibration took " << calibration_seconds << " s\n";
  if (!settings.json.empty()) {
    fdma::write_or_exit(settings.json, [&](std::ostream& out) {
      write_json(out, profile, settings.device.empty(), calibration_seconds, rows);
    });
  }
  return 0;
}
