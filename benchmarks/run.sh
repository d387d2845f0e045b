#!/usr/bin/env bash
# bash benchmarks/run.sh
#
# Sets up what is missing, builds the benchmarks (preset release), runs them all on the machine at hand, writes
# benchmarks/results/*.json and brings the tables of docs/performance.md up to date. A few minutes; everything runs on
# one core, so let the machine be idle.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tools/setup.sh benchmarks
build=build/release
mkdir -p "$build"
cmake --preset release >"$build/configure.log" || { cat "$build/configure.log"; exit 1; }
cmake --build --preset release --target bench_lowering bench_dense

inputs=$build/benchmark-inputs
.venv/bin/python benchmarks/dense_inputs.py "$inputs"

run() {
  local name=$1
  shift
  echo "== $name"
  "$build/benchmarks/bench_$name" --benchmark_min_time=0.05 --benchmark_out_format=json \
    --benchmark_out="$build/$name.json" "$@"
  .venv/bin/python benchmarks/make_report.py store "$build/$name.json" "benchmarks/results/$name.json"
}
run lowering
run dense "$inputs/contiguous.h5" "$inputs/gzip.h5"
.venv/bin/python benchmarks/make_report.py tables benchmarks/results docs/performance.md
echo "Wrote benchmarks/results and the tables of docs/performance.md"
