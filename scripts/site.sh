#!/usr/bin/env bash
# Builds the static site in build/site: pages by MkDocs, the installed headers by Doxygen in build/site/api. Warnings are errors.
# Usage: scripts/site.sh [serve]     serve: shows pages on a local port and rebuilds changed ones
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_deps.sh doxygen python3-venv
venv=build/site-venv
if [ ! -x $venv/bin/mkdocs ]; then
  python3 -m venv $venv
  $venv/bin/pip -q install "mkdocs-material<10" "mkdocs<2"
fi
export NO_MKDOCS_2_WARNING=1
[ "${1:-}" != serve ] || exec $venv/bin/mkdocs serve
cmake --preset release -B build/site-api -DSHERD_TESTS=OFF -DSHERD_BENCH=OFF -DSHERD_SAMPLES=OFF -DSHERD_TOOLS=OFF -DSHERD_CUDA=OFF >/dev/null
cmake --build build/site-api --target docs >/dev/null
$venv/bin/mkdocs --quiet build --strict --clean
cp -r build/site-api/docs/html build/site/api
echo "site: build/site/index.html, $(find build/site -name '*.html' -not -path '*/api/*' | wc -l) pages"
