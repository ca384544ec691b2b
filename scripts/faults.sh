#!/usr/bin/env bash
# Faults at random instants in runs under MPI that `sherd run` looks after: does each come back, how fast, and with the
# bits of an undisturbed run resumed from the same checkpoint on the same ranks?
#   scripts/faults.sh [RUNS]                   (20)
#   scripts/faults.sh stops ['run/term-*/slow/*']   all stop signals once, or those whose case matches (scripts/faults_stop.sh)
#   BUILD=build/release RANKS=3 SEED=N LIMIT=120 KINDS="stopped network" scripts/faults.sh 100      (KINDS: those alone)
# A fault strikes one random rank (of RANKS), or all of the run, at a random instant after its first step, if nothing else is said:
#   killed    SIGKILL
#   keeper    SIGKILL of the rank's keeper (`sherd run --keep-rank`) in the first 1.2 s of the start, mostly before MPI_Init is done
#   stopped   SIGSTOP for ever: the others' waits time out (--comm-timeout), and it must never commit anything
#   delayed   SIGSTOP for less than that: nothing may happen at all
#   throws    it cannot open files any more, so its next save throws, with --save-failure stop
#   disk      the disk is full for two seconds (a small file system in memory, which only root can mount)
#   network   ranks on hosts of their own, which are network namespaces (scripts/hosts.sh, root only): the cable of its host
#             is pulled out for 8 s
#   requeued  the whole job is killed and started again as the same job (SLURM_JOB_ID) on another host name, on a file system
#             that says it is NFS (root, unshare, a C compiler)
#   exported  a rank is killed behind the export of the weights, when everything is saved and written
#   ctrl-c term-all term-twice usr1 hup reader script    a stop: SIGINT to the run and to `tee`, SIGTERM to every process, the same
#             twice in 50 ms, SIGUSR1 or SIGHUP to the program, the death of its log's reader, a script that starts the ranks
#   room      the disk is full from then until 20 s after the last step: the weights in memory must be saved in the end
# Prints a line for each run and a table: tried, hung, lost, and median and worst seconds from the fault to the next finished
# step. Exit code 1 when any hung or is lost.
#   hung      the ranks of the start that the fault struck have not all ended 10 s after the timeout (5 s) that follows the
#             fault, or no step was finished for LIMIT seconds
#   lost      it ended badly, or with other bits; it resumed an earlier checkpoint than the newest that was committed when
#             the fault struck; or a survivor did not say which rank failed or what did
set -uo pipefail
export LC_ALL=C  # sort and printf take a decimal point
cd "$(dirname "$0")/.." || exit 2
runs=${1:-20}
build=${BUILD:-build/release}
ranks=${RANKS:-3}
limit=${LIMIT:-120}
train_gpt=$(readlink -f "$build/bin/train_gpt") sherd=$(readlink -f "$build/bin/sherd")
if ! [[ $runs =~ ^([0-9]+|stops)$ && -x $train_gpt && -x $sherd ]]; then
  echo "usage: [BUILD=FOLDER] $0 [RUNS | stops [PATTERN]]; $build/bin must have train_gpt and sherd" >&2
  exit 2
fi
mpirun=$(command -v mpirun) || { echo "SKIPPED, ALL OF IT: mpirun is missing (apt-get install openmpi-bin)" >&2; exit 77; }
RANDOM=${SEED:=$RANDOM}
export SEED
# All of it among the hosts, where they can be: their processes have a namespace of their own, and are seen from here.
hosts=scripts/hosts.sh
if [[ $runs != stops && ! -e /run/sherd-hosts/count ]]; then
  why=$("$hosts" "$ranks" true 2>&1) && exec "$hosts" "$ranks" "$0" "$runs"
  echo "SKIPPED: cut networks: $why" >&2
fi
echo "seed $SEED; $runs runs of $ranks ranks; $limit s without a step is a hang"

