#!/usr/bin/env bash
# Configures a project that has sherd as a part; with --build also builds it and compares what its program prints.
# Usage: subproject.sh SOURCE_DIR C++_COMPILER [--build [CMAKE_ARGUMENTS...]]
set -euo pipefail
source=$(realpath "$1") compiler=$2 build=${3:-}
shift $(($# < 3 ? $# : 3))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake -S "$source/tests/packaging/subproject" -B "$scratch" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DSHERD_SOURCE="$source" -DSHERD_CUDA=OFF ${build:+-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1} "$@" >/dev/null
installs=$(cat "$scratch"/{,_deps/sherd-build/}cmake_install.cmake)
! grep 'file(INSTALL' <<<"$installs" || { echo "sherd installs files of another project (above)"; exit 1; }
echo "subproject: configured"
[ -n "$build" ] || exit 0
cmake --build "$scratch" --target first
"$scratch/first" | diff "$source/samples/01_first/expected_output.txt" -
echo "subproject: built and run"
