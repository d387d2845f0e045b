#!/usr/bin/env bash
# bash tools/build_wheel.sh [PIP_OPTION..]
#
# Builds the wheel of the Python package, adds the shared libraries that it needs (auditwheel: fmt, oneTBB, Highway), and
# checks the result. The checks cover the wheel's files, the libraries that it still needs from the system (libc,
# libstdc++ and similar), and its import and tests in an environment with only NumPy and pytest. The wheel is in
# build/wheel/.
#
#   bash tools/build_wheel.sh --config-settings=cmake.define.FDMA_CUDA=OFF     without the GPU backends (default: with them where nvcc is)
#
# FDMA_WHEEL_PYTHON names another interpreter than that of .venv. It needs python_bindings/requirements-wheel.txt, and
# also nanobind and CMake 3.26 or newer if it is Python 3.12 or newer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$PWD/build/wheel
if [ -z "${FDMA_WHEEL_PYTHON:-}" ]; then bash tools/setup.sh wheel; fi
python=${FDMA_WHEEL_PYTHON:-$PWD/.venv/bin/python}
# Libraries that every Linux with this C library has. The CUDA driver is loaded at run time.
system_libraries='^(ld-linux-[a-z0-9-]+|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so(\.[0-9]+)?$'

fail() {
  echo "build_wheel: $1" >&2
  exit 1
}

echo "== Building"
rm -rf "$out"
mkdir -p "$out/built" "$out/unpacked"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation "$@" \
  --wheel-dir "$out/built" ./python_bindings

echo "== Repairing"
mkdir "$out/repaired"
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --wheel-dir "$out/repaired" "$out"/built/*.whl >"$out/repair.log" 2>&1 ||
  { cat "$out/repair.log"; fail "auditwheel failed"; }
# The licences of the libraries that auditwheel added, copied from the system's packages.
"$python" -m wheel unpack --dest "$out" "$out"/repaired/*.whl >/dev/null
for library in libfmt libhwy libtbb; do
  package=$(dpkg-query -S "/usr/lib/*/$library.so.*" | head -n 1 | cut -d: -f1)
  cp "/usr/share/doc/$package/copyright" "$(echo "$out"/fdma-*/fdma-*.dist-info/licenses)/$library"
done
"$python" -m wheel pack --dest-dir "$out" "$out"/fdma-*/ >/dev/null
rm -r "$out/repaired" "$out"/fdma-*/
wheels=("$out"/*.whl)
if [ ${#wheels[@]} -ne 1 ] || [ ! -f "${wheels[0]}" ]; then fail "expected one wheel, got ${wheels[*]}"; fi
wheel=${wheels[0]}

echo "== Checking $(basename "$wheel")"
"$python" -m zipfile -e "$wheel" "$out/unpacked"
strange=$(cd "$out/unpacked" && find . -type f ! -path './fdma/*.py' ! -path './flash_dmattn/*.py' ! -name '*.pyi' \
  ! -name py.typed ! -path './fdma/_fdma.*so' ! -path './fdma.libs/*.so*' ! -path './fdma-*.dist-info/*')
[ -z "$strange" ] || fail "files that do not belong in a wheel: $strange"
own=$(cd "$out/unpacked" && find . -name '*.so*' -type f)
for library in $own; do
  for needed in $(readelf --dynamic "$out/unpacked/$library" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'); do
    [[ $needed =~ $system_libraries ]] || [ -f "$out/unpacked/fdma.libs/$needed" ] ||
      fail "$library needs $needed, which the wheel does not have"
  done
done

clean=$out/clean
"$python" -m venv "$clean"
"$clean/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel" \
  "$(grep '^pytest==' tests/requirements.txt)" "$(grep '^numpy==' tests/requirements.txt)"
# The tests look for the package in the folder where a build puts it.
mkdir -p "$out/installed"
ln -s "$("$clean/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" "$out/installed/python_bindings"
env -i PATH=/usr/bin:/bin HOME="$out" FDMA_BUILD_DIR="$out/installed" PYTHONDONTWRITEBYTECODE=1 \
  "$clean/bin/python" -m pytest --quiet -p no:cacheprovider --override-ini addopts= \
  tests/python/core/test_module.py tests/python/pages/test_python_docstrings.py tests/python/pages/test_python_docs.py
env -i "$clean/bin/python" - <<'PYTHON'
import fdma._fdma

libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
outside = [p for p in libraries if any(name in p for name in ("fmt", "tbb", "hwy")) and "fdma.libs" not in p]
assert not outside, f"libraries of the system that were loaded: {outside}"
PYTHON
echo "$wheel: $(stat --format=%s "$wheel") bytes"
