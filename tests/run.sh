#!/usr/bin/env bash
# bash tests/run.sh
#
# Sets up what is missing, builds (preset dev, or FDMA_PRESET) and runs every test: the programs under tests/ and the
# tests of the include rule and of the installed package by CTest, those in Python by pytest. One test is one case.
# The last line is "N passed, N failed, N skipped"; the exit code is 0 iff something passed and nothing failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

preset=${FDMA_PRESET:-dev}
build=$PWD/build/$preset
results=$build/test-results

# Ends the run where tests cannot even start: that is one failure.
give_up() {
  echo "run.sh: $1"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}

bash tools/setup.sh tests || give_up "set-up failed"

echo "== Building ($build)"
mkdir -p "$build"
cmake --preset "$preset" -DPython3_EXECUTABLE="$PWD/.venv/bin/python" >"$build/configure.log" ||
  { cat "$build/configure.log"; give_up "configuring failed"; }
cmake --build --preset "$preset" || give_up "building failed"

rm -rf "$results"
mkdir -p "$results"

# The Python tests run on one core: beside the others.
FDMA_MASKC=$build/tools/fdma-maskc FDMA_BUILD_DIR=$build PYTHONDONTWRITEBYTECODE=1 \
  .venv/bin/python -m pytest --quiet -p no:cacheprovider --junitxml="$results/pytest.xml" tests/python tests/golden \
  >"$results/pytest.log" 2>&1 &
pytest=$!

echo "== C++ tests, include rule, install"
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure --no-tests=error \
  --output-junit "$results/ctest.xml" >"$results/ctest.log" 2>&1
ctest_code=$?
if [ $ctest_code -ne 0 ]; then
  # The log without the lines of the tests that passed.
  grep -vE '^ *[0-9]+/[0-9]+ Test +#.*(Passed|Skipped)|^ +Start +[0-9]+: ' "$results/ctest.log"
fi

echo "== Python tests"
wait $pytest
pytest_code=$?
cat "$results/pytest.log"

# CUDA: what nvcc compiled (each kernel, templates once per instance, is an entry of a ptxas log), or what it would have.
# The sources of the kernels' instances are made by CMake: one for each line of instances.def and element type, twice as
# many for the backward kernel.
instances=kernels/src/sm90/instances.def
num_cuda_sources=$(($(find kernels tests -name '*.cu' | wc -l) + 2 * $(grep -cE '^FDMA_SM90_[A-Z]+\(' $instances) +
  2 * $(grep -c '^FDMA_SM90_BACKWARD(' $instances)))
mapfile -t ptxas_logs < <(find "$build" -name '*.cu.o.ptxas.log')
if [ ${#ptxas_logs[@]} -gt 0 ]; then
  num_kernels=$(cat "${ptxas_logs[@]}" | grep -c 'Compiling entry function')
  echo "CUDA kernels compiled: $num_kernels, from ${#ptxas_logs[@]} sources, without stack frames and ptxas C75xx"
  left_out=$build/kernels/sm90/left_out.cu
  if [ -f "$left_out" ]; then
    echo "CUDA kernels left out: $(grep -c cudaErrorNotSupported "$left_out") (FDMA_SM90_INSTANCES; kernels/instances.json is their record)"
  fi
else
  echo "CUDA sources skipped: $num_cuda_sources (no nvcc)"
  echo "GPU tests not built: $(find tests/gpu \( -name "*.cu" -o -name "*.cpp" \) -exec cat {} + | grep -cE '^TEST(_F|_P)?\(') (no nvcc)"
fi
.venv/bin/python tests/count_results.py "ctest=$ctest_code:$results/ctest.xml" "pytest=$pytest_code:$results/pytest.xml"
