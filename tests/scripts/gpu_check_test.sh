#!/usr/bin/env bash
# scripts/gpu_check.sh with programs that do nothing: what it runs within its minutes, and what it leaves behind.
# shellcheck disable=SC2030,SC2031,SC2034,SC2317
set -uo pipefail
for program in python3 xz; do command -v $program >/dev/null || { echo "SKIPPED: $program is not installed"; exit 77; }; done
root=$1
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
mkdir -p "$box/bin" "$box/tmp"
python=$(command -v python3)
export box python TMPDIR=$box/tmp GPU_CHECK_DEVICE=cpu GPU_CHECK_BIN=$box/bin
failed=0
expect() { # expect FILE PATTERN
  grep -qE -- "$2" "$1" || { echo "no '$2' in $1:"; cat "$1"; failed=1; }
}

cat >"$box/bin/train_gpt" <<'END'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do
  [ "$1" = --metrics ] && echo '{"loss": 1.5, "step_ms": 2, "tokens_per_s": 10, "host_syncs": 0}' >"$2"
  shift
done
. "$box/stay"
END
cp "$box/bin/train_gpt" "$box/bin/libtorch_gpt"
cat >"$box/bin/python3" <<'END'
#!/usr/bin/env bash
case $* in *torch.__file__*) echo "$box/torch" ;; *'import torch'*) exit 1 ;; *) exec "$python" "$@" ;; esac
END
cat >"$box/bin/sherd" <<'END'
#!/usr/bin/env bash
echo "sherd $*"
END
cat >"$box/bin/sherd_bench" <<'END'
#!/usr/bin/env bash
echo "gemm bf16 ours 1.0 700"
echo "cannot go on" >&2
exit 3
END
printf '#!/bin/sh\nexit 9\n' >"$box/bin/nvidia-smi"
chmod +x "$box"/bin/*
: >"$box/stay"

"$root/scripts/gpu_check.sh" --list >"$box/list" || failed=1
expect "$box/list" '^kernels_0 +tests +[0-9]+ s'
[ "$(sed -n 2p "$box/list" | cut -d' ' -f1)" = kernels_0 ] || { echo "the kernels' tests are not first"; failed=1; }
awk '$1 == "sanitizers" { exit prior > 9 * 60 } { prior = $5 }' "$box/list" || { echo "9 minutes end before sanitizers:"; cat "$box/list"; failed=1; }

# Two minutes: what is expected to take longer than is left is named and not begun; one failed step ends nothing.
"$root/scripts/gpu_check.sh" --minutes 2 --out "$box/out" >"$box/said" 2>&1
[ $? = 1 ] || { echo "a failed step is exit code 1"; failed=1; }
summary=$box/out/summary.txt
expect "$summary" '^NOT RUN +sanitizers +expected to take 150 s, [0-9]+ are left'
expect "$summary" '^PASS +correctness'
expect "$summary" '^ +strategies_bits passed'
expect "$summary" '^ +kernels_3 skipped'
expect "$summary" '^ +zero0 to zero3 on 4 ranks'
expect "$summary" '^FAIL +bench_device .*exit code 3'
expect "$summary" '^ +gemm bf16 ours'
expect "$summary" '\| cannot go on'
expect "$summary" '^ +nccl_one_rank skipped'
expect "$summary" '[0-9]+ passed, [0-9]+ skipped, [1-9][0-9]* failed, [1-9][0-9]* not run'
tar -tzf "$box/out/logs.tar.gz" >"$box/archive" || failed=1
expect "$box/archive" 'logs/strategies_bits\.log'
expect "$box/archive" 'logs/bits_zero3\.jsonl'
[ "$(find "$box/out" -type f | wc -l)" = 2 ] || { echo "more than two files:"; ls -R "$box/out"; failed=1; }
[ -z "$(ls -A "$TMPDIR")" ] || { echo "left behind:"; ls -R "$TMPDIR"; failed=1; }

# Without a GPU no step that needs one passes, and the run is a failure.
GPU_CHECK_DEVICE=cuda PATH=$box/bin:$PATH "$root/scripts/gpu_check.sh" --out "$box/none" >/dev/null 2>&1
[ $? = 1 ] || { echo "a run of nothing is exit code 1"; failed=1; }
expect "$box/none/summary.txt" '^0 passed, [1-9][0-9]* skipped, 0 failed, 0 not run'
expect "$box/none/summary.txt" 'no GPU'

# Suites of kernels: their JSON is kept, and NCCL writes warnings.
cat >"$box/bin/test_cuda_kernels" <<'END'
#!/usr/bin/env bash
for word; do case $word in --gtest_output=json:*) echo '{"tests": 3}' >"${word#*json:}" ;; esac; done
echo "NCCL_DEBUG is ${NCCL_DEBUG:-}"
echo "[  PASSED  ] 3 tests."
END
mkdir "$box/gpu"
printf '#!/bin/sh\necho "GPU 0: imitated"\n' >"$box/gpu/nvidia-smi"
chmod +x "$box/gpu/nvidia-smi" "$box/bin/test_cuda_kernels"
GPU_CHECK_DEVICE=cuda PATH=$box/gpu:$PATH "$root/scripts/gpu_check.sh" --only kernels_0 --out "$box/suites" >/dev/null 2>&1 ||
  { echo "--only kernels_0 failed"; failed=1; }
expect "$box/suites/summary.txt" '^ +PASSED 3 tests'
tar -xOzf "$box/suites/logs.tar.gz" --wildcards '*/test_cuda_kernels_0.*' >"$box/suites/all" 2>&1 || failed=1
expect "$box/suites/all" '^\{"tests": 3\}'
expect "$box/suites/all" '^NCCL_DEBUG is WARN'
rm "$box/bin/test_cuda_kernels"

