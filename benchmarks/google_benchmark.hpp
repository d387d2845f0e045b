// What programs on Google Benchmark share: their main, how a case is registered, and the memory of
// an operation.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <utility>

#include "allocation_peak.hpp"

namespace fdma {

/// False where the command line has an argument that means nothing.
inline bool begin_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("compiler", FDMA_COMPILER);
  return !benchmark::ReportUnrecognizedArguments(argc, argv);
}

inline int run_benchmarks() {
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// Its time is the CPU time of all threads of the process.
template <class Run>
auto* add_benchmark(const std::string& name, Run run) {
  return benchmark::RegisterBenchmark(name.c_str(), std::move(run))
      ->Unit(benchmark::kMicrosecond)
      ->MeasureProcessCPUTime();
}

/// Counters peak_bytes, of the heap during one operation with its result, and result_bytes.
template <class Make>
void count_memory(benchmark::State& state, const Make& make) {
  const AllocationPeak peak;
  const auto result = make();
  state.counters["peak_bytes"] = static_cast<double>(peak.bytes());
  state.counters["result_bytes"] = static_cast<double>(result.size_bytes());
}

}  // namespace fdma