scratch=$(mktemp -d)
mounted=
clean_up() {
  [[ -z $mounted ]] || umount -l "$scratch/disk"
  rm -rf "$scratch"
}
trap clean_up EXIT
mkdir "$scratch/disk"
kinds=(killed keeper stopped delayed throws exported)
if mount -t tmpfs -o size=64m tmpfs "$scratch/disk" 2>/dev/null; then
  mounted=yes
  kinds+=(disk room)
else
  echo "SKIPPED: full disks, for no file system can be mounted here (that takes root)" >&2
fi
[[ ! -e /run/sherd-hosts/count ]] || kinds+=(network)
cat >"$scratch/nfs.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/vfs.h>
int statfs(const char* path, struct statfs* s) {
  int (*real)(const char*, struct statfs*) = dlsym(RTLD_NEXT, "statfs");
  int result = real(path, s);
  if (strncmp(path, BELOW, sizeof BELOW - 1) == 0) s->f_type = 0x6969;
  return result;
}
END
if unshare --uts hostname node1 2>/dev/null && cc -shared -fPIC "-DBELOW=\"$scratch\"" -o "$scratch/nfs.so" "$scratch/nfs.c" -ldl 2>/dev/null; then
  kinds+=(requeued)
else
  echo "SKIPPED: requeued jobs, for host names cannot be changed here (that takes root), or cc is missing" >&2
fi
command -v prlimit >/dev/null || { echo "SKIPPED: throws, for prlimit is missing" >&2; kinds=("${kinds[@]/throws/killed}"); }
# shellcheck source-path=SCRIPTDIR source=faults_stop.sh
source scripts/faults_stop.sh
if can_stop; then kinds+=("${stop_kinds[@]}"); else echo "SKIPPED: stop signals, for cc is missing" >&2; fi
if [[ -n ${KINDS:-} ]]; then
  read -ra wanted <<<"$KINDS"
  for kind in "${wanted[@]}"; do
    [[ " ${kinds[*]} " == *" $kind "* ]] ||
      { echo "faults.sh: KINDS: '$kind' is none of what can be here: ${kinds[*]}" >&2; exit 2; }
  done
  kinds=("${wanted[@]}")
fi

seq 1 4000 | awk '{ x = (x * 1103515245 + 12345) % 2147483648; printf "%s%s", substr("theofandtoinisit", x % 13 + 1, 3), $1 % 9 ? " " : "\n" }' \
  >"$scratch/text"
batch=$((12 * ranks))
steps=${STEPS:-400}
model=(--data "$scratch/text" --dim 32 --layers 2 --heads 2 --seq 32 --batch "$batch" --seed 5 --threads 1 --quiet
  --optimizer muon --strategy zero3 --measure-peak false --steps "$steps")

