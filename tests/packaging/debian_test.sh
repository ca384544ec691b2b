#!/usr/bin/env bash
# The Debian packages on a bare Debian 12: installed by apt, then the README's program builds and runs by find_package and by
# pkg-config, and the programs run; without them, the wheel. Usage: debian_test.sh SOURCE_DIR FOLDER_OF_PACKAGES [WHEEL]
# Exit code 77: skipped
set -euo pipefail
source=$(realpath "$1") packages=$(realpath "$2") wheel=${3:-}
# shellcheck source=tests/packaging/bare_root.sh
. "$source/tests/packaging/bare_root.sh"
bare_needs
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT
root=$scratch/root
bare_root "$root"

mkdir "$root/packages" "$root/mine"
cp "$packages"/*.deb "$root/packages"
cp "$source/samples/01_first/main.cpp" "$source/tests/packaging/gdb/printed.cpp" "$root/mine"
awk '/^```cmake$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" >"$root/mine/CMakeLists.txt"
# shellcheck disable=SC2016
bare_run "$root" sh -ec '
  apt-get -qq update
  cd /packages
  apt-get -qq install ./libsherd[0-9]*.deb ./libsherd-dev_*.deb >/dev/null
  apt-get -qq install g++ cmake ninja-build pkg-config >/dev/null
  cd /mine
  cmake -G Ninja -B build >/dev/null
  cmake --build build
  build/mine >by_find_package.txt
  c++ -std=c++20 -O2 main.cpp $(pkg-config --cflags --libs sherd) -o by_pkg_config
  ./by_pkg_config >by_pkg_config.txt'
diff "$source/samples/01_first/expected_output.txt" "$root/mine/by_find_package.txt"
diff "$source/samples/01_first/expected_output.txt" "$root/mine/by_pkg_config.txt"
# The library of the package has no symbols that name the device's class.
bare_run "$root" sh -ec '
  apt-get -qq install gdb >/dev/null
  c++ -std=c++20 -g -O0 mine/printed.cpp -lsherd -o mine/printed
  gdb -nx -batch -ex "break stop" -ex run -ex "print tensor" mine/printed' >"$scratch/gdb.txt" 2>&1
grep -qF ' = f32[2, 4] on device {1.5, 1.5' "$scratch/gdb.txt" || { cat "$scratch/gdb.txt"; exit 1; }
# shellcheck disable=SC2016
bare_run "$root" sh -ec '
  apt-get -qq install ./packages/sherd-tools_*.deb >/dev/null
  train_gpt --version
  train_gpt --steps 20 --ranks 2 --quiet
  sherd plan --preset llama3-8b --hardware h100 >/dev/null
  apt-get -qq remove sherd-tools libsherd-dev libsherd[0-9] >/dev/null'
if [ -n "$wheel" ]; then
  cp "$wheel" "$root/packages"
  libraries=$(sed -nE 's/^    apt install (libdnnl2 [a-z0-9 ]*) .*/\1/p' "$source/docs/install.md")
  bare_run "$root" sh -ec "
    apt-get -qq autoremove >/dev/null
    apt-get -qq install $libraries python3-venv python3-numpy python3-xxhash >/dev/null
    python3 -m venv --system-site-packages /venv
    /venv/bin/pip -q install --no-index --no-deps /packages/sherd-*.whl
    cd /mine
    /venv/bin/python -m sherd train_gpt --steps 20 --ranks 2 --quiet --save run
    /venv/bin/python -c 'import sherd; assert sherd.load_checkpoint(\"run\").step == 20'"
  echo "debian: the wheel installed and run by its Python"
fi
echo "debian: installed, built by find_package and pkg-config, run, removed"
