#!/usr/bin/env bash
# bash tools/docs.sh [--check]
#
# Builds the documentation site in build/docs/html: the pages of the repository, and the C++ and Python reference. A
# warning fails it: a broken link or anchor, a public name that the site lacks, a page that no index names. What it needs
# is installed first (tools/setup.sh docs); nothing of FDMA is compiled. Two minutes on one core.
# fdma.nn and fdma.hf import PyTorch, so that it has to be there.
#
#   --check    only looks at links, anchors and code blocks of the pages: seconds, and only Python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  '') ;;
  --check) exec python3 tools/docs/page_check.py ;;
  *)
    echo "docs.sh: expected '--check' or nothing, got '$1'" >&2
    exit 2
    ;;
esac

bash tools/setup.sh docs
# Sphinx gives no warnings for pages that it takes from its cache, so the cache is removed.
rm -rf build/docs/html build/docs/doctrees
mkdir -p build/docs
.venv/bin/python -m sphinx --conf-dir tools/docs --builder html --doctree-dir build/docs/doctrees --jobs auto \
  --fail-on-warning --keep-going --quiet . build/docs/html
echo "docs: build/docs/html/index.html"
