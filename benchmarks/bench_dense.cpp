// What packing a dense mask costs, on one core: 16384 x 16384 cells of one byte (256 MiB), packed
// documents under causal attention.
//
//   dense/bits_table   the mask as a table in memory, compiled as bits(@t)
//   dense/file/<path>  read_dense_mask of dataset /mask, for each file named on the command line
//   limit/pread/<path> the first file, uncompressed, read by pread into a 256 KiB buffer: what the
//                      machine's read path allows a single core
// Counters: bytes_per_second over the mask's bytes (nearly those of the file for pread), peak_bytes
// (heap at its peak), result_bytes. Files are made by dense_inputs.py; benchmarks/run.sh does all
// of it.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/io/dense_dataset.hpp"
#include "google_benchmark.hpp"
#include "program.hpp"

namespace {

constexpr std::int64_t kLen = 16384;
constexpr std::int64_t kDocuments = 7;

/// kDocuments documents of nearly equal length, causal.
std::vector<std::uint8_t> dense_mask() {
  std::vector<std::uint8_t> cells(static_cast<std::size_t>(kLen * kLen));
  for (std::int64_t q = 0; q < kLen; ++q) {
    const std::int64_t document = q * kDocuments / kLen;
    const std::int64_t begin = fdma::ceil_div(document * kLen, kDocuments);
    for (std::int64_t k = begin; k <= q; ++k) cells[static_cast<std::size_t>(q * kLen + k)] = 1;
  }
  return cells;
}

/// Runs `make` for the time, and once more for its memory.
template <class Make>
void measure(benchmark::State& state, Make make) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(make());
  }
  state.SetBytesProcessed(state.iterations() * kLen * kLen);
  fdma::count_memory(state, make);
}

void bits_table(benchmark::State& state) {
  const std::vector<std::uint8_t> cells = dense_mask();
  const std::int64_t extents[] = {kLen, kLen};
  const fdma::Tables tables{
      {"t", fdma::make_contiguous_view(cells.data(), fdma::DType::boolean, 2, extents)}};
  const fdma::MaskExpr expr = value_or_exit(fdma::parse_mask("bits(@t)"), "bits(@t)");
  fdma::MaskShape shape;
  shape.q_lens = {kLen};
  shape.kv_lens = {kLen};
  fdma::LowerOptions options;
  options.num_threads = 1;
  measure(state,
          [&] { return value_or_exit(fdma::compile(expr, tables, shape, options), "bits(@t)"); });
}

void file(benchmark::State& state, const std::string& path) {
  fdma::DenseReadOptions options;
  options.num_threads = 1;
  measure(state,
          [&] { return value_or_exit(fdma::read_dense_mask(path, "/mask", options), path); });
}

void pread_limit(benchmark::State& state, const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    state.SkipWithError(("cannot open " + path).c_str());
    return;
  }
  std::vector<char> buffer(256 * 1024);
  std::int64_t total = 0;
  for (auto _ : state) {
    std::int64_t offset = 0;
    ssize_t count = 0;
    while ((count = pread(descriptor, buffer.data(), buffer.size(), offset)) > 0) {
      offset += count;
    }
    total += offset;
  }
  state.SetBytesProcessed(total);
  close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("compiler", FDMA_COMPILER);
  const auto add = [](const std::string& name, auto run) {
    fdma::add_benchmark(name, run)->Unit(benchmark::kMillisecond)->UseRealTime();
  };
  add("dense/bits_table", bits_table);
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    const std::string name = path.substr(path.find_last_of('/') + 1);
    add("dense/file/" + name, [path](benchmark::State& state) { file(state, path); });
    if (i > 1) continue;
    add("limit/pread/" + name, [path](benchmark::State& state) { pread_limit(state, path); });
  }
  return fdma::run_benchmarks();
}
