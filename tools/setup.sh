#!/usr/bin/env bash
# bash tools/setup.sh [demo | tests | ci | wheel | benchmarks | docs]
#
# Installs what the stage needs: Debian packages, and Python packages in .venv. It can run any number of times; if
# nothing is missing, it changes nothing and does not use the network. It supports Debian 12 and Ubuntu 24.04. Missing
# packages are installed as root or by sudo; without either, the script prints the command to run and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stage=${1:-tests}
packages=(g++ cmake ninja-build libhdf5-dev libboost-program-options-dev libfmt-dev libspdlog-dev
  nlohmann-json3-dev libtbb-dev libhwy-dev libpng-dev libxxhash-dev libdeflate-dev)
python_packages=(python3 python3-venv)
case $stage in
  demo) packages+=("${python_packages[@]}") ;;
  tests) packages+=("${python_packages[@]}" python3-dev libgtest-dev libgmock-dev librapidcheck-dev) ;;
  ci)
    packages+=("${python_packages[@]}" python3-dev libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev ccache
      git clang-14 clang-format-14 clang-tidy-14 shellcheck)
    # Debian and Ubuntu package libFuzzer and the sanitizers apart from the compiler.
    packages+=(libclang-rt-14-dev)
    ;;
  wheel) packages+=("${python_packages[@]}" python3-dev) ;;
  benchmarks) packages+=("${python_packages[@]}" python3-dev libbenchmark-dev) ;;
  docs) packages=("${python_packages[@]}" doxygen) ;;
  *)
    echo "setup.sh: stage '$stage': expected demo, tests, ci, wheel, benchmarks or docs" >&2
    exit 2
    ;;
esac

# Tests and CI open the pages of `fdma-maskc render` in a browser. Debian packages one (a download of 125 MB and 400 MB
# on disk with its dependencies, ten seconds). Ubuntu has it as a snap only, so these tests skip there.
case $stage in
  tests | ci) if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then packages+=(chromium); fi ;;
esac

# Prints its arguments, one a line, and ends the script.
stop() {
  { printf 'setup: '; printf '%s\n' "$@"; } >&2
  exit 1
}

install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    stop "this is neither Debian 12 nor Ubuntu 24.04 (no apt-get), so packages cannot be checked or installed." \
      "What is needed, by its Debian names: ${packages[*]}"
  fi
  local missing=() package status
  for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      stop "packages are missing, and this user can neither install them nor use sudo. Have root run this:" "" \
        "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" "" "and start again."
    fi
  fi
  echo "setup: installing ${missing[*]}"
  if ! "${as_root[@]}" apt-get update -qq ||
    ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    stop "apt-get failed. Run as root and look at what it says:" "" \
      "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  fi
}

# The system's own Python is preferred: its venv module is among the packages above. Another Python has to bring its own.
find_python() {
  local python
  for python in /usr/bin/python3 python3; do
    if "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return 0
    fi
  done
  stop "no Python 3.11 or newer with the modules venv and ensurepip was found. Run as root:" "" \
    "  apt-get install -y python3 python3-venv"
}

install_python_packages() {
  local stamp=.venv/fdma-requirements wanted
  wanted=$(sha256sum tests/requirements.txt | cut -d' ' -f1)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && .venv/bin/python -c 'import h5py' 2>/dev/null; then
    return 0
  fi
  echo "setup: Python packages into .venv"
  local python
  python=$(find_python)
  # If this Python already has PyTorch, the tests use it as well.
  local options=()
  if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    options=(--system-site-packages)
  fi
  rm -rf .venv
  "$python" -m venv "${options[@]}" .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt ||
    stop "pip could not install tests/requirements.txt into .venv (is there a network?)."
  echo "$wanted" >"$stamp"
}

# has_packages FILE: whether .venv has the versions that the file pins; the build of a version does not matter.
has_packages() {
  .venv/bin/python - "$1" 2>/dev/null <<'PYTHON'
import sys
from importlib.metadata import version

for line in open(sys.argv[1]):
    if "==" in line and not line.startswith("#"):
        name, pinned = line.strip().split("==")
        if pinned not in (version(name), version(name).split("+")[0]):
            sys.exit(1)
PYTHON
}

# PyTorch, about a gigabyte, which only the benchmarks need.
install_benchmark_packages() {
  if has_packages benchmarks/requirements.txt; then return 0; fi
  echo "setup: PyTorch into .venv"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/requirements.txt ||
    stop "pip could not install benchmarks/requirements.txt into .venv (is there a network?)."
}

# The tools that build and repair wheels; they are small.
install_wheel_packages() {
  if has_packages python_bindings/requirements-wheel.txt; then return 0; fi
  echo "setup: builder of wheels into .venv"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement python_bindings/requirements-wheel.txt ||
    stop "pip could not install python_bindings/requirements-wheel.txt into .venv (is there a network?)."
}

# Sphinx and its extensions for the documentation site; they are small.
install_docs_packages() {
  if has_packages docs/requirements.txt; then return 0; fi
  echo "setup: Sphinx into .venv"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt ||
    stop "pip could not install docs/requirements.txt into .venv (is there a network?)."
}

# cusparse.h for the path through cuSPARSE (cmake/cusparse.cmake), where nvcc is there and the toolkit lacks it: PyPI's
# package, 146 MB, without its dependencies. If it cannot be installed, the build leaves out that path and says so.
install_cusparse() {
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || return 0
  local header
  for header in /usr/local/cuda/include/cusparse.h "${CUDA_PATH:-/usr/local/cuda}/include/cusparse.h" \
    .venv/lib/python3*/site-packages/nvidia/*/include/cusparse.h; do
    if [ -f "$header" ]; then return 0; fi
  done
  echo "setup: cuSPARSE into .venv"
  timeout 120 .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 15 --no-deps \
    --requirement tests/requirements-cusparse.txt 2>/dev/null ||
    echo "setup: pip could not install tests/requirements-cusparse.txt; the cuSPARSE path will not be built."
}

# Other libraries, for the interop tests that compare with them. If they are not installed after five minutes, CI goes on
# and these tests are counted as skipped. The pinned PyTorch is the build without CUDA; no index replaces it by the large one.
install_interop_packages() {
  if has_packages tests/requirements-interop.txt; then return 0; fi
  echo "setup: PyTorch, transformers, attn_gym, matplotlib into .venv"
  local pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 15)
  local index=() code=0
  timeout 30 "${pip[@]}" --dry-run --no-deps "$(grep '^torch==' tests/requirements-interop.txt)" >/dev/null 2>&1 ||
    index=(--extra-index-url https://download.pytorch.org/whl/cpu)
  timeout 270 "${pip[@]}" "${index[@]}" --requirement tests/requirements-interop.txt 2>/dev/null || code=$?
  [ $code -ne 0 ] || return 0
  echo "setup: pip could not install tests/requirements-interop.txt; tests against PyTorch and the others will skip."
  # An interrupted installation may leave a package incomplete.
  if [ $code -eq 124 ]; then
    rm -rf .venv/lib/python*/site-packages/{torch,torchgen,functorch,transformers,attn_gym,matplotlib}{,-*.dist-info}
  fi
}

install_packages
install_python_packages
if [ "$stage" = wheel ]; then install_wheel_packages; fi
if [ "$stage" = docs ]; then install_docs_packages; fi
case $stage in tests | ci | benchmarks) install_cusparse ;; esac
case $stage in ci | docs) install_interop_packages ;; esac
if [ "$stage" = benchmarks ]; then install_benchmark_packages; fi