# Several GPUs: steps of their own. A step that fails runs once more and compares calls. With fewer GPUs all are skipped.
"$root/scripts/gpu_check.sh" --list --hosts 1 --gpus 8 >"$box/list" || failed=1
[ "$(grep -cE ' several .* 60 s$' "$box/list")/$(wc -l <"$box/list")" = 9/10 ] || { echo "not nine steps of 60 s:"; cat "$box/list"; failed=1; }
several() { GPU_CHECK_DEVICE=cuda PATH=$1:$PATH "$root/scripts/gpu_check.sh" --hosts 1 --gpus 2 --out "$box/several" "${@:2}" >/dev/null 2>&1; }
several "$box/gpu" && { echo "one GPU for two is not a failure"; failed=1; }
expect "$box/several/summary.txt" '^0 passed, 9 skipped, 0 failed, 0 not run'
expect "$box/several/summary.txt" 'too few: 1 of 2'
mkdir "$box/two"
printf '#!/bin/sh\n[ "$*" = -L ] && printf "GPU 0: imitated\\nGPU 1: imitated\\n"\n' >"$box/two/nvidia-smi"
chmod +x "$box/two/nvidia-smi"
several "$box/two" --only processes,threads && { echo "a failed step of several GPUs is exit code 1"; failed=1; }
expect "$box/several/summary.txt" ', processes,threads, 2 GPUs$'
expect "$box/several/summary.txt" '^FAIL +processes '
expect "$box/several/summary.txt" '^ +once more, with --nccl-check-calls:'
expect "$box/several/summary.txt" '^ +\| with --nccl-check-calls: exit code 1'
expect "$box/several/summary.txt" '^PASS +threads '
expect "$box/several/summary.txt" '^ +threads of one process with NCCL: they train'
tar -xOzf "$box/several/logs.tar.gz" logs/processes.log >"$box/several/all" || failed=1
[ "$(grep -cE '^sherd run .*--nproc 2 .*--comm nccl' "$box/several/all")$(grep -c '^sherd run .*--nccl-check-calls' "$box/several/all")" = 21 ] ||
  { echo "not two runs, the second of which compares calls:"; cat "$box/several/all"; failed=1; }

