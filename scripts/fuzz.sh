#!/usr/bin/env bash
# Fuzzes the readers of manifests, safetensors files, messages to a job's store, tokenizers, configurations, settings in
# checkpoints, token files and patterns of names with clang's libFuzzer, address and undefined sanitizers. Usage: scripts/fuzz.sh [RUNS of each target, 200000] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-200000}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(fuzz_manifest fuzz_safetensors fuzz_store fuzz_tokenizer fuzz_config fuzz_settings fuzz_tokens fuzz_pattern)
scripts/install_deps.sh clang libclang-rt-dev llvm  # llvm: names in the traces of crashes

build=build/fuzz
cmake -S tests/fuzz -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
cmake --build "$build" --target make_seeds "${targets[@]}"
rm -rf "$build/corpus"
"$build/make_seeds" "$build/corpus"

# Inputs have at most 4 KiB: no allocation may pass 1 MiB, and all memory (most of it the sanitizer's own) 512 MiB. A
# tokenizer has a table with an entry for each of its numbers, which may be 65,536 above the count of its tokens.
export ASAN_OPTIONS=quarantine_size_mb=16
fuzz() {
  local target=$1 allocation=1 log=$build/$1.log dictionary=()
  [ "$target" != fuzz_tokenizer ] || allocation=16
  [ ! -f "tests/fuzz/$target.dict" ] || dictionary=("-dict=tests/fuzz/$target.dict")
  if ! "$build/$target" -seed=1 -runs="$runs" -max_len=4096 -malloc_limit_mb="$allocation" -rss_limit_mb=512 -timeout=10 \
    -artifact_prefix="$build/" "${dictionary[@]}" "$build/corpus/$target" >"$log" 2>&1; then
    tail -60 "$log"
    echo "fuzz: $target failed; the input is named above, the whole log is $log" >&2
    return 1
  fi
  grep '^Done' "$log"
  echo "fuzz: $target $runs executions, 0 crashes"
}

# One on each processor at a time; the first that fails ends the others.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
left=${#targets[@]}
for target in "${targets[@]}"; do
  fuzz "$target" &
  [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] && continue
  wait -n
  left=$((left - 1))
done
for ((; left > 0; --left)); do wait -n; done
