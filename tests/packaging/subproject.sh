#!/usr/bin/env bash
# Configures a project that has sherd as a part; with --build also builds it and compares what its program prints.
# Usage: subproject.sh SOURCE_DIR C++_COMPILER [--build [CMAKE_ARGUMENTS...]]
set -euo pipefail
source=$(realpath "$1") compiler=$2 build=${3:-}
shift $(($# < 3 ? $# : 3))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A program by the name of nvcc: CUDA is built where it is asked for alone.
mkdir "$scratch/bin" && printf '#!/bin/sh\necho "nvcc was called" >&2\nexit 1\n' >"$scratch/bin/nvcc" && chmod +x "$scratch/bin/nvcc"
PATH=$scratch/bin:$PATH CUDACXX=$scratch/bin/nvcc \
  cmake -S "$source/tests/packaging/subproject" -B "$scratch" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DSHERD_SOURCE="$source" ${build:+-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1} "$@" >/dev/null
installs=$(cat "$scratch"/{,_deps/sherd-build/}cmake_install.cmake)
! grep 'file(INSTALL' <<<"$installs" || { echo "sherd installs files of another project (above)"; exit 1; }
grep -q '^SHERD_CUDA:BOOL=OFF$' "$scratch/CMakeCache.txt" || { echo "SHERD_CUDA is not OFF in another project"; exit 1; }
! grep '^CMAKE_CUDA_COMPILER' "$scratch/CMakeCache.txt" || { echo "sherd looked for nvcc in another project (above)"; exit 1; }
echo "subproject: configured"
[ -n "$build" ] || exit 0
cmake --build "$scratch" --target first
"$scratch/first" | diff "$source/samples/01_first/expected_output.txt" -
echo "subproject: built and run"
