#!/usr/bin/env bash
# bash benchmarks/gpu.sh [--stages "build tests .."] [--rows PATTERN] [--max-seconds N] [--results FOLDER] [--list]
#
# On a bare machine with an H200 (or H100) and the CUDA toolkit: sets up what is missing, builds, tests on the GPU and
# measures attention beside cuDNN, FlexAttention and cuSPARSE. One call takes --max-seconds at most (450 unless given); call it
# again until it says that everything is done. Nothing is done twice:
#
#   setup      tools/setup.sh tests and benchmarks; FDMA_SETUP=0 leaves it out, where packages come another way
#   build      ninja, which continues where it was stopped
#   tests      the programs of tests/gpu, in shards side by side
#   python     tests/python/core/test_cuda.py, test_select_cuda.py and test_cusparse.py, and what
#              test_run.py does on a GPU
#   memcheck   compute-sanitizer on the small set of tests/gpu
#   racecheck  the same, of a build where every lane arrives at barriers (FDMA_CUDA_EVERY_LANE_ARRIVES), for racecheck
#              does not follow a warp that arrives by one lane
#   select     benchmarks/bench_select_gpu.py: scores and selection beside a copy and PyTorch's topk
#   estimate   benchmarks/bench_estimate_gpu: calibrates both directions, then predicts and measures the mask suite, FDMA alone
#   masks      benchmarks/bench_python.py: fdma.compile beside FlexAttention's create_block_mask
#   dense      benchmarks/bench_attention_gpu.py: FDMA beside cuDNN, row by row (--rows chooses)
#   backward   gradients beside cuDNN's, and what deterministic ones cost; backward_flex: beside FlexAttention's
#   closed-form plans of segments beside plans in parametric form
#   programs   FlexAttention's programs for the stages flex, backward_flex and topk, compiled side by side
#              (flex_programs.py), for each would take seconds of its row
#   flex       attention beside FlexAttention
#   cusparse   the same beside cuSPARSE's products at the cells of the mask
#   decode     few queries against 128K keys, beside PyTorch's attention and a copy
#   topk       benchmarks/bench_topk_gpu.py: learned top-k in one call, stage by stage, beside cuDNN (--rows chooses)
#   training   benchmarks/bench_training_gpu.py: host time of a call, steps over documents that change beside FlexAttention
#              and SDPA, throughput against length and sparsity (--rows chooses)
#   tables     those of docs/performance.md and docs/notes from the results, and its pictures where matplotlib is there
#
# A stage that passed leaves a stamp in the results folder (build/gpu/results unless given) and is skipped while sources
# are the same; rows of results stay in benchmarks/results/attention_gpu.json and are not measured again (--again: they
# are). The call ends with what it did, what it skipped and why. Exit code 0: nothing failed and nothing is left; 3: out
# of time, call it again; 1: something failed.
#
#   FDMA_PYTHON        a Python with PyTorch for CUDA, nanobind and pytest (default .venv/bin/python, else python3)
#   FDMA_BUILD         the build folder (default build/gpu)
#   FDMA_CMAKE_ARGS    more arguments for cmake; CMAKE_PREFIX_PATH and its like are used as they are
#   FDMA_COMMIT        the commit, where the sources are a copy without history
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
begin=$SECONDS

all_stages="setup build tests python memcheck racecheck select estimate masks programs dense backward parametric flex backward_flex cusparse decode topk training tables"
stages=$all_stages
rows='*'
max_seconds=450
build=${FDMA_BUILD:-build/gpu}
results=
is_list=0
bench_options=()

usage() {
  echo "gpu.sh: $1" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --stages | --rows | --max-seconds | --results)
      [ $# -gt 1 ] || usage "$1: expected a value"
      case $1 in
        --stages) stages=${2//,/ } ;;
        --rows) rows=$2 ;;
        --max-seconds) max_seconds=$2 ;;
        --results) results=$2 ;;
      esac
      shift
      ;;
    --list) is_list=1 ;;
    --again | --quick) bench_options+=("$1") ;;
    *) usage "$1: expected --stages, --rows, --max-seconds, --results, --again, --quick or --list" ;;
  esac
  shift
