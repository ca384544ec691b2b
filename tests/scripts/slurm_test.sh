#!/usr/bin/env bash
# Jobs of a Slurm on this machine that are stopped: `sherd run` in the batch script, and train_gpt started by srun. Each save
# takes 4 s after the signal; each must be complete, and a requeued job resumes from it.
#   slurm_test.sh FOLDER_OF_TRAIN_GPT REPOSITORY
# Takes some two minutes, most of it for the time limit. 77 (skipped, and says so) where Slurm or root is missing.
# shellcheck disable=SC2317,SC2329  # wait_for calls functions
set -uo pipefail
bin=$(readlink -f "$1") root=$(readlink -f "$2")
if [[ -z ${SHERD_ONE_NODE:-} ]]; then KILL_WAIT=30 exec "$root/tests/scripts/slurm/one_node.sh" "$0" "$bin" "$root"; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -shared -fPIC -o "$work/slow.so" "$root/scripts/slow_fsync.c" -ldl || { echo "SKIPPED: cc is missing" >&2; exit 77; }
seq 1 2000 | awk '{ printf "%d is more than %d. ", $1, $1 - 1 }' >"$work/text"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_hwloc_base_binding_policy=none
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }

model=(--data "$work/text" --dim 16 --layers 1 --heads 2 --seq 16 --batch 8 --threads 1 --quiet --measure-peak false --steps 10000000)
# What a batch script has: `sherd run` in the script's own process, as the shell that Slurm sends SIGTERM would not wait for it;
# or srun, whose step does not end with the shell.
cat >"$work/run" <<END
#!/bin/bash
exec env LD_PRELOAD=$work/slow.so SLOW_FSYNC=\$1.slow "$bin/sherd" run --nproc 2 -- "$bin/train_gpt" --comm mpi ${model[*]} \
  --save "\$1" --metrics "\$1.metrics" \$([[ ! -e \$1/latest ]] || echo --resume "\$1")
END
cat >"$work/srun" <<END
#!/bin/bash
srun --mpi=pmix -n 2 env LD_PRELOAD=$work/slow.so SLOW_FSYNC=\$1.slow "$bin/train_gpt" --comm mpi ${model[*]} \
  --save "\$1" --metrics "\$1.metrics" \$([[ ! -e \$1/latest ]] || echo --resume "\$1")
END
last_step() { sed -n 's/^{"step": \([0-9]*\).*/\1/p' "$1.metrics" 2>/dev/null | tail -1; }
# submit NAME PROGRAM [OPTION...]: sets id and folder, and returns when the job trains
submit() {
  folder=$work/$1
  id=$(sbatch --parsable -n 2 --requeue --open-mode=append -o "$folder.out" "${@:3}" "$work/$2" "$folder")
  wait_for trains 0 || fail "$1: the job does not train: $(tail -5 "$folder.out")"
  touch "$folder.slow"
}
trains() { (($(last_step "$folder" || echo 0) > $1 + 2)) 2>/dev/null; }
# Slurm holds a requeued job for two minutes, from when its old processes have ended.
resumes() { scontrol update JobId="$id" StartTime=now 2>/dev/null; trains "$1"; }
is_over() { [[ -z $(squeue -h -j "$id" -t PD,R,CG,S 2>/dev/null) ]]; }
wait_for() {
  local i
  for ((i = 0; i < 1200; ++i)); do
    "$@" && return
    sleep 0.1
  done
  return 1
}
# expect_saved NAME: the newest checkpoint is the last step
expect_saved() {
  local step newest
  step=$(last_step "$folder") newest=$(cat "$folder/latest" 2>/dev/null)
  if [[ $newest == "$(printf 'step_%08d' "$step")" ]] && "$bin/sherd" ckpt verify "$folder" >/dev/null; then
    echo "$1: saved after step $step, $(scontrol show job "$id" | grep -oE '(JobState|ExitCode)=[^ ]*' | tr '\n' ' ')"
  else
    fail "$1: the newest checkpoint is ${newest:-missing}, the last step $step: $(tail -5 "$folder.out")"
  fi
}
# stopped NAME COMMAND...: the command stops the job
stopped() {
  "${@:2}"
  wait_for is_over || fail "$1: the job does not end"
  expect_saved "$1"
}

# The time limit, and a signal ahead of it: of all of them at once, since it takes a minute.
limits=()
for case in run run:B:USR1 srun srun:USR1; do
  ahead=()
  [[ $case != *:* ]] || ahead=("--signal=${case#*:}@20")
  submit "limit-$case" "${case%%:*}" -t 1 "${ahead[@]}"
  limits+=("$id $folder limit-$case")
  [[ $case != run:* ]] || { for limit in "${limits[@]}"; do read -r id folder name <<<"$limit"; stopped "$name" true; done; limits=(); }
done
for limit in "${limits[@]}"; do read -r id folder name <<<"$limit"; stopped "$name" true; done

for program in run srun; do
  submit "scancel-$program" $program
  stopped "scancel-$program" scancel "$id"
  submit "usr1-$program" $program
  to_batch_script=()
  [[ $program != run ]] || to_batch_script=(-b)  # otherwise to the steps alone
  stopped "usr1-$program" scancel "${to_batch_script[@]}" -s USR1 "$id"
  submit "requeue-$program" $program
  scontrol requeue "$id"
  wait_for [ -e "$folder/latest" ]
  expect_saved "requeue-$program"
  step=$(last_step "$folder")
  wait_for resumes "$step" || fail "requeue-$program: it does not resume: $(tail -5 "$folder.out")"
  stopped "requeued-$program" scancel "$id"
done
exit $failed
