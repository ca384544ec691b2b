#!/usr/bin/env bash
# Preempts a training run again and again, at random instants, and resumes it each time; in the end its losses, norms and
# weights must be those, bit by bit, of an uninterrupted run. Prints a tally; exit code 1 for any difference.
#   scripts/preempt.sh [N [TRAIN_GPT [FLAGS...]]]
# N signals (50), SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 in turn; the program of the release preset by default; further flags go to
# every run ("--ranks 4 --strategy zero3 --optimizer muon" by default). SEED=N draws other instants.
set -uo pipefail
cd "$(dirname "$0")/.."
wanted=${1:-50}
train_gpt=${2:-build/release/bin/train_gpt}
shift $(($# < 2 ? $# : 2))
flags=("$@")
((${#flags[@]} > 0)) || flags=(--ranks 4 --strategy zero3 --optimizer muon)
[[ -x $train_gpt ]] || { echo "preempt.sh: no program $train_gpt; build it, or name another" >&2; exit 2; }
RANDOM=${SEED:-1}
set -m  # a shell without job control starts background jobs with SIGINT ignored, and the program keeps to that
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
model=(--dim 32 --layers 2 --heads 2 --seq 32 --batch 8 --threads 1 --seed 3 --measure-peak false --quiet "${flags[@]}")
signals=(TERM INT USR1 USR2)

figures() { grep -oE '"(step|loss|grad_norm|num_zeros)": [^,}]*' "$1"; }
steps_of() { if [[ -f $1 ]]; then grep -c '"step":' "$1"; else echo 0; fi; }

# The number of steps depends on the signals: it is known when the last signal has come.
stops=0 wrong=0 shown=0 longest=0
resume=()
while ((stops < wanted)); do
  "$train_gpt" "${model[@]}" --steps 1000000 --metrics "$scratch/metrics" --save "$scratch/run" --keep 2 "${resume[@]}" \
    >"$scratch/out" 2>&1 &
  run=$!
  before=$(steps_of "$scratch/metrics")
  while kill -0 $run 2>/dev/null && (($(steps_of "$scratch/metrics") <= before)); do sleep 0.01; done
  sleep "0.$(printf %03d $((RANDOM % 200)))"
  name=${signals[stops % ${#signals[@]}]}
  begin=$(date +%s%N)
  kill -s "$name" $run
  wait $run
  code=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  ((took > longest)) && longest=$took
  stops=$((stops + 1))
  step=$(steps_of "$scratch/metrics")
  latest=$(cat "$scratch/run/latest")
  if ((code != 0)) || [[ $latest != $(printf 'step_%08d' "$step") ]]; then
    echo "stop $stops (SIG$name): exit code $code, step $step in the metrics, latest is $latest: $(tail -3 "$scratch/out")" >&2
    wrong=$((wrong + 1))
  fi
  ((step <= shown)) && { echo "stop $stops: no step further than $shown" >&2; wrong=$((wrong + 1)); }
  shown=$step
  resume=(--resume "$scratch/run")
done

last=$((shown + 3))
"$train_gpt" "${model[@]}" --steps $last --metrics "$scratch/metrics" --resume "$scratch/run" \
  --export-weights "$scratch/stopped.weights" || wrong=$((wrong + 1))
"$train_gpt" "${model[@]}" --steps $last --metrics "$scratch/whole" --export-weights "$scratch/whole.weights" ||
  wrong=$((wrong + 1))
same=yes
cmp <(figures "$scratch/metrics") <(figures "$scratch/whole") >&2 || same=no
cmp "$scratch/stopped.weights" "$scratch/whole.weights" >&2 || same=no
[[ $same == yes ]] || wrong=$((wrong + 1))
echo "$stops signals, $last steps, longest time from a signal to the end $longest ms; same bits as the run that nobody" \
  "stopped: $same; $wrong wrong"
((wrong == 0))
