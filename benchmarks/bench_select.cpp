// What learned selection costs on the host, on one core: scores from values, selection of keys from
// scores, selection that follows a growing sequence, whole masks from scores.
//
//   read/<MiB>                       the machine's limit: a sum over as many bytes as scores read
//   scores/<dtype>/<heads>/<S>       zoh_scores, head_dim 128, each head by its own values; `wide`
//                                    for dt_proj [heads_kv, heads_kv * head_dim]
//   select/<order>/<S>/<w>           select_topk of one row of scores among causal
//   append/<order>/<S>/<w>/<chunk>   IncrementalTopk, `chunk` keys at a time; decode is 1
//   compile/<order>/<S>/<w>/<heads>  causal & topk(@s, w), each KV head with scores of its own, to
//                                    segment masks in 128 x 128 blocks
// Orders of scores: random; rising, where every key replaces one; clustered, runs of 512 keys
// around a random level each. Time is the CPU time of the process. Counters besides:
//   bytes_per_second   values read, by elapsed time (read, scores)
//   peak_bytes, result_bytes   as bench_lowering has them; append: bytes held at the end
//   intervals          of the selection
//   keys               of all heads, for the time of one
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/select/incremental_topk.hpp"
#include "fdma/select/select_topk.hpp"
#include "fdma/select/zoh_scores.hpp"
#include "google_benchmark.hpp"
#include "program.hpp"