# Processes below $1, parents first.
all_below() {
  local children child
  read -ra children < <(cat /proc/"$1"/task/*/children 2>/dev/null | tr '\n' ' ')
  for child in "${children[@]}"; do
    echo "$child"
    all_below "$child"
  done
}
# Prints the processes that run train_gpt.
ranks_below() {
  local process
  for process in $(all_below "$1"); do [[ $(readlink "/proc/$process/exe") == "$train_gpt" ]] && echo "$process"; done
}
# Keepers below $1; what a keeper has forked has the same command line, and a keeper as its parent.
keepers_below() {
  local process parent
  keeps() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -q -- '^[^ ]*sherd run --keep-rank '; }
  for process in $(all_below "$1"); do
    keeps "$process" || continue
    parent=$(sed -n 's/^PPid:\t//p' "/proc/$process/status" 2>/dev/null)
    [[ -z $parent ]] || keeps "$parent" || echo "$process"
  done
}
# The same of all hosts: Open MPI's daemons there are not children of this shell.
ranks_on_hosts() {
  local process
  for process in /proc/[0-9]*; do
    [[ $(readlink "$process/exe") == "$train_gpt" ]] && echo "${process#/proc/}"
  done
}
# Prints those of the processes $@ that still run train_gpt, or keep a rank.
alive() {
  local process
  for process in "$@"; do [[ $(readlink "/proc/$process/exe") =~ ^("$train_gpt"|"$sherd")$ ]] && echo "$process"; done
}
# The step of the newest checkpoint in folder $1; 0 without one.
newest_in() {
  local name
  name=$(find "$1" -maxdepth 1 -name 'step_????????' -printf '%f\n' 2>/dev/null | sort | tail -1)
  name=${name:-step_0}
  echo $((10#${name#step_}))
}
steps_in() { grep -cE '"step": [0-9]' "$1" 2>/dev/null || true; }
now() { date +%s%N; }
# seconds_since NANOSECONDS, with a decimal
seconds_since() { awk -v ns=$(($(now) - $1)) 'BEGIN { printf "%.1f", ns / 1e9 }'; }

# Compares weights $1 with the bits of a run that resumes alone from step $3 of folder $2 (0: begins), on $4
# ranks.
same_bits() {
  local clean=$scratch/clean.$3.$4 from=()
  if [[ $3 -gt 0 ]]; then
    from=(--resume "$(printf '%s/step_%08d' "$2" "$3")")
    rm -f "$clean"
  fi
  [[ -e $clean ]] || "$train_gpt" "${model[@]}" --ranks "$4" "${from[@]}" --export-weights "$clean" >"$scratch/clean.out" 2>&1 ||
    { tail -3 "$scratch/clean.out" >&2; return 1; }
  cmp -s "$1" "$clean"
}

declare -A tried hung lost times
one_run() {
  local number=$1 kind=$2 folder=$scratch/run job begun at death before verdict=well seconds=- victims victim host restored
  local survivors=() over=- committed first rank named most on_failure=stop again_from='start 2 of' weights=$scratch/run.weights more=()
  [[ $kind == disk || $kind == room ]] && folder=$scratch/disk/run
  [[ $kind == room ]] && on_failure=warn
  # Behind the export something is left to do.
  [[ $kind == exported ]] && weights=$scratch/run.model/ more=(--sample 12000)
  rm -rf "$scratch"/run* "$scratch"/disk/*
  local start=("$sherd" run --mpirun "$mpirun") find=ranks_below
  if [[ $kind == network ]]; then
    start=("$hosts" launcher "$sherd" run --hosts "$(seq -s, -f 'host%g:1' 1 "$ranks")" --remote-shell "$SHERD_HOSTS_AGENT")
    find=ranks_on_hosts
  fi
  [[ $kind == keeper ]] && find=keepers_below
  local command=("${start[@]}" --nproc "$ranks" --max-restarts 20 --grace 6 --begin-within 20 -- "$train_gpt" "${model[@]}" --comm mpi
    --comm-timeout 5 --save "$folder" --save-every 10 --async-save --save-failure "$on_failure" --metrics "$scratch/run.metrics"
    --export-weights "$weights" "${more[@]}")
  # as_job HOST RESTARTS: the command as a job of a batch system. It becomes the process that is started.
  as_job() {
    # shellcheck disable=SC2016  # the inner shell expands them
    SLURM_JOB_ID=77 SLURM_RESTART_COUNT=$2 LD_PRELOAD=$scratch/nfs.so \
      exec unshare --uts bash -c 'hostname "$0"; exec "$@"' "$1" "${command[@]}"
  }
  if [[ $kind == requeued ]]; then
    as_job node1 0 >"$scratch/run.out" 2>"$scratch/run.err" </dev/null &
  else
    "${command[@]}" >"$scratch/run.out" 2>"$scratch/run.err" </dev/null &
  fi
  job=$!
  begun=$SECONDS
  # is_at CONDITION...: it holds, or the run is over, or takes too long
  is_at() { "$@" || ! kill -0 $job 2>/dev/null || ((SECONDS - begun > limit)); }
  has_steps() { [[ $(steps_in "$scratch/run.metrics") -gt 0 ]]; }
  [[ $kind == keeper ]] || until is_at has_steps; do sleep 0.02; done
  if [[ $kind == exported ]]; then
    until is_at test -e "$weights"; do sleep 0.02; done
  else
    # A disk that fills up after the last save does not cause a fault. MPI_Init is done early in the 1.2 s.
    case $kind in keeper) most='1.2 * r' ;; room) most=0.5 ;; *) most=3 ;; esac
    sleep "$(awk -v r="$RANDOM" "BEGIN { r /= 32768; printf \"%.3f\", $most * r }")"
  fi
  has_victims() { mapfile -t victims < <($find $job) && ((${#victims[@]} > 0)); }
  [[ $kind == keeper ]] && until is_at has_victims; do sleep 0.02; done
  has_victims
  victim=${victims[RANDOM % (${#victims[@]} > 0 ? ${#victims[@]} : 1)]:-}
  [[ -z $victim || -z $(alive "$victim") ]] && kind=late  # it was over before
  before=$(steps_in "$scratch/run.metrics")
  before=${before:-0}
  for at in "${victims[@]}"; do [[ $at == "$victim" ]] || survivors+=("$at"); done
  committed=$(newest_in "$folder")
  rank=$(tr '\0' '\n' <"/proc/$victim/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p') 2>/dev/null
  death=$(now)
  case $kind in
    killed | keeper | exported) kill -KILL "$victim" ;;
    requeued)
      kill -KILL $job
      wait $job 2>/dev/null
      until [[ -z $(alive "${victims[@]}") ]]; do sleep 0.02; done
      again_from=requeued
      echo "$again_from" >>"$scratch/run.err"
      as_job node2 1 >>"$scratch/run.out" 2>>"$scratch/run.err" </dev/null &
      job=$!
      ;;
    room)
      head -c 64M /dev/zero >"$scratch/disk/filler" 2>/dev/null
      until [[ $(steps_in "$scratch/run.metrics") -ge $steps ]] || ! kill -0 $job 2>/dev/null; do sleep 0.05; done
      sleep 20
      rm -f "$scratch/disk/filler"
      before=0
      ;;
    stopped) kill -STOP "$victim" ;;
    delayed)
      kill -STOP "$victim"
      sleep 2
      kill -CONT "$victim"
      ;;
    throws) prlimit --pid "$victim" --nofile=4 ;;
    disk)
      head -c 64M /dev/zero >"$scratch/disk/filler" 2>/dev/null
      sleep 2
      rm -f "$scratch/disk/filler"
      ;;
    network)
      host=$(ip netns identify "$victim")
      "$hosts" cut "${host#host}"
      (sleep 8; exec "$hosts" restore "${host#host}") &
      restored=$!
      ;;
  esac
  # The next step: of another start where there is one, and of the same where the fault has no consequence.
  local seen=-1
  while kill -0 $job 2>/dev/null && ((SECONDS - begun < limit)); do
    at=$(steps_in "$scratch/run.metrics")
    if [[ $at != "$seen" ]]; then
      seen=$at
      begun=$SECONDS
    fi
    if [[ $over == - && -z $(alive "${survivors[@]}") ]]; then over=$(seconds_since "$death"); fi
    if [[ $seconds == - ]]; then
      if [[ $kind =~ ^(delayed|late|room)$ ]]; then
        ((at > before)) && seconds=$(seconds_since "$death")
      elif grep -q "$again_from" "$scratch/run.err"; then
        : "${again:=$at}"
        ((at > again)) && seconds=$(seconds_since "$death")
      fi
    fi
    sleep 0.05
  done
  unset again
  if kill -0 $job 2>/dev/null; then
    verdict=hung
    kill -KILL $job
  fi
  wait $job
  local code=$? last starts
  [[ $kind != network ]] || wait $restored
  starts=$(grep -c 'start [0-9]* of' "$scratch/run.err")
  last=$(sed -n 's/.*start [0-9]* of at most [0-9]*: \([0-9]* rank.*\)/\1/p' "$scratch/run.err" | tail -1)
  local on=${last%% *} step=0
  [[ $last =~ from\ step\ ([0-9]+) ]] && step=${BASH_REMATCH[1]}
  if [[ $verdict == well ]]; then
    if [[ $code != 0 ]]; then verdict="lost (exit code $code)"; fi
    [[ -d $weights ]] && weights+=model.safetensors
    if [[ $code == 0 ]] && ! same_bits "$weights" "$folder" "$step" "$on"; then verdict="lost (other bits)"; fi
    if [[ $kind =~ ^(delayed|room)$ && $starts != 1 ]]; then verdict="lost ($starts starts)"; fi
    if [[ $kind =~ ^(killed|keeper|exported)$ && $starts == 1 ]]; then verdict="lost (not detected)"; fi
    if [[ $kind == keeper ]] && ! grep -qE "start 2 of .*because (only [0-9]+ ranks began, )?rank ([0-9]+, )*$rank\\b" "$scratch/run.err"; then
      verdict="lost (rank $rank is not named)"
    fi
    first=$(sed -n "/$again_from/,\$ s/.*start [0-9]* of .* from step \([0-9]*\).*/\1/p" "$scratch/run.err" | head -1)
    if ((starts > 1 && ${first:-0} < committed)); then verdict="lost (step $committed was committed, but it went on from ${first:-0})"; fi
    # Of the start that was struck: lines of its ranks that name the one that failed as another than their own.
    named=$(sed '/start 2 of/,$d' "$scratch/run.err" | grep '^train_gpt: ' | sed 's/ on rank [0-9]*//g' |
      grep -cE "ranks? ([0-9]+(, | and ))*$rank\\b")
    if [[ $kind =~ ^(killed|stopped|network)$ ]] && ((starts > 1 && named < ${#survivors[@]})); then
      verdict="lost ($named of ${#survivors[@]} survivors name rank $rank)"
    fi
    if ((starts > 1)) && [[ $kind != disk && $over != - ]] && awk -v s="$over" 'BEGIN { exit !(s > 15) }'; then
      verdict="hung (the others ended after $over s)"
    fi
  fi
  echo "run $number: $kind, rank process ${victim:-none}, after $before steps: $verdict, $starts starts, the others gone after $over s, next step after $seconds s"
  [[ $verdict == well ]] || { grep '^sherd run' "$scratch/run.err"; tail -15 "$scratch/run.err"; } | sed 's/^/    /'
  tried[$kind]=$((${tried[$kind]:-0} + 1))
  [[ $verdict == hung* ]] && hung[$kind]=$((${hung[$kind]:-0} + 1))
  [[ $verdict == lost* ]] && lost[$kind]=$((${lost[$kind]:-0} + 1))
  [[ $seconds == - ]] || times[$kind]+="$seconds "
}

if [[ $runs == stops ]]; then
  can_stop || exit 77
  mapfile -t cases < <(stop_cases "${2:-*}")
  runs=${#cases[@]}
  for ((n = 1; n <= runs; ++n)); do stop_case $n "${cases[n - 1]}"; done
else
  for ((n = 1; n <= runs; ++n)); do
    kind=${kinds[RANDOM % ${#kinds[@]}]}
    mapfile -t cases < <(stop_cases "*/$kind/*")
    if ((${#cases[@]} > 0)); then stop_case $n "${cases[RANDOM % ${#cases[@]}]}"; else one_run $n "$kind"; fi
  done
fi

bad=0
printf '\n%-10s %6s %6s %6s %10s %10s\n' fault tried hung lost 'median s' 'worst s'
for kind in "${!tried[@]}"; do
  sorted=() median=- worst=-
  [[ -z ${times[$kind]:-} ]] || mapfile -t sorted < <(tr ' ' '\n' <<<"${times[$kind]% }" | sort -n)
  ((${#sorted[@]} == 0)) || median=${sorted[(${#sorted[@]} - 1) / 2]} worst=${sorted[-1]}
  printf '%-10s %6d %6d %6d %10s %10s\n' "$kind" "${tried[$kind]}" "${hung[$kind]:-0}" "${lost[$kind]:-0}" "$median" "$worst"
  bad=$((bad + ${hung[$kind]:-0} + ${lost[$kind]:-0}))
done
echo "seed $SEED: $runs runs, $bad hung or lost"
((bad == 0))