done
for stage in $stages; do
  case " $all_stages " in *" $stage "*) ;; *) usage "--stages: expected some of $all_stages, got '$stage'" ;; esac
done
case $max_seconds in '' | *[!0-9]*) usage "--max-seconds: expected a whole number, got '$max_seconds'" ;; esac
case $build in /*) ;; *) build=$PWD/$build ;; esac
results=${results:-$build/results}
mkdir -p "$results"
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$results/programs}

python=${FDMA_PYTHON:-}
choose_python() {
  [ -n "${FDMA_PYTHON:-}" ] && return
  python=python3
  if [ -x .venv/bin/python ]; then python=$PWD/.venv/bin/python; fi
}
choose_python

done_stages=() skipped=() failed=() left=()
remaining() { echo $((max_seconds - (SECONDS - begin))); }

# Everything that decides what is built and tested; benchmarks and pages of text are not part of it.
digest=$(find CMakeLists.txt cmake formats kernels masks tools python_bindings tests -type f ! -name '*.md' ! -name '*.pyc' \
  -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
has_stamp() { [ "$(cat "$results/$1.done" 2>/dev/null)" = "$digest" ]; }

# stage NAME SECONDS COMMAND..: runs it with what time is left, if that is SECONDS at least; its output in NAME.log.
stage() {
  local name=$1 needed=$2 code
  shift 2
  case " $stages " in *" $name "*) ;; *) return 0 ;; esac
  if has_stamp "$name"; then
    skipped+=("$name (passed before, same sources)")
    return 0
  fi
  if [ "$is_list" = 1 ]; then
    echo "would run: $name"
    return 0
  fi
  if [ "$(remaining)" -lt "$needed" ]; then
    left+=("$name")
    return 1
  fi
  echo "== $name ($(remaining) s left)"
  local stage_begin=$SECONDS
  timeout --signal=INT --kill-after=10 "$(remaining)" "$@" >"$results/$name.log" 2>&1
  code=$?
  case $code in
    0)
      echo "$digest" >"$results/$name.done"
      done_stages+=("$name ($((SECONDS - stage_begin)) s)")
      return 0
      ;;
    124 | 130 | 137)
      left+=("$name")
      echo "   out of time; it continues with the next call"
      ;;
    77) skipped+=("$name ($(tail -n 1 "$results/$name.log"))") ;;
    *)
      failed+=("$name (exit code $code, $results/$name.log)")
      tail -n 25 "$results/$name.log"
      ;;
  esac
  return 1
}

# Stages run in a shell of their own, so that each has a limit of time; 77 skips with the reason as the last line.
readonly shards=32
export shards build results python rows digest
setup_all() { bash tools/setup.sh tests && bash tools/setup.sh benchmarks; }

# configure FOLDER OPTION..
configure() {
  local folder=$1 options=()
  shift
  read -r -a options <<<"${FDMA_CMAKE_ARGS:-}"
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFDMA_CUDA=ON -DFDMA_BUILD_TESTS=ON "${options[@]}" "$@"
}

build_all() {
  local options=()
  "$python" -c 'import nanobind' 2>/dev/null && options+=(-DFDMA_BUILD_PYTHON=ON) ||
    echo "no nanobind in $python: the Python package fdma is not built"
  configure "$build" -DPython3_EXECUTABLE="$(command -v "$python")" "${options[@]}" || return 1
  local targets=(test_gpu test_gpu_select fdma-maskc)
  ninja -C "$build" -t query _fdma >/dev/null 2>&1 && targets+=(_fdma)
  ninja -C "$build" "${targets[@]}"
}

# One shard of a program's tests; its stamp keeps it from running again after a call that ran out of time.
test_shard() {
  local program=$1 shard=$2 name
  name=$(basename "$program").$shard
  [ "$(cat "$results/$name.done" 2>/dev/null)" = "$digest" ] && return 0
  rm -f "$results/$name.done"
  if GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$program" --gtest_brief=1 >"$results/$name.log" 2>&1; then
    echo "$digest" >"$results/$name.done"
  fi
}

# Most of a test's time is its reference on the CPU: shards run side by side. One that failed there, where the device and
# its memory are shared, is run once more alone.
test_suites() {
  local program shard name code=0
  for program in "$build/tests/gpu/test_gpu" "$build/tests/gpu/select/test_gpu_select"; do
    seq 0 $((shards - 1)) | xargs -P $((($(nproc) + 1) / 2)) -I{} bash -c 'test_shard "$@"' shard "$program" {}
    for shard in $(seq 0 $((shards - 1))); do
      name=$(basename "$program").$shard
      if [ ! -e "$results/$name.done" ]; then
        echo "shard $shard failed beside others:"
        grep -aE 'Failure|FAILED|rror|terminate' "$results/$name.log" | head -n 20
        test_shard "$program" "$shard"
      fi
      cat "$results/$name.log"
      [ "$(cat "$results/$name.done" 2>/dev/null)" = "$digest" ] || code=1
    done
  done
  return $code
}

need_module() {
  compgen -G "$build/python_bindings/fdma/_fdma.*so" >/dev/null || { echo "the Python package fdma is not built"; exit 77; }
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
    { echo "$python has no PyTorch with CUDA"; exit 77; }
}

python_tests() {
  need_module
  "$python" -c 'import pytest, h5py' 2>/dev/null || { echo "$python has no pytest or no h5py"; exit 77; }
  FDMA_BUILD_DIR=$build FDMA_MASKC=$build/tools/fdma-maskc "$python" -m pytest -q -p no:cacheprovider \
    tests/python/core/test_cuda.py tests/python/core/test_select_cuda.py tests/python/core/test_cusparse.py \
    tests/python/package/test_attention_cuda.py tests/python/package/test_attention_arrays_cuda.py tests/python/package/test_hf_cuda.py \
    tests/python/core/test_dynamic_mask.py tests/python/package/test_learned_cuda.py tests/python/package/test_second_gpu.py tests/python/package/test_torch_modes_cuda.py \
    tests/python/tool/test_run.py::test_run_and_bench_on_a_gpu
}

# Tests that the sanitizers run, a process for each line: program and filter.
sanitized_tests() {
  cat <<'LINES'
test_gpu AttentionSanitized.GradientsOverListedKeys
test_gpu AttentionSanitized.Gradients:AttentionSanitized.GradientsInOrderOfHalfTiles
test_gpu AttentionSanitized.RowSumsOfKeysAndOutLow
test_gpu AttentionSanitized.*-AttentionSanitized.Gradients*:AttentionSanitized.DeltaSource*
test_gpu Small/DynamicMaskZeroFill.AreWrittenInEveryReplayOfAGraph/*
test_gpu Small/DynamicMaskZeroFill.AreWrittenInTime/*
select/test_gpu_select DeviceTopk.Batch*:DeviceTopk.Nan*:DeviceTopk.Any*
select/test_gpu_select DeviceTopk.ScoresOfEveryScale:DeviceTopk.CapturedInAGraph*
select/test_gpu_select DeviceLists.Share*:DeviceLists.Batches*:DeviceLists.Keys*
select/test_gpu_select DeviceKvWorklist.KeySegments*:DeviceKvWorklist.Nobody*
select/test_gpu_select DeviceZohScores.Strides:DeviceZohScores.Extremes*:DeviceZohScores.Many*
select/test_gpu_select DeviceZohBackward.Strides:DeviceZohBackward.Gradients*:DeviceZohBackward.Keys*
select/test_gpu_select DeviceIncrementalTopk.All*:DeviceIncrementalTopk.Replays*
LINES
}

# sanitize_tests TOOL FOLDER PROGRAM FILTER: one of them; its output as a whole, that of others does not come between.
sanitize_tests() {
  local output code
  output=$(compute-sanitizer --tool "$1" --error-exitcode 1 "$2/tests/gpu/$3" --gtest_brief=1 --gtest_filter="$4" 2>&1)
  code=$?
  printf '== %s %s\n%s\n' "$3" "$4" "$output"
  return $code
}

# Most of a sanitizer's time is the CPU's: processes run side by side.
sanitize() {
  local folder=$build
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer on PATH"; exit 77; }
  if [ "$1" = racecheck ]; then
    folder=$build/racecheck
    configure "$folder" -DFDMA_CUDA_EVERY_LANE_ARRIVES=ON && ninja -C "$folder" test_gpu test_gpu_select || return 1
  fi
  sanitized_tests | xargs -P $((($(nproc) + 1) / 2)) -L 1 bash -c 'set -f; sanitize_tests "$@"' sanitize "$1" "$folder"
}

measure_select() {
  need_module
  "$python" benchmarks/bench_select_gpu.py "$build/python_bindings" benchmarks/results/select_gpu.json
}

measure_estimate() {
  local raw=$results/estimate_gpu.raw
  ninja -C "$build" -t query bench_estimate_gpu >/dev/null 2>&1 || { echo "built without benchmarks"; exit 77; }
  ninja -C "$build" bench_estimate_gpu &&
    "$build/benchmarks/bench_estimate_gpu" --direction both --seconds-each 0.1 --json "$raw" || return 1
  local name
  for name in estimate_gpu estimate_gpu_backward; do
    "$python" benchmarks/make_report.py store-estimate-gpu "$raw" "benchmarks/results/$name.json" || return 1
  done
}

flex_programs() {
  "$python" benchmarks/flex_programs.py
}

measure_masks() {
  need_module
  "$python" benchmarks/bench_python.py "$build/python_bindings" benchmarks/results/python_gpu.json --max-seconds 100
}

measure() {
  local part=$1 seconds=$2
  shift 2
  case " $* " in *" --list "*) ;; *) need_module ;; esac
  local program=attention choice=(--parts "$part")
  case $part in topk | training) program=$part choice=() ;; esac
  "$python" "benchmarks/bench_${program}_gpu.py" "$build/python_bindings" "benchmarks/results/${program}_gpu.json" \
    "${choice[@]}" --rows "$rows" --max-seconds "$seconds" "$@"
}
export -f setup_all build_all test_shard test_suites need_module python_tests configure sanitize sanitized_tests sanitize_tests measure measure_select measure_estimate measure_masks flex_programs
if [ "${FDMA_SETUP:-1}" = 0 ]; then stages=${stages/setup/}; fi
stage setup 20 bash -c setup_all && choose_python
if stage build 20 bash -c build_all; then
  stage tests 15 bash -c test_suites
  stage python 15 bash -c python_tests
  stage memcheck 20 bash -c 'sanitize memcheck'
  stage racecheck 20 bash -c 'sanitize racecheck'
  stage select 60 bash -c measure_select
  stage estimate 120 bash -c measure_estimate
  stage masks 110 bash -c measure_masks
  stage programs 60 bash -c flex_programs
  # The benchmark knows itself which rows are there: no stamps, and its lines are shown as they come.
  for part in dense backward parametric flex backward_flex cusparse decode topk training; do
    case " $stages " in *" $part "*) ;; *) continue ;; esac
    if [ "$is_list" = 1 ]; then
      bash -c 'measure "$@"' stage "$part" 1 --list "${bench_options[@]}" 2>&1 | sed 's/^/would measure: /'
      continue
    fi
    if [ "$(remaining)" -lt 30 ]; then
      left+=("$part")
      continue
    fi
    echo "== $part ($(remaining) s left)"
    bash -c 'measure "$@"' stage "$part" "$(($(remaining) - 10))" "${bench_options[@]}" 2>&1 | tee "$results/$part.log"
    case ${PIPESTATUS[0]} in
      0) done_stages+=("$part") ;;
      3) left+=("$part") ;;
      77) skipped+=("$part ($(tail -n 1 "$results/$part.log"))") ;;
      *) failed+=("$part ($results/$part.log)") ;;
    esac
  done
  rm -f "$results/tables.done"
  stage tables 2 "$python" benchmarks/make_report.py tables
fi

echo "== $((SECONDS - begin)) s"
print() {
  local title=$1
  shift
  [ $# -eq 0 ] || printf "$title: %s\n" "$@"
}
print "done" "${done_stages[@]}"
print "skipped" "${skipped[@]}"
print "left for the next call" "${left[@]}"
print "FAILED" "${failed[@]}"
[ ${#failed[@]} -eq 0 ] || exit 1
[ ${#left[@]} -eq 0 ] || exit 3