namespace {

using fdma::suite::Random;

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kMaxValueBytes = std::int64_t{1} << 30;
constexpr std::string_view kOrders[] = {"random", "rising", "clustered"};

float uniform(Random& random) { return static_cast<float>(random.below(1 << 24)) * 0x1p-24F; }

std::vector<float> scores_of(std::string_view order, std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> scores(static_cast<std::size_t>(count));
  float level = 0;
  for (std::size_t k = 0; k < scores.size(); ++k) {
    if (k % 512 == 0) level = uniform(random);
    scores[k] = order == "clustered" ? level + 0.1F * uniform(random) : uniform(random);
  }
  if (order == "rising") std::sort(scores.begin(), scores.end());
  return scores;
}

fdma::ColumnIntervals causal(std::int64_t count) {
  fdma::ColumnIntervals mask{count, count, {0}, {}};
  for (std::int64_t k = 0; k < count; ++k) {
    mask.intervals.push_back({static_cast<std::int32_t>(k), static_cast<std::int32_t>(count)});
    mask.offsets.push_back(k + 1);
  }
  return mask;
}

void read_memory(benchmark::State& state, std::int64_t bytes) {
  const std::vector<std::uint64_t> words(static_cast<std::size_t>(bytes / 8), 1);
  for (auto _ : state) {
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i + 8 <= words.size(); i += 8) {
      for (std::size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

void scores(benchmark::State& state, fdma::DType dtype, std::int64_t heads, std::int64_t length,
            bool is_wide) {
  const std::int64_t count = length * heads * kHeadDim;
  const std::int64_t bytes = count * fdma::size_bytes(dtype);
  // 0x3E in every byte is about 0.18 in all three types.
  const std::vector<std::uint8_t> values(static_cast<std::size_t>(bytes), 0x3E);
  const std::int64_t width = is_wide ? heads * kHeadDim : kHeadDim;
  const std::vector<float> weights(static_cast<std::size_t>(heads * width), 0.01F);
  const std::vector<float> a_coef(static_cast<std::size_t>(heads), -1.0F);
  std::vector<float> out(static_cast<std::size_t>(heads * length));
  const std::int64_t value_extents[] = {1, length, heads, kHeadDim};
  const std::int64_t weight_extents[] = {heads, width}, out_extents[] = {1, heads, length};
  const auto v = fdma::make_contiguous_view(values.data(), dtype, 4, value_extents);
  const auto w =
      fdma::make_contiguous_view(weights.data(), fdma::DType::float32, 2, weight_extents);
  const auto a = fdma::make_contiguous_view(a_coef.data(), fdma::DType::float32, 1, &heads);
  const auto to =
      fdma::make_contiguous_mutable_view(out.data(), fdma::DType::float32, 3, out_extents);
  fdma::ZohOptions options;
  options.num_threads = 1;
  for (auto _ : state) fdma::require(fdma::zoh_scores(v, w, a, to, options), "zoh_scores");
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["keys"] = static_cast<double>(heads * length);
}

void select(benchmark::State& state, std::string_view order, std::int64_t length, std::int64_t w) {
  const std::vector<float> row = scores_of(order, length, 1);
  const fdma::ColumnIntervals among = causal(length);
  for (auto _ : state)
    benchmark::DoNotOptimize(value_or_exit(fdma::select_topk(row, w, among), "select_topk"));
  const fdma::AllocationPeak peak;
  const fdma::ColumnIntervals kept = value_or_exit(fdma::select_topk(row, w, among), "select_topk");
  state.counters["peak_bytes"] = static_cast<double>(peak.bytes());
  state.counters["result_bytes"] = static_cast<double>(kept.size_bytes());
  state.counters["intervals"] = static_cast<double>(kept.intervals.size());
  state.counters["keys"] = static_cast<double>(length);
}

void append(benchmark::State& state, std::string_view order, std::int64_t length, std::int64_t w,
            std::int64_t chunk) {
  const std::vector<float> row = scores_of(order, length, 1);
  double held = 0;
  for (auto _ : state) {
    fdma::IncrementalTopk topk = value_or_exit(fdma::IncrementalTopk::make(w), "IncrementalTopk");
    for (std::int64_t k = 0; k < length; k += chunk) {
      const auto count = static_cast<std::size_t>(std::min(chunk, length - k));
      const auto keys = std::span(row).subspan(static_cast<std::size_t>(k), count);
      fdma::require(topk.append_causal(keys), "append_causal");
    }
    held = static_cast<double>(topk.size_bytes());
  }
  state.counters["result_bytes"] = held;
  state.counters["keys"] = static_cast<double>(length);
}

void compile(benchmark::State& state, std::string_view order, std::int64_t length, std::int64_t w,
             std::int64_t heads) {
  std::vector<float> rows;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::vector<float> row = scores_of(order, length, static_cast<std::uint64_t>(h) + 1);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const std::int64_t extents[] = {heads, length};
  const fdma::Tables tables{
      {"s", fdma::make_contiguous_view(rows.data(), fdma::DType::float32, 2, extents)}};
  const fdma::MaskExpr expr =
      value_or_exit(fdma::parse_mask("causal & topk(@s, " + std::to_string(w) + ")"), "topk");
  const fdma::MaskShape shape{1, heads, {length}, {length}};
  fdma::LowerOptions options;
  options.num_threads = 1;
  const auto once = [&] {
    return value_or_exit(fdma::compile(expr, tables, shape, options), "topk");
  };
  for (auto _ : state) benchmark::DoNotOptimize(once());
  fdma::count_memory(state, once);
  state.counters["keys"] = static_cast<double>(heads * length);
  if (heads == 1 && length == 131072) state.counters["target_us"] = 10000;
}

std::string path(std::initializer_list<std::string> parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : "/") + part;
  return all;
}

void add_scores() {
  using std::to_string;
  for (const std::int64_t mib : {1, 64, 256}) {
    fdma::add_benchmark(path({"read", to_string(mib)}),
                        [=](benchmark::State& state) { read_memory(state, mib << 20); });
  }
  for (const std::int64_t length : {1024, 4096, 16384, 65536, 131072, 1048576}) {
    for (const std::int64_t heads : {8, 32}) {
      for (const fdma::DType dtype :
           {fdma::DType::bfloat16, fdma::DType::float16, fdma::DType::float32}) {
        const std::int64_t bytes = length * heads * kHeadDim * fdma::size_bytes(dtype);
        const bool is_shown = dtype == fdma::DType::bfloat16 || length == 131072;
        if (bytes > kMaxValueBytes || !is_shown) continue;
        fdma::add_benchmark(
            path({"scores", std::string(to_string(dtype)), to_string(heads), to_string(length)}),
            [=](benchmark::State& state) { scores(state, dtype, heads, length, false); });
      }
      if (length == 16384) {
        fdma::add_benchmark(path({"scores", "wide", to_string(heads), to_string(length)}),
                            [=](benchmark::State& state) {
                              scores(state, fdma::DType::bfloat16, heads, length, true);
                            });
      }
    }
  }
}

void add_selection() {
  using std::to_string;
  for (const std::int64_t length : {1024, 4096, 16384, 65536, 131072, 1048576}) {
    std::vector<std::int64_t> widths{length / 5, length / 10, length / 20, length / 40};
    if (length > 4096) widths.push_back(2048);
    for (const std::string_view order : kOrders) {
      for (const std::int64_t w : widths) {
        fdma::add_benchmark(path({"select", std::string(order), to_string(length), to_string(w)}),
                            [=](benchmark::State& state) { select(state, order, length, w); });
      }
      if (length < 65536) continue;
      for (const std::int64_t chunk : {1, 4096}) {
        fdma::add_benchmark(
            path({"append", std::string(order), to_string(length), "2048", to_string(chunk)}),
            [=](benchmark::State& state) { append(state, order, length, 2048, chunk); });
      }
      for (const std::int64_t heads : {1, 8, 32}) {
        if (length > 131072 && heads > 1) continue;
        fdma::add_benchmark(
            path({"compile", std::string(order), to_string(length), "2048", to_string(heads)}),
            [=](benchmark::State& state) { compile(state, order, length, 2048, heads); });
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!fdma::begin_benchmarks(argc, argv)) return 1;
  add_scores();
  add_selection();
  return fdma::run_benchmarks();
}
