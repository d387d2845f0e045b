// What compiling a mask costs, on one core: from a parsed expression to segment masks in 128 x 128
// blocks (bind + lower; for topk selection as well), and parsing on its own.
//
// Cases: the mask suite at 8K, 32K, 128K and 1M tokens, 263 packed documents at 1M, predicates that
// need box form, every name of the language with random tables at 8K. Time is the CPU time of all
// threads of the process, so that neither a second thread nor a busy machine flatters it; elapsed
// time is reported too. For each, besides:
//   first_us       the first compilation of this mask in this process
//   peak_bytes     heap memory at its peak during one compilation, the result included
//   result_bytes   BlockMask::size_bytes
//   distinct_share distinct partial tiles / all tiles (every name only)
//   target_us, target_bytes   the goal, where there is one: met if CPU time and peak are below it
// The program checks nothing but that compiling succeeds; tests do the rest.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "google_benchmark.hpp"
#include "mask_suite.hpp"
#include "named_masks.hpp"
#include "program.hpp"

namespace {

using fdma::suite::SuiteMask;

constexpr double kMicrosecond = 1.0;
constexpr double kMillisecond = 1000.0;
constexpr double kKiB = 1024.0;
constexpr double kMiB = 1024.0 * 1024.0;

/// One mask to compile, its goal (0: none), and what is measured once.
struct Case {
  SuiteMask mask;
  double target_us = 0;
  double target_bytes = 0;
  bool counts_distinct =
      false;  ///< the goal holds only where at most half of the tiles are distinct

  fdma::MaskExpr expr{};
  double first_us = -1;
  double peak_bytes = 0;
  double result_bytes = 0;
  double distinct_share = 0;
};

fdma::BlockMask compile_once(const Case& c, const fdma::Tables& tables) {
  fdma::LowerOptions options;
  options.num_threads = 1;
  return value_or_exit(fdma::compile(c.expr, tables, c.mask.shape, options), c.mask.name);
}

/// Distinct bitmaps of the mask's partial tiles, as a share of all its tiles.
double share_of_distinct_tiles(const fdma::BlockMask& mask) {
  const fdma::BlockBitset bits =
      fdma::bitset_from_segment(fdma::segment_of_group(mask, 0, mask.block));
  const double words = double(bits.block.block_q) * bits.block.block_kv / 64;
  return double(bits.bitmaps.size()) / words / double(bits.num_tile_rows() * bits.num_tile_cols());
}

void measure_once(Case& c, const fdma::Tables& tables) {
  const auto begin = std::chrono::steady_clock::now();
  fdma::BlockMask mask = compile_once(c, tables);
  c.first_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  c.result_bytes = double(mask.size_bytes());
  if (c.counts_distinct) c.distinct_share = share_of_distinct_tiles(mask);
  mask = {};
  const fdma::AllocationPeak peak;
  const fdma::BlockMask again = compile_once(c, tables);
  c.peak_bytes = double(peak.bytes());
}

void lower(benchmark::State& state, Case& c) {
  const fdma::Tables tables = c.mask.bound_tables();
  if (c.first_us < 0) {
    c.expr = value_or_exit(fdma::parse_mask(c.mask.spec), c.mask.name);
    measure_once(c, tables);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(compile_once(c, tables));
  }
  state.SetLabel(c.mask.spec);
  state.counters["first_us"] = c.first_us;
  state.counters["peak_bytes"] = c.peak_bytes;
  state.counters["result_bytes"] = c.result_bytes;
  if (c.counts_distinct) state.counters["distinct_share"] = c.distinct_share;
  const bool has_target = c.target_us > 0 && c.distinct_share <= 0.5;
  if (has_target) state.counters["target_us"] = c.target_us;
  if (has_target && c.target_bytes > 0) state.counters["target_bytes"] = c.target_bytes;
}

void parse(benchmark::State& state, const SuiteMask& mask) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(fdma::parse_mask(mask.spec));
  }
  state.SetLabel(mask.spec);
}

/// Registers lower/<set>/<name>/<tokens>. The cases live as long as the program.
void add_lower(const std::string& set, Case c) {
  const std::string name =
      "lower/" + set + "/" + c.mask.name + "/" + std::to_string(c.mask.shape.kv_len(0));
  const auto shared = std::make_shared<Case>(std::move(c));
  fdma::add_benchmark(name, [shared](benchmark::State& state) { lower(state, *shared); });
}

void add_parse(const SuiteMask& mask) {
  benchmark::RegisterBenchmark(("parse/" + mask.name).c_str(), [mask](benchmark::State& state) {
    parse(state, mask);
  })->Unit(benchmark::kMicrosecond);
}

void add_suite() {
  for (const std::int64_t seq_len : fdma::suite::kSuiteLengths) {
    for (SuiteMask& mask : fdma::suite::mask_suite(seq_len)) {
      if (seq_len == 8192) add_parse(mask);
      Case c{std::move(mask)};
      if (seq_len == 131072) {
        const bool is_random = c.mask.name == "random_eviction" || c.mask.name == "zoh_topk";
        c.target_us = (is_random ? 10 : 1) * kMillisecond;
      }
      if (seq_len == 1048576 && (c.mask.name == "causal" || c.mask.name == "sliding_window")) {
        c.target_us = 100 * kMicrosecond;
        c.target_bytes = 64 * kKiB;
      }
      add_lower("zoo", std::move(c));
    }
  }
  for (SuiteMask& mask : fdma::suite::packed_million()) {
    add_lower("packed", Case{std::move(mask), 1 * kMillisecond, 4 * kMiB});
  }
}

void add_predicates() {
  for (const std::int64_t seq_len : {8192, 32768, 131072}) {
    for (SuiteMask& mask : fdma::suite::predicates(seq_len)) {
      if (seq_len == 8192) add_parse(mask);
      // A random table that large makes a million segments that share nothing: 0.5 GiB.
      if (mask.name == "table_tiles" && seq_len == 131072) continue;
      add_lower("predicate", Case{std::move(mask), seq_len == 8192 ? 5 * kMillisecond : 0});
    }
  }
}

void add_names() {
  for (SuiteMask& mask : fdma::suite::every_name(8192, 1)) {
    Case c{std::move(mask), 20 * kMillisecond};
    c.counts_distinct = true;
    add_lower("name", std::move(c));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!fdma::begin_benchmarks(argc, argv)) return 1;
  add_suite();
  add_predicates();
  add_names();
  return fdma::run_benchmarks();
}
