#!/usr/bin/env bash
# libtorch_gpt as processes that mpirun starts has the bits of as many threads: losses, norms and weights;
# threads resume a checkpoint of processes, and the reverse.
#   libtorch_mpi_test.sh BIN_FOLDER DATA_FOLDER [MPIRUN]
# 77 (skipped, and says so) where mpirun is missing.
set -uo pipefail
program=$1/libtorch_gpt data=$2
source "$(dirname "$0")/../programs/runs/mpi_environment.sh" "${3:-}"
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
cd "$scratch" || exit 1

model=(--data "$data" --dim 36 --layers 3 --heads 4 --seq 24 --batch 12 --lr 0.003 --quiet --threads 1)
# train NAME local|mpi RANKS FLAGS...: leaves NAME.figures and NAME.weights.
train() {
  local name=$1 comm=$2 ranks=$3 command
  shift 3
  command=("$program" "${model[@]}" --comm "$comm" --metrics "$name.metrics" --export-weights "$name.weights" "$@")
  if [[ $comm == mpi ]]; then command=("$mpirun" -n "$ranks" "${command[@]}"); else command+=(--ranks "$ranks"); fi
  timeout -k 5 300 "${command[@]}" >"$name.out" 2>&1 </dev/null || fail "$name: exit code $?: $(tail -5 "$name.out")"
  grep -oE '"(step|loss|grad_norm)":[^,}]*' "$name.metrics" >"$name.figures" || fail "$name has no metrics"
}
# alike ONE OTHER
alike() {
  cmp "$1.figures" "$2.figures" >&2 || fail "$1 and $2: figures differ"
  cmp "$1.weights" "$2.weights" >&2 || fail "$1 and $2: weights differ"
}

for ranks in 2 4; do
  for way in "--optimizer muon --strategy zero3 --recompute blocks" "--optimizer adamw --strategy zero2 --grad-accum 3"; do
    [[ $ranks == 4 && $way == *accum* ]] && way="--optimizer adamw --strategy zero0 --replicas 2"
    read -ra flags <<<"$way --steps 6"
    train threads local $ranks "${flags[@]}"
    train processes mpi $ranks "${flags[@]}"
    alike threads processes
  done
done
train whole local 2 --steps 8 --optimizer muon
train first mpi 2 --steps 4 --optimizer muon --save saved
train rest local 2 --steps 8 --optimizer muon --resume saved
cmp whole.weights rest.weights || fail "threads do not go on from what processes saved"
train first local 2 --steps 4 --optimizer muon --save saved_by_threads
train rest mpi 2 --steps 8 --optimizer muon --resume saved_by_threads
cmp whole.weights rest.weights || fail "processes do not go on from what threads saved"
exit $((failures > 0))
