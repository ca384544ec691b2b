#!/usr/bin/env bash
# A zero3 step over MPI beside the same step with threads: two ranks of one thread each, runs in turn on this machine, medians.
# The goal is at most 1.15 times as long: gathers and reductions run while the ranks compute.
#   scripts/mpi_overlap.sh [ROUNDS]        BUILD: where train_gpt lies (build/release/bin); DIM (512), LAYERS (8)
# OUT: a folder for mpi.svg and local.svg, which draw two steps of each (--timeline). Means nothing while other work runs.
set -euo pipefail
export LC_ALL=C  # sort and printf take a decimal point
cd "$(dirname "$0")/.."
rounds=${1:-5} train_gpt=${BUILD:-build/release/bin}/train_gpt
[[ -x $train_gpt ]] || { echo "mpi_overlap.sh: $train_gpt is missing: build it, or set BUILD to its folder" >&2; exit 2; }
command -v mpirun >/dev/null || { echo "mpi_overlap.sh: mpirun is missing; install openmpi-bin" >&2; exit 2; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
seq 1 20000 | awk '{ printf "%d is more than %d. ", $1, $1 - 1 }' >"$scratch/text"

# run local|mpi FLAG...: adds the times of its steps past the third, in ms.
run() {
  local how=$1 start=()
  shift
  [[ $how == local ]] || start=(mpirun --oversubscribe --bind-to none -n 2)
  rm -f "$scratch/metrics"
  "${start[@]}" "$train_gpt" --comm "$how" --ranks 2 --threads 1 --strategy zero3 --data "$scratch/text" --dim "${DIM:-512}" \
    --layers "${LAYERS:-8}" --heads 8 --seq 128 --batch 8 --steps 8 --measure-peak false --metrics "$scratch/metrics" --quiet "$@"
  grep -oE '"step_ms": *[0-9.]+' "$scratch/metrics" | grep -oE '[0-9.]+$' | tail -n +4 >>"$scratch/$how"
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

for ((i = 0; i < rounds; ++i)); do
  for how in local mpi; do
    timeline=()
    if [[ -n ${OUT:-} ]]; then mkdir -p "$OUT" && timeline=(--timeline "$OUT/$how.svg"); fi
    run $how "${timeline[@]}"
  done
done
local_ms=$(median "$scratch/local") mpi_ms=$(median "$scratch/mpi")
printf 'd %s, %s blocks, 2 ranks of 1 thread, zero3, AdamW; medians of %s steps in %s runs in turn; load %s\n' "${DIM:-512}" \
  "${LAYERS:-8}" "$(wc -l <"$scratch/local")" "$rounds" "$(cut -d ' ' -f 1 /proc/loadavg)"
awk -v l="$local_ms" -v m="$mpi_ms" 'BEGIN { printf "threads %.1f ms, processes over MPI %.1f ms: %.3f times (goal: at most 1.15)\n", l, m, m / l }'
