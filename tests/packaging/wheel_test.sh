#!/usr/bin/env bash
# Makes the wheel, installs it in a virtual environment of its own and uses it. Usage: wheel_test.sh SOURCE_DIR [WHEEL]
# Exit code 77: skipped, what it needs cannot be installed
set -euo pipefail
source=$(realpath "$1") wheel=${2:-}
[ -z "$wheel" ] || wheel=$(realpath "$wheel")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
cd "$scratch"
export PATH=$scratch/venv/bin:$PATH
pip -q install numpy xxhash || { echo "SKIPPED: NumPy cannot be installed"; exit 77; }
if [ -z "$wheel" ]; then
  pip -q wheel --no-deps -w "$scratch" "$source"
  wheel=$(echo "$scratch"/sherd-*.whl)
fi
pip -q install "$wheel"
python -m sherd train_gpt --steps 20 --quiet
train_gpt --version
sherd layout --help >/dev/null
python "$source/tests/packaging/python_test.py"
prefix=$(python -c 'import pathlib, sherd; print(pathlib.Path(sherd.__file__).parent)')
cmake -G Ninja -S "$source/packaging/conan/test_package" -B first -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build first >/dev/null
first/first | diff "$source/samples/01_first/expected_output.txt" -
echo "wheel: installed, run, sample built and run"
