#!/usr/bin/env bash
# Installs the build tree into a scratch prefix, then builds and runs the consumer against it.
# Usage: run.sh BUILD_DIR C++_COMPILER [extra cmake arguments...]
set -euo pipefail
build=$1 compiler=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
"$here/public_headers.sh" "$scratch/prefix/include/sherd"
cmake -S "$here" -B "$scratch/build" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE=Release "$@" >/dev/null
cmake --build "$scratch/build"
"$scratch/build/consumer"
"$scratch/build/boundary"
[ ! -e "$scratch/build/consumer_torch" ] || "$scratch/build/consumer_torch"
