#!/usr/bin/env bash
# bash tools/demo.sh
#
# Shows FDMA's main task on real input, starting from a bare machine. The script installs missing packages, builds the
# tool and writes a dense packed-document mask of 8192 tokens as users store it. It converts the mask to a compact exact
# one, estimates the savings, and runs attention over it, checked against float64. Files go to demo_output/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=$root/demo_output

bash tools/setup.sh demo
echo "== Building the tool (build/cpu)"
mkdir -p build
cmake --preset cpu >build/cpu-configure.log || { cat build/cpu-configure.log; exit 1; }
cmake --build --preset cpu --target fdma-maskc
maskc=$root/build/cpu/tools/fdma-maskc

rm -rf "$out"
mkdir -p "$out"
cd "$out"

# Prints a command as a user would type it, then runs it.
run() {
  printf '\n$ fdma-maskc'
  local argument
  for argument in "$@"; do
    if [[ $argument =~ ^[A-Za-z0-9_./:=@-]+$ ]]; then printf ' %s' "$argument"; else printf " '%s'" "$argument"; fi
  done
  printf '\n'
  "$maskc" "$@"
}

echo "== The input: a dense mask as users store it"
"$root/.venv/bin/python" "$root/tools/demo_inputs.py" \
  "$root/tests/data/document_lengths.json" dense.h5 docs.h5 qkv.h5

echo
echo "== A dense mask goes in, an exact compiled one comes out"
run convert dense.h5:/mask --format bcsr --block 128x128 -o out.h5
run inspect out.h5 --no-draw
run check out.h5 --exact --against dense.h5:/mask

echo
echo "== The same mask as one line of text"
run compile --spec 'causal & documents(lengths=@len)' --table len=docs.h5:/lengths \
  --q-len 8192 --kv-len 8192 -o packed.h5
run diff out.h5 packed.h5

echo
echo "== As a picture"
run render out.h5
run render out.h5 -o mask.png
run render out.h5 -o mask.html

echo
echo "== What it will save on a GPU, an H200 as it was measured"
run estimate out.h5 --heads 32 --head-dim 128 --device h200

echo
echo "== Attention over it, on this machine's CPU, checked against dense attention in float64"
run run out.h5 --tensors qkv.h5 --check -o result.h5

echo
echo "== The files, in $out"
for file in dense.h5 docs.h5 qkv.h5 out.h5 packed.h5 mask.png mask.html result.h5; do
  printf '%12d bytes  %s\n' "$(stat -c %s "$file")" "$out/$file"
done
