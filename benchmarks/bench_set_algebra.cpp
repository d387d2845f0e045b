// What combining compiled masks costs, on one core: set operations, shifts, crops, transposition
// and equality of masks of a million tokens, in equal and unequal blocks, the slowest of all pairs
// of the mask suite, and a cache eviction over 128K tokens.
//
// The operands are compiled before; time is the CPU time of all threads of the process. For each:
//   peak_bytes     heap memory at its peak during one operation, the result included, the operands
//                  not
//   result_bytes   BlockMask::size_bytes
//   target_us, target_bytes   the goal for masks of a million tokens: met if CPU time and peak are
//                  below it
// The program checks nothing but that the operations succeed; tests do the rest.
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "google_benchmark.hpp"
#include "mask_suite.hpp"
#include "program.hpp"

namespace {

using fdma::BlockMask;
using fdma::compiled;
using fdma::suite::SuiteMask;

constexpr std::int64_t kMillion = 1048576;
constexpr double kTargetMicroseconds = 5000.0;
constexpr double kTargetBytes = 8.0 * 1024 * 1024;

BlockMask compile_suite(const std::string& name, std::int64_t seq_len) {
  for (const SuiteMask& mask : fdma::suite::mask_suite(seq_len)) {
    if (mask.name == name) return compiled(mask);
  }
  std::cerr << name << ": no such mask in the suite\n";
  std::exit(1);
}

/// One bitmap on every tile.
BlockMask every_second_key() {
  fdma::SegmentMask mask;
  mask.q_len = mask.kv_len = kMillion;
  mask.bitmaps.assign(static_cast<std::size_t>(mask.words_per_bitmap()), 0x5555555555555555u);
  mask.runs = {{0, 1, mask.num_tile_rows(), 1, 0}};
  mask.segments = {{0, mask.num_tile_cols(), 0, 0, fdma::SegmentKind::bitmap, 0}};
  return fdma::make_block_mask({1, 1, {kMillion}, {kMillion}}, mask.block, {mask});
}

using Operation = std::function<fdma::Result<BlockMask>()>;

/// The slowest operation on two masks of the mask suite (but those of learned keys, whose tables
/// have an entry for each key), by its CPU time once they are warm.
struct Slowest {
  std::string label;
  fdma::SetOperation operation;
  std::size_t a = 0, b = 0;
  double seconds = 0;
};

Slowest find_slowest(const std::vector<std::pair<std::string, BlockMask>>& masks) {
  constexpr std::pair<fdma::SetOperation, const char*> kOperations[] = {
      {fdma::SetOperation::intersection, "and"},
      {fdma::SetOperation::union_of, "or"},
      {fdma::SetOperation::difference, "minus"},
      {fdma::SetOperation::symmetric_difference, "xor"}};
  Slowest slowest;
  for (std::size_t a = 0; a < masks.size(); ++a) {
    for (std::size_t b = 0; b < masks.size(); ++b) {
      for (const auto& [operation, word] : kOperations) {
        double least = 1e9;
        for (int i = 0; i < 3; ++i) {
          const std::clock_t begin = std::clock();
          benchmark::DoNotOptimize(combine(masks[a].second, masks[b].second, operation));
          least = std::min(least, double(std::clock() - begin) / CLOCKS_PER_SEC);
        }
        if (least <= slowest.seconds) continue;
        slowest = {masks[a].first + " " + word + " " + masks[b].first, operation, a, b, least};
      }
    }
  }
  return slowest;
}

/// Registers algebra/<name>; `has_target` for masks of a million tokens.
void add(const std::string& name, const std::string& label, bool has_target, Operation operation) {
  const auto run = [name, label, has_target, operation](benchmark::State& state) {
    fdma::count_memory(state, [&] { return value_or_exit(operation(), name); });
    for (auto _ : state) benchmark::DoNotOptimize(operation());
    state.SetLabel(label);
    if (!has_target) return;
    state.counters["target_us"] = kTargetMicroseconds;
    state.counters["target_bytes"] = kTargetBytes;
  };
  fdma::add_benchmark("algebra/" + name, run);
}

}  // namespace

