#!/usr/bin/env bash
# bash tools/docs.sh [--check]
#
# Builds the documentation site in build/docs/html: the pages of the repository, and the C++ and Python reference. Every
# warning is a failure: a broken link or anchor, a public name that the site lacks, a page that no index names. The
# script first installs its packages (tools/setup.sh docs); it compiles nothing of FDMA. It takes two minutes on one core.
# PyTorch must be installed, because fdma.nn and fdma.hf import it.
#
#   --check    only checks links, anchors and code blocks of the pages; it takes seconds and needs only Python
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
