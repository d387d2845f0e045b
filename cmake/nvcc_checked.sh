#!/usr/bin/env bash
# Compiler launcher of CUDA sources: runs the nvcc command that it is given and looks at what ptxas says.
#
#   nvcc_checked.sh /usr/local/cuda/bin/nvcc .. -Xptxas -v .. -o kernel.cu.o
#
# Writes ptxas' output to <object>.ptxas.log and fails where a kernel has a stack frame (registers that spill, arrays
# that are indexed at run time) or ptxas warns of serialised wgmma and the like (C7500 to C7599): both compile and run,
# at a fraction of the speed.
set -uo pipefail

object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done

output=$("$@" 2>&1)
code=$?
if [ -z "$object" ]; then
  printf '%s\n' "$output"
  exit $code
fi
printf '%s\n' "$output" >"$object.ptxas.log"
# The lines that -v prints for every kernel go to the log only; all other lines are shown.
printf '%s\n' "$output" | grep -vE '^ptxas info|bytes stack frame|^$'
[ $code -eq 0 ] || exit $code

if found=$(grep -nE '\bC75[0-9][0-9]\b|[1-9][0-9]* bytes stack frame' "$object.ptxas.log"); then
  echo "nvcc_checked: stack frames or ptxas C75xx in $object:"
  printf '%s\n' "$found"
  rm -f "$object"
  exit 1
fi