int main(int argc, char** argv) {
  if (!fdma::begin_benchmarks(argc, argv)) return 1;
  const oneapi::tbb::global_control one_thread(oneapi::tbb::global_control::max_allowed_parallelism,
                                               1);

  const BlockMask causal = compile_suite("causal", kMillion);
  const BlockMask window = compiled(fdma::suite::make_square("window", "window(1024)", kMillion));
  const BlockMask documents = compiled(fdma::suite::packed_million().front());
  const BlockMask sparse = compile_suite("qk_sparse", kMillion);
  const BlockMask window_64 = value_or_exit(
      fdma::convert(window, fdma::MaskFormat::segment, {64, 64}), "window in blocks of 64");
  const BlockMask window_form = value_or_exit(
      fdma::convert(window, fdma::MaskFormat::parametric, window.block), "window in closed form");
  const std::int64_t evicted_len = 131072;
  const BlockMask evicted = compile_suite("random_eviction", evicted_len);
  const BlockMask evicted_again = value_or_exit(fdma::shift(evicted, 1000, 0), "eviction, later");
  const BlockMask window_128k =
      compiled(fdma::suite::make_square("window", "window(8192)", evicted_len));

  add("and/1048576/causal,window", "causal and window(1024)", true,
      [&] { return fdma::intersect(causal, window); });
  add("and/1048576/causal,window_parametric", "causal and window(1024) in closed form", true,
      [&] { return fdma::intersect(causal, window_form); });
  add("or/1048576/window,documents", "window(1024) or 263 causal documents", true,
      [&] { return fdma::unite(window, documents); });
  add("and/1048576/documents,window", "263 causal documents and window(1024)", true,
      [&] { return fdma::intersect(documents, window); });
  add("minus/1048576/causal,documents", "causal minus 263 causal documents", true,
      [&] { return fdma::difference(causal, documents); });
  add("xor/1048576/documents,qk_sparse", "263 causal documents xor qk_sparse", true,
      [&] { return fdma::symmetric_difference(documents, sparse); });
  add("not/1048576/documents", "not 263 causal documents", true,
      [&] { return fdma::complement(documents); });
  add("and/1048576/documents,window_64x64",
      "263 causal documents and window(1024) in blocks of 64 x 64", true,
      [&] { return fdma::intersect(documents, window_64); });
  const BlockMask documents_64 = value_or_exit(
      fdma::convert(documents, fdma::MaskFormat::segment, {64, 64}), "documents in blocks of 64");
  const BlockMask window_256 = value_or_exit(
      fdma::convert(window, fdma::MaskFormat::segment, {128, 256}), "window in blocks of 256");
  add("or/1048576/documents_64x64,window_128x256",
      "263 causal documents in blocks of 64 x 64 or window(1024) in 128 x 256, to 128 x 128", true,
      [&] {
        fdma::SetAlgebraOptions options;
        options.block = fdma::BlockShape{128, 128};
        return fdma::unite(documents_64, window_256, options);
      });
  add("convert/1048576/documents_64x64", "263 causal documents from blocks of 64 x 64 to 128 x 128",
      true, [&] {
        return fdma::convert(documents_64, fdma::MaskFormat::segment, {128, 128});
      });
  add("crop/1048576/documents", "263 causal documents without 1000 rows and 77 keys", true, [&] {
    return fdma::crop(documents, {1000, kMillion, 77, kMillion, 0, 1, 0, 1});
  });
  add("equal/1048576/documents,documents_64x64",
      "are 263 causal documents equal to themselves in blocks of 64 x 64?", true,
      [&]() -> fdma::Result<BlockMask> {
        if (!fdma::equal_cells(documents, documents_64)) {
          return fdma::Error{fdma::ErrorCode::internal, "they are not"};
        }
        return BlockMask{};
      });
  const BlockMask stripes = every_second_key();
  add("and/1048576/causal,stripes", "causal and every second key", true,
      [&] { return fdma::intersect(causal, stripes); });
  std::vector<std::pair<std::string, BlockMask>> suite;
  for (const SuiteMask& mask : fdma::suite::mask_suite(kMillion)) {
    if (mask.name == "random_eviction" || mask.name == "zoh_topk") continue;
    suite.emplace_back(mask.name, compiled(mask));
  }
  const Slowest slowest = find_slowest(suite);
  add("slowest/1048576", "slowest of all pairs of the zoo: " + slowest.label, true, [&] {
    return fdma::combine(suite[slowest.a].second, suite[slowest.b].second, slowest.operation);
  });
  add("shift/1048576/causal", "causal moved by (1000, 77)", true,
      [&] { return fdma::shift(causal, 1000, 77); });
  add("shift/1048576/documents", "263 causal documents moved by (1000, 77)", true,
      [&] { return fdma::shift(documents, 1000, 77); });
  add("transpose/1048576/causal", "causal, transposed", true,
      [&] { return fdma::transpose(causal); });
  add("transpose/1048576/documents", "263 causal documents, transposed", true,
      [&] { return fdma::transpose(documents); });
  add("and/131072/eviction,window", "random eviction and window(8192)", false,
      [&] { return fdma::intersect(evicted, window_128k); });
  add("and/131072/eviction,eviction", "random eviction and the same 1000 rows later", false,
      [&] { return fdma::intersect(evicted, evicted_again); });
  add("not/131072/eviction", "not random eviction", false,
      [&] { return fdma::complement(evicted); });
  add("shift/131072/eviction", "random eviction moved by (1000, 77)", false,
      [&] { return fdma::shift(evicted, 1000, 77); });
  return fdma::run_benchmarks();
}