# Building and packing configure one folder in the same way, so that packing after a run builds nothing again.
commands_of() { # commands_of FUNCTION ARGUMENTS...: without running them
  (
    device=cuda work=$box here=$root/scripts GPU_CHECK_BIN=''
    # shellcheck source=/dev/null
    . "$root/scripts/gpu_check_pack.sh"
    attend() { echo "${@:2}" >>"$box/commands"; [ "${3:-}" != --build ]; }
    "$@"
  ) >/dev/null 2>&1
}
: >"$box/commands"
commands_of build
commands_of pack "$box/pack" 90
if [ "$(grep -c -- "--preset cuda -B .*build/cuda .*-DSHERD_PORTABLE=ON" "$box/commands")" != 2 ] ||
  [ "$(grep -o -- '--build [^ ]*build/[a-z_]*' "$box/commands" | sed 's|.*/||' | sort -u)" != cuda ]; then
  echo "not one portable build of the preset cuda:"
  cat "$box/commands"
  failed=1
fi

# A pack holds what its programs have in common once, and is unpacked where xz is missing.
tree=$box/tree
mkdir -p "$tree/build/cuda" "$tree"/{docs,base,kernels,comm,dtensor,fsdp,nn,optim,checkpoint,programs/bench} "$box"/{no_xz,large}
cp -r "$root/scripts" "$tree/scripts"
cp -r "$box/bin" "$tree/build/cuda/bin"
touch "$tree/programs/bench/none.py" "$tree/README.md"
head -c 4000000 /dev/urandom >"$box/common"
for program in train_gpt sherd sherd_bench; do
  printf '\nexit\n' | cat - "$box/common" >>"$tree/build/cuda/bin/$program"
done
printf '#!/bin/sh\nexit 127\n' >"$box/no_xz/xz"
chmod +x "$box/no_xz/xz"
pack_tree() {
  (
    device=cuda root=$tree here=$tree/scripts work=$box
    # shellcheck source=/dev/null
    . "$root/scripts/gpu_check_pack.sh"
    attend() { :; }
    pack "$box/packed" 90
  ) >"$box/packing" 2>&1
}
pack_tree || { echo "not packed:"; cat "$box/packing"; failed=1; }
expect "$box/packing" '^packed into .*: 3 MiB'
PATH=$box/no_xz:$PATH "$box/packed/scripts/gpu_check.sh" --run "$box/packed" --only runs_repeat --out "$box/of_pack" >/dev/null 2>&1 ||
  { echo "--run failed"; failed=1; }
expect "$box/of_pack/summary.txt" '^1 passed, 0 skipped, 0 failed'
cat >"$box/large/du" <<'END'
#!/bin/sh
[ "$1" = -sk ] && printf '41000\t%s\n' "$2" || exec /usr/bin/du "$@"
END
chmod +x "$box/large/du"
PATH=$box/large:$PATH pack_tree && { echo "a pack above 40 MiB is accepted"; failed=1; }
expect "$box/packing" 'more than 40 MiB'

# One step alone.
"$root/scripts/gpu_check.sh" --only runs_repeat --out "$box/one" >/dev/null 2>&1 || { echo "--only failed"; failed=1; }
expect "$box/one/summary.txt" '^1 passed, 0 skipped, 0 failed'

# A libtorch model, where it was built and python3 has PyTorch.
PATH=$box/bin:$PATH "$root/scripts/gpu_check.sh" --only libtorch --out "$box/torch_run" >/dev/null 2>&1 || { echo "libtorch failed"; failed=1; }
expect "$box/torch_run/summary.txt" 'losses of torch_cpu and torch_cpu: at most 0 apart in 1 steps'
rm "$box/bin/libtorch_gpt"
PATH=$box/bin:$PATH "$root/scripts/gpu_check.sh" --only libtorch --out "$box/no_torch" >/dev/null 2>&1
expect "$box/no_torch/summary.txt" 'there is no libtorch_gpt'

