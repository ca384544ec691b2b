#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests. Usage: scripts/test.sh [preset] [ctest arguments...]
# Presets: release (default), debug, asan, tsan. TARGETS="..." builds those alone.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
[ $# -gt 0 ] && shift
scripts/install_deps.sh
cmake --preset "$preset" >/dev/null
read -ra targets <<<"${TARGETS:-all}"
cmake --build --preset "$preset" --target "${targets[@]}"
ctest --preset "$preset" -j "$(($(nproc) + 1))" "$@"  # tests wait now and then
