#!/usr/bin/env bash
# MPI over hosts that share no memory (scripts/hosts.sh): the comm suite, training with the bits of threads, resuming from one to
# the other, and a host whose cable is cut.
#   hosts_test.sh REPOSITORY FOLDER_OF_PROGRAMS [all]
# all: the whole comm suite on 2 and 4 hosts, all of tests/programs/runs/mpi_run_test.sh there, and a cut of rank 0's host; minutes.
# 77 (skipped, and says why) where such hosts cannot be made.
set -uo pipefail
root=$1 bin=$2 extent=${3:-quick}
hosts=$root/scripts/hosts.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

if [[ ! -e /run/sherd-hosts/count ]]; then  # not yet among hosts
  if ! command -v mpirun >/dev/null; then
    echo "SKIPPED: mpirun is missing; install openmpi-bin" >&2
    exit 77
  fi
  if [[ $extent == quick ]]; then
    "$hosts" 3 "$0" "$root" "$bin" quick
    exit $?
  fi
  for n in 2 4; do
    "$hosts" $n "$0" "$root" "$bin" all || exit $?
  done
  "$hosts" 3 "$0" "$root" "$bin" cuts
  exit $?
fi

seq 1 4000 | awk '{ x = (x * 1103515245 + 12345) % 2147483648; printf "%s%s", substr("theofandtoinisit", x % 13 + 1, 3), $1 % 9 ? " " : "\n" }' \
  >"$scratch/text"
model=(--data "$scratch/text" --dim 36 --layers 3 --heads 4 --seq 24 --batch 12 --seed 5 --threads 1 --quiet
  --optimizer muon --strategy zero3)

# suite PROCESSES GTEST_ARGUMENT...
suite() {
  local began=$SECONDS
  timeout -k 5 900 "$hosts" mpirun -n "$1" "$bin/test_comm_mpi" --gtest_brief=1 "${@:2}" >"$scratch/suite" 2>&1 </dev/null ||
    { fail "the comm suite on $1 hosts: exit code $?: $(tail -20 "$scratch/suite")"; return; }
  echo "the comm suite, $1 processes: $(grep -c PASSED "$scratch/suite") passed all of theirs ($((SECONDS - began)) s)"
}

# train NAME local|hosts FLAG...: on 2 ranks; leaves NAME.losses and NAME.weights.
train() {
  local command=("$bin/train_gpt" "${model[@]}" --metrics "$scratch/$1.metrics" --export-weights "$scratch/$1.weights")
  if [[ $2 == hosts ]]; then
    command=("$hosts" mpirun -n 2 "${command[@]}" --comm mpi)
  else
    command+=(--ranks 2)
  fi
  timeout -k 5 120 "${command[@]}" "${@:3}" >"$scratch/$1.out" 2>&1 </dev/null ||
    { fail "$1: exit code $?: $(tail -5 "$scratch/$1.out")"; return; }
  grep -oE '"(step|loss|grad_norm)":[^,}]*' "$scratch/$1.metrics" >"$scratch/$1.losses"
}
alike() {
  if [[ ! -s $scratch/$2.losses ]]; then fail "$1: $2 has no losses"; return; fi
  if cmp "$scratch/$2.losses" "$scratch/$3.losses" >&2 && cmp "$scratch/$2.weights" "$scratch/$3.weights" >&2; then
    echo "$1: the same bits"
  else
    fail "$1: not the same bits"
  fi
}
parity() {
  train threads local --steps 6
  train processes hosts --steps 6
  alike "zero3 + Muon, threads and two hosts" threads processes
  train first hosts --steps 3 --save "$scratch/saved"
  cp "$scratch/first.metrics" "$scratch/rest.metrics"
  train rest local --steps 6 --resume "$scratch/saved"
  alike "saved on two hosts, resumed as threads" threads rest
}

# blamed FILE: the ranks that an error says are missing or lost, as "rank 2," or "ranks 1, 2:"; not those that it says have come.
blamed() {
  grep -oE "waited [0-9]+ ms for ranks? [0-9, ]+|between here and ranks? [0-9, ]+|rank [0-9]+'s process ended|lost rank [0-9]+ at|rank [0-9]+ aborted it" "$1" |
    head -1 | grep -oE "ranks? [0-9, ]+"
}

# cut HOST TIMEOUT: the others end within the timeout and 10 s more, and name HOST's rank. On a busy machine
# they end in as many polls as fit into 2x that.
cut() {
  local host=$1 timeout=$2 lost=$(($1 - 1)) rank began looks pids=() names
  rm -f "$scratch"/said.* "$scratch"/pid.* "$scratch/cut.metrics"
  # A rank's own process, which does not report its end to mpirun: mpirun may wait for the lost host for long.
  # shellcheck disable=SC2016  # expanded there
  "$hosts" mpirun --enable-recovery -n 3 sh -c 'echo $$ >"$0/pid.$OMPI_COMM_WORLD_RANK"
    exec "$@" 2>"$0/said.$OMPI_COMM_WORLD_RANK"' "$scratch" "$bin/train_gpt" "${model[@]}" --comm mpi \
    --comm-timeout "$timeout" --steps 1000000 --metrics "$scratch/cut.metrics" >"$scratch/cut.out" 2>&1 </dev/null &
  local job=$!
  for ((i = 0; i < 1000; ++i)); do  # far more than it takes, unless it does not run at all
    [[ $(wc -l 2>/dev/null <"$scratch/cut.metrics") -gt 5 ]] && break
    kill -0 $job || break
    sleep 0.1
  done 2>/dev/null
  [[ $(wc -l <"$scratch/cut.metrics") -gt 5 ]] || { fail "cut: training did not start: $(cat "$scratch/cut.out")"; return; }
  "$hosts" cut "$host"
  began=$SECONDS
  for rank in 0 1 2; do
    [[ $rank == "$lost" ]] || pids+=("$(cat "$scratch/pid.$rank")")
  done
  for ((looks = 0;; ++looks)); do
    kill -0 "${pids[0]}" 2>/dev/null || kill -0 "${pids[1]}" 2>/dev/null || break
    if ((SECONDS - began > timeout + 10 && looks > 10 * (timeout + 10))); then fail "cut of host$host: the others still run after $((SECONDS - began)) s"; break; fi
    sleep 0.2
  done
  local took=$((SECONDS - began))
  for rank in 0 1 2; do
    [[ $rank == "$lost" ]] && continue
    names=$(blamed "$scratch/said.$rank")
    [[ $names =~ [\ ]$lost([^0-9]|$) ]] ||
      fail "cut of host$host: rank $rank does not name rank $lost but '$names', and says: $(cat "$scratch/said.$rank")"
  done
  echo "cut of host$host: the others ended after $took s of a timeout of $timeout s, naming rank $lost"
  kill $job 2>/dev/null
  wait $job 2>/dev/null
  "$hosts" restore "$host"
}

case $extent in
  quick)
    suite 2 --gtest_filter='LongMessages.*:Progress.*:*AllGather*:*Reduce*/Ranks2'
    parity
    cut 3 5
    ;;
  cuts)
    cut 3 10
    cut 1 10
    ;;
  all)
    n=$(cat /run/sherd-hosts/count)
    suite 2
    ((n == 2)) || suite "$n"
    parity
    "$root/tests/programs/runs/mpi_run_test.sh" "$bin/train_gpt" "$SHERD_HOSTS_MPIRUN" || fail "mpi_run_test.sh on $n hosts"
    ;;
esac
if ((failures > 0)); then
  echo "$failures failures" >&2
  exit 1
fi
echo "all well on $(cat /run/sherd-hosts/count) hosts"
