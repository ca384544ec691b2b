#!/usr/bin/env bash
# One process of a job gets SIGTERM: all end after the same step, saved, with exit code 0, and the resumed job has the bits
# of an uninterrupted one.
#   mpi_stop_test.sh TRAIN_GPT [MPIRUN]
# 77 (skipped, and says so) where mpirun is missing.
set -uo pipefail
train_gpt=$1
source "$(dirname "$0")/mpi_environment.sh" "${2:-}"
job=
fail() {
  echo "FAILED: $*" >&2
  [[ -z $job ]] || kill "$job" 2>/dev/null
  exit 1
}
seq 1 4000 | awk '{ printf "%s%s", substr("theofandtoinisit", $1 * 7 % 13 + 1, 3), $1 % 9 ? " " : "\n" }' >"$scratch/text"
model=(--data "$scratch/text" --dim 36 --layers 2 --heads 4 --seq 24 --batch 12 --seed 5 --threads 1 --quiet
  --optimizer muon --measure-peak false)
figures() { grep -oE '"(step|loss|grad_norm)": [^,}]*' "$1"; }

timeout -k 5 500 "$mpirun" -n 3 sh -c 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$scratch/pid" "$train_gpt" "${model[@]}" \
  --comm mpi --steps 1000000 --grace 300 --metrics "$scratch/metrics" --save "$scratch/run" >"$scratch/out" 2>&1 </dev/null &
job=$!
# Only a job that trains takes the signal: before, it has no handler yet. A busy machine may need minutes to come there.
trains() { [[ -f $scratch/metrics ]] && (($(grep -c '"step":' "$scratch/metrics") >= 3)); }
for ((i = 0; i < 3000; ++i)); do
  trains && break
  kill -0 $job 2>/dev/null || break
  sleep 0.1
done
trains || fail "the job does not train: $(tail -5 "$scratch/out")"
kill -TERM "$(cat "$scratch/pid.1")"
wait $job || fail "exit code $?: $(tail -5 "$scratch/out")"
step=$(grep -c '"step":' "$scratch/metrics")
[[ $(cat "$scratch/run/latest") == $(printf 'step_%08d' "$step") ]] ||
  fail "latest is $(cat "$scratch/run/latest"), the metrics end with step $step"
timeout -k 5 120 "$mpirun" -n 3 "$train_gpt" "${model[@]}" --comm mpi --steps $((step + 4)) --metrics "$scratch/metrics" \
  --resume "$scratch/run" || fail "the resumed job"
timeout -k 5 120 "$train_gpt" "${model[@]}" --ranks 3 --steps $((step + 4)) --metrics "$scratch/whole" || fail "threads"
cmp <(figures "$scratch/metrics") <(figures "$scratch/whole") || fail "other bits than a run that nobody stopped"
echo "stopped by one of three processes after step $step, resumed: the same bits"
