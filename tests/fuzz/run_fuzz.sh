#!/usr/bin/env bash
# run_fuzz.sh OUT SECONDS [FOLDER]: every importer and every format of decoded arrays under libFuzzer, one
# process each, all at once. FOLDER (default: the script's own) holds fuzz_interop and fuzz_v1_arrays,
# and lib/ with their shared libraries if they came from another machine. OUT gets a log, the corpus
# and what was found of each target, and summary.txt; the exit code is 0 iff nothing was found.
set -uo pipefail
out=${1:?run_fuzz.sh OUT SECONDS [FOLDER]}
seconds=${2:?run_fuzz.sh OUT SECONDS [FOLDER]}
folder=${3:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ -d "$folder/lib" ]; then export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; fi
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

# AddressSanitizer of Clang 14 cannot place its shadow where the kernel randomises addresses by 32 bits.
fixed=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi

# one PROGRAM VARIABLE NAME
one() {
  local label="$1.$3"
  mkdir -p "$out/$label.corpus" "$out/$label.found"
  local TIMEFORMAT='%U %S'
  { time env "$2=$3" "${fixed[@]}" "$folder/$1" -max_len=2048 -len_control=0 -max_total_time="$seconds" \
    -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$out/$label.found/" "$out/$label.corpus" \
    >"$out/$label.log" 2>&1; } 2>"$out/$label.cpu"
  local code=$?
  local runs cover found cpu
  cpu=$(awk 'END { printf "%.0f", $1 + $2 }' "$out/$label.cpu")
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$label.log")
  cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$out/$label.log" | tail -n 1)
  found=$(find "$out/$label.found" -type f | wc -l)
  printf '%-28s exit %3d  runs %11s  edges %6s  cpu seconds %5s  inputs %5d  findings %d\n' "$label" "$code" \
    "${runs:-?}" "${cover:-?}" "$cpu" "$(find "$out/$label.corpus" -type f | wc -l)" "$found" >"$out/$label.line"
  return $code
}

jobs=()
for name in flex flash_mask bsr cu_seqlens hf_mask hf_padding; do
  one fuzz_interop FDMA_FUZZ_PEER "$name" &
  jobs+=($!)
done
for name in segment parametric bitset bcsr columns dense message pattern; do
  one fuzz_v1_arrays FDMA_FUZZ_V1 "$name" &
  jobs+=($!)
done
worst=0
for job in "${jobs[@]}"; do wait "$job" || worst=1; done
cat "$out"/*.line >"$out/summary.txt"
cat "$out/summary.txt"
exit $worst
