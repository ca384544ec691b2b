#!/usr/bin/env bash
# Under `sherd run` a random rank's process is killed: the run comes back from its newest checkpoint, and ends with the
# bits of an undisturbed run resumed from that checkpoint, on the same number of ranks, and on fewer.
#   elastic_run_test.sh TRAIN_GPT SHERD [MPIRUN]
# 77 (skipped, and says so) where Open MPI is missing. ELASTIC_SEED=N kills as an earlier test did.
set -uo pipefail
train_gpt=$1
sherd=$2
mpirun=${3:-$(command -v mpirun)}
if [[ -z $mpirun || ! -x $mpirun ]] || ! [[ $("$mpirun" --version 2>&1) =~ (Open MPI|OpenRTE)\)\ 4 ]]; then
  echo "SKIPPED: mpirun of Open MPI 4 is missing; install openmpi-bin to test sherd run" >&2
  exit 77
fi
RANDOM=${ELASTIC_SEED:=$RANDOM}
echo "ELASTIC_SEED=$ELASTIC_SEED"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

seq 1 4000 | awk '{ x = (x * 1103515245 + 12345) % 2147483648; printf "%s%s", substr("theofandtoinisit", x % 13 + 1, 3), $1 % 9 ? " " : "\n" }' \
  >"$scratch/text"
model=(--data "$scratch/text" --dim 16 --layers 1 --heads 2 --seq 16 --batch 12 --seed 5 --threads 1 --quiet
  --optimizer muon --strategy zero3 --measure-peak false)

# Processes below $1 that run train_gpt.
ranks_below() {
  local child
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    [[ $(readlink "/proc/$child/exe") == "$(readlink -f "$train_gpt")" ]] && echo "$child"
    ranks_below "$child"
  done
}

# Prints the last line of each step behind $2: a restart repeats some.
losses() {
  grep -oE '"step": [0-9]+, "loss": [^,]*' "$1" |
    awk -F'[ ,]+' -v from="$2" '$2 > from { last[$2] = $0 } END { for (s in last) print last[s] }' | sort -k2,2n
}

# comes_back NAME RANKS_AFTER SHERD_RUN_FLAGS...
comes_back() {
  local name=$1 after=$2 folder=$scratch/$1 job victims victim step until i steps=160 code=0
  shift 2
  # A machine that does other things may be so late that the run is over before it is struck: then it gets more steps.
  for (( ; ; steps *= 4)); do
    rm -rf "$folder"*
    "$sherd" run --mpirun "$mpirun" --grace 60 "$@" -- "$train_gpt" "${model[@]}" --steps $steps --comm mpi --save "$folder" \
      --save-every 20 --async-save --metrics "$folder.metrics" --export-weights "$folder.weights" \
      >"$folder.out" 2>"$folder.err" </dev/null &
    job=$!
    # Somewhere between the first checkpoint and the middle, whatever the machine's speed.
    until=$((25 + RANDOM % 60))
    for ((i = 0; i < 20000; ++i)); do
      [[ -e $folder/latest && $(grep -c '"step": ' "$folder.metrics" 2>/dev/null) -ge $until ]] && break
      kill -0 $job 2>/dev/null || break
      sleep 0.02
    done
    mapfile -t victims < <(ranks_below $job)
    victim=
    ((${#victims[@]} == 0)) || victim=${victims[RANDOM % ${#victims[@]}]}
    [[ -z $victim ]] || kill -KILL "$victim" 2>/dev/null
    wait $job
    code=$?
    [[ $code == 0 && $steps -lt 40000 && $(grep -c 'start . of' "$folder.err") == 1 ]] || break
    echo "$name: all $steps steps were done before a rank was killed: once more"
  done
  [[ $code == 0 ]] || { fail "$name: exit code $code: $(tail -8 "$folder.err")"; return; }
  grep -q "start 2 of at most 4: $after ranks, from step [1-9][0-9]*, because rank . (process $victim on .*) was killed by signal 9" \
    "$folder.err" || fail "$name: says $(grep 'sherd run:' "$folder.err")"
  [[ $(grep -c 'start . of' "$folder.err") == 2 ]] || fail "$name: $(grep -c 'start . of' "$folder.err") starts, not 2"
  step=$(sed -n 's/.*start 2 .*from step \([0-9]*\),.*/\1/p' "$folder.err")
  timeout -k 5 300 "$train_gpt" "${model[@]}" --steps $steps --ranks "$after" --resume "$(printf '%s/step_%08d' "$folder" "$step")" \
    --metrics "$folder.clean.metrics" --export-weights "$folder.clean" >"$folder.clean.out" 2>&1 ||
    fail "$name: a clean resume: exit code $?: $(tail -5 "$folder.clean.out")"
  cmp "$folder.weights" "$folder.clean" >&2 || fail "$name: weights are not those of a clean resume from step $step"
  cmp <(losses "$folder.clean.metrics" "$step") <(losses "$folder.metrics" "$step") >&2 || fail "$name: losses differ"
  echo "$name: $(grep -o 'start 2.*' "$folder.err"); the bits of a clean resume"
}

comes_back same 3 --nproc 3
comes_back fewer 2 --nproc 3 --shrink

# A run that ends for good, saved, though something is wrong with it: another start would find less wrong, and end well.
# skips WORDS...: these words before train_gpt's.
skips() {
  local code=0
  rm -rf "$scratch/wrong"
  timeout -k 5 300 "$@" "$train_gpt" "${model[@]}" --comm auto --optimizer adamw --lr 1e6 --max-skipped-steps 4 --steps 12 \
    --save "$scratch/wrong" >"$scratch/wrong.out" 2>&1 </dev/null || code=$?
  if [[ $code != 1 || ! -e $scratch/wrong/latest ]] || ! grep -q 'training ended, but' "$scratch/wrong.out"; then
    fail "a run of skipped steps ($*): exit code $code: $(tail -5 "$scratch/wrong.out")"
  fi
}
skips env
skips "$sherd" run --mpirun "$mpirun" --nproc 2 --
said=$(grep 'sherd run:' "$scratch/wrong.out")
[[ $(grep -c 'start . of' <<<"$said") == 1 && $said == *"aborted: "*"ended with exit code 3"* ]] ||
  fail "a run of skipped steps is started again: $said"
echo "a run of skipped steps: ${said##*$'\n'}"

# Two runs in one folder: the second fails with an error that names the first, before it trains.
"$train_gpt" "${model[@]}" --ranks 1 --steps 1000000 --save "$scratch/shared" --save-every 1 >"$scratch/first.out" 2>&1 &
first=$!
for ((i = 0; i < 6000; ++i)); do
  [[ -e $scratch/shared/latest ]] && break
  sleep 0.05
done
said=$(timeout -k 5 300 "$train_gpt" "${model[@]}" --ranks 1 --steps 1 --save "$scratch/shared" --resume "$scratch/shared" 2>&1)
code=$?
kill -KILL $first
wait $first 2>/dev/null
[[ $code == 1 && $said == *"another run saves there"*"process $first on"*train_gpt* ]] ||
  fail "the second run in a folder: exit code $code: $said"

if ((failures > 0)); then
  echo "$failures failures" >&2
  exit 1
fi
echo "all well"
