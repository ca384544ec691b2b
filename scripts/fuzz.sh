#!/usr/bin/env bash
# Fuzzes the readers of manifests, safetensors files and messages to a job's store with clang's libFuzzer, address and
# undefined sanitizers. Usage: scripts/fuzz.sh [RUNS of each target, 200000] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-200000}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(fuzz_manifest fuzz_safetensors fuzz_store)
scripts/install_deps.sh clang libclang-rt-dev llvm  # llvm: names in the traces of crashes

build=build/fuzz
cmake -S tests/fuzz -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
cmake --build "$build" --target make_seeds "${targets[@]}"
rm -rf "$build/corpus"
"$build/make_seeds" "$build/corpus"

# Inputs have at most 4 KiB: no allocation may pass 1 MiB, and all memory (most of it the sanitizer's own) 512 MiB.
export ASAN_OPTIONS=quarantine_size_mb=16
for target in "${targets[@]}"; do
  dictionary=()
  [ -f "tests/fuzz/$target.dict" ] && dictionary=("-dict=tests/fuzz/$target.dict")
  log=$build/$target.log
  if ! "$build/$target" -seed=1 -runs="$runs" -max_len=4096 -malloc_limit_mb=1 -rss_limit_mb=512 -timeout=10 \
    -artifact_prefix="$build/" "${dictionary[@]}" "$build/corpus/$target" >"$log" 2>&1; then
    tail -60 "$log"
    echo "fuzz: $target failed; the input is named above, the whole log is $log" >&2
    exit 1
  fi
  grep '^Done' "$log"
  echo "fuzz: $target $runs executions, 0 crashes"
done