# Runs that are ended in the middle of a step, whose programs stay for a minute and write their numbers into `pids`:
#   ended NAME STEPS PROGRAMS SIGNAL WHOM: to the script alone, or to it and all of its group, as Ctrl-C does
# sets code and took (milliseconds from the signal to the end).
ended() {
  local run group='' begin
  : >"$box/pids"
  setsid env --default-signal=INT "$root/scripts/gpu_check.sh" --only "$2" --out "$box/$1" >/dev/null 2>&1 &
  run=$!
  for _ in $(seq 100); do [ "$(wc -l <"$box/pids")" = "$3" ] && break; sleep 0.1; done
  [ "$(wc -l <"$box/pids")" = "$3" ] || { echo "$1: its programs did not start"; failed=1; }
  [ "$5" = alone ] || group=-
  begin=$(date +%s%3N)
  kill "-$4" -- "$group$run"
  wait "$run" 2>/dev/null
  code=$? took=$(($(date +%s%3N) - begin))
}
# Returns whether one of the programs still runs; init may not have reaped it yet.
any_left() {
  local pid
  while read -r pid; do
    grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$pid/status" && return 0
  done <"$box/pids"
  return 1
}
expect_stop() { # expect_stop NAME CODE: in time, and nothing left
  [ "$code" = "$2" ] || { echo "$1: exit code $code"; failed=1; }
  [ "$took" -le 2000 ] || { echo "$1: ended after $took ms"; failed=1; }
  any_left && { echo "$1: programs are left"; failed=1; }
  [ -z "$(ls -A "$TMPDIR")" ] || { echo "$1: left behind:"; ls -R "$TMPDIR"; failed=1; }
}
expect_end() { # expect_end NAME CODE STEP: and with both files
  expect_stop "$1" "$2"
  expect "$box/$1/summary.txt" '^SKIP +correctness'
  expect "$box/$1/summary.txt" "^CUT OFF +$3 .*ended by SIG"
  expect "$box/$1/summary.txt" '^0 passed, 1 skipped, 0 failed, [1-9] not run or cut off'
  expect "$box/$1/summary.txt" '^NOT RUN +timeline .*ended by SIG|^CUT OFF +sanitizers'
  tar -tzf "$box/$1/logs.tar.gz" >"$box/archive" || failed=1
  expect "$box/archive" "logs/$3\.log"
}
cat >"$box/stay" <<'END'
echo $$ >>"$box/pids"
exec sleep 60
END
ended term nccl_one_rank,gpt2_124m,timeline 1 TERM alone
expect_end term 143 gpt2_124m
cp "$box/stay" "$box/plain"
sed "1i trap '' TERM" "$box/plain" >"$box/stay"
ended interrupt nccl_one_rank,gpt2_124m,timeline 1 INT all
expect_end interrupt 130 gpt2_124m

# Programs side by side.
cat >"$box/bin/compute-sanitizer" <<'END'
#!/usr/bin/env bash
case $* in *Fill* | --help) exit ;; esac
. "$box/stay"
END
printf '#!/bin/sh\n' >"$box/bin/test_cuda_kernels"
chmod +x "$box"/bin/*
PATH=$box/bin:$PATH ended side_by_side nccl_one_rank,sanitizers 4 TERM alone
expect_end side_by_side 143 sanitizers

# While it builds.
cat >"$box/bin/cmake" <<'END'
#!/usr/bin/env bash
. "$box/stay"
END
chmod +x "$box/bin/cmake"
GPU_CHECK_BIN='' PATH=$box/bin:$PATH ended build gpt2_124m 1 TERM alone
expect_stop build 143

# Killed, the script can do nothing: both files say what was before it, and its programs end where the system sees to it.
cp "$box/plain" "$box/stay"
ended killed nccl_one_rank,gpt2_124m 1 KILL all
expect "$box/killed/summary.txt" '^SKIP +correctness'
expect "$box/killed/summary.txt" '^RUNNING +gpt2_124m'
tar -tzf "$box/killed/logs.tar.gz" >/dev/null || failed=1
if setpriv --pdeathsig TERM true 2>/dev/null; then
  for _ in $(seq 100); do any_left || break; sleep 0.1; done
  any_left && { echo "killed: programs are left"; failed=1; }
else
  xargs kill <"$box/pids"
fi

for wrong in "--only nothing" "--minutes soon" "--run" "--what" "--hosts 2 --gpus 8" "--hosts 1" "--gpus 3" "--gpus 0" "--gpus 2 --only kernels_0"; do
  # shellcheck disable=SC2086
  "$root/scripts/gpu_check.sh" $wrong >/dev/null 2>&1
  [ $? = 2 ] || { echo "$wrong: not refused"; failed=1; }
done
exit $failed
