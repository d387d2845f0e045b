#!/usr/bin/env bash
# bash benchmarks/run.sh
#
# Sets up what is missing, builds the benchmarks (preset release), runs them all on the machine at hand, writes
# benchmarks/results/*.json and brings the tables of docs/performance.md and docs/notes up to date. About a quarter of an hour; masks run
# on one core, attention on all of them, so let the machine be idle.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tools/setup.sh benchmarks
build=build/release
mkdir -p "$build"
cmake --preset release -DFDMA_BUILD_PYTHON=ON -DPython3_EXECUTABLE="$PWD/.venv/bin/python" >"$build/configure.log" ||
  { cat "$build/configure.log"; exit 1; }
cmake --build --preset release --target bench_lowering bench_set_algebra bench_select bench_dense bench_dense_file bench_estimate bench_block_tables fdma-maskc _fdma

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
run block_tables
echo "== whole processes of fdma-maskc compile"
.venv/bin/python benchmarks/bench_compile.py "$build/tools/fdma-maskc" benchmarks/results/compile.json
run set_algebra --benchmark_repetitions=9
echo "== learned selection, beside dense top-k"
"$build/benchmarks/bench_select" --benchmark_min_time=0.01 --benchmark_repetitions=3 --benchmark_out_format=json \
  --benchmark_out="$build/select.json"
.venv/bin/python benchmarks/dense_topk.py "$build/dense_topk.json"
.venv/bin/python benchmarks/make_report.py store-select "$build/select.json" "$build/dense_topk.json" \
  benchmarks/results/select.json
run dense "$inputs/contiguous.h5" "$inputs/gzip.h5"
echo "== dense masks in files, beside pread and NumPy"
.venv/bin/python benchmarks/bench_dense_files.py "$build/benchmarks/bench_dense_file" "$build/tools/fdma-maskc" \
  "$inputs/files" benchmarks/results/dense_files.json
echo "== estimate"
"$build/benchmarks/bench_estimate" --json "$build/estimate.json"
.venv/bin/python benchmarks/make_report.py store-estimate "$build/estimate.json" benchmarks/results/estimate.json
echo "== masks from Python, beside create_block_mask"
.venv/bin/python benchmarks/bench_python.py "$build/python_bindings" benchmarks/results/python_cpu.json --device cpu --max-seconds 300
echo "== attention beside PyTorch"
.venv/bin/python benchmarks/bench_attention.py "$build/python_bindings" benchmarks/results/attention_cpu.json
.venv/bin/python benchmarks/make_report.py tables
echo "Wrote benchmarks/results and the tables of docs/performance.md and docs/notes"
