#!/usr/bin/env bash
# Executes vcpkg's overlay port in CMake's script mode, and builds and runs the first sample with the result.
# Usage: vcpkg_test.sh SOURCE_DIR
set -euo pipefail
source=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake -DPORT_FOLDER="$source/packaging/vcpkg/ports/sherd" -DWORK="$scratch" -P "$source/tests/packaging/vcpkg/run_port.cmake"
cmake -G Ninja -S "$source/packaging/conan/test_package" -B "$scratch/first" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$scratch/packages" >/dev/null
cmake --build "$scratch/first" >/dev/null
"$scratch/first/first" | diff "$source/samples/01_first/expected_output.txt" -
echo "vcpkg: port executed, sample built and run"
