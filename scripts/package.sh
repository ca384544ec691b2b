#!/usr/bin/env bash
# Builds the Debian packages and the archive in build/package/packages (docs/install.md). Arguments go to CMake:
# scripts/package.sh -DSHERD_MPI=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_deps.sh dpkg-dev file help2man
cmake --preset release -B build/package -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_PREFIX=/usr \
  -DCMAKE_CUDA_ARCHITECTURES="80;90" -DSHERD_TESTS=OFF -DSHERD_BENCH=OFF -DSHERD_SAMPLES=OFF -DSHERD_WERROR=OFF "$@" >/dev/null
cmake --build build/package
rm -rf build/package/packages
cpack --config build/package/CPackConfig.cmake
rm -rf build/package/packages/_CPack_Packages
