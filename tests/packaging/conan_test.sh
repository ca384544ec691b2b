#!/usr/bin/env bash
# Makes and tests the Conan package, static and shared, in a Conan home and a virtual environment of its own.
# Usage: conan_test.sh SOURCE_DIR     Exit code 77: skipped, Conan cannot be installed
set -euo pipefail
source=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" -q install conan || { echo "SKIPPED: Conan cannot be installed"; exit 77; }
export CONAN_HOME=$scratch/home TMPDIR=$scratch PATH=$scratch/venv/bin:$PATH
conan profile detect >/dev/null 2>&1
for shared in False True; do
  conan create "$source/packaging/conan" --no-remote -o "sherd/*:shared=$shared" -s compiler.cppstd=20 \
    -c tools.cmake.cmaketoolchain:generator=Ninja -c tools.cmake.cmaketoolchain:user_presets= \
    -c "tools.cmake.cmake_layout:test_folder=\$TMP" >"$scratch/log" 2>&1 || { tail -50 "$scratch/log"; exit 1; }
  echo "conan: shared=$shared made, sample built and run"
done
