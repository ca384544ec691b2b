#!/usr/bin/env bash
# Part of gpu_check.sh: what the steps do. Runs the function that is named; here, work, bin, bench, data and device come
# from gpu_check.sh. Lines "figure: ..." go to the summary, exit code 77 is a SKIP; what is in $work/logs is archived.
# shellcheck disable=SC2046,SC2086,SC2154
set -uo pipefail
export LC_ALL=C  # sort and printf take a decimal point

skip() { echo "figure: $*"; exit 77; }

# A run of train_gpt, or of $program, by $launcher if that is set: run NAME FLAGS... writes metrics to logs/NAME.jsonl.
launcher=()
run() {
  local name=$1 text=(--data "$data")
  shift
  [[ " $* " != *" --tokens "* ]] || text=()
  "${launcher[@]}" "$bin/${program:-train_gpt}" "${text[@]}" --metrics "$work/logs/$name.jsonl" --quiet "$@"
}
small="--dim 128 --layers 4 --heads 4 --seq 128 --batch 16 --steps 20"

# Every value of a metric in a run: values NAME FIELD; and their median, "unknown" of none: median NAME FIELD.
values() { grep -oE "\"$2\": [0-9.e+-]+" "$work/logs/$1.jsonl" | cut -d' ' -f2; }
median() { values "$1" "$2" | sort -g | awk '{v[NR] = $1} END {if (NR) printf "%.6g", v[int((NR + 1) / 2)]; else printf "unknown"}'; }

# same NAME NAME TOLERANCE: the losses of two runs, step by step, relative.
same() {
  paste <(values "$1" loss) <(values "$2" loss) | awk -v tolerance="$3" -v a="$1" -v b="$2" '
    NF != 2 { print "one of " a " and " b " has fewer steps"; bad = 1; exit }
    { d = $1 - $2; if (d < 0) d = -d; d /= $2; if (d > worst) worst = d; ++n }
    END {
      printf "figure: losses of %s and %s: at most %.2g apart in %d steps (allowed %g)\n", a, b, worst, n, tolerance
      exit bad || n == 0 || worst > tolerance
    }'
}

# ---- tests

# side_by_side "NAME LIMIT FUNCTION ARGUMENTS"...: all at once, each with its own log; one line says how each ended.
side_by_side() {
  local entry name limit call code word result=77 cpus tied
  local -A of=()
  cpus=$(nproc)
  for entry in "$@"; do
    read -r name limit call <<<"$entry"
    tied=()  # what computes on the CPU as well has four processors of its own
    [[ $cpus -lt 8 || $name != *crossing && $name != *cpu* ]] || tied=(taskset -c "$((cpus - 4))-$((cpus - 1))")
    # In this script's process group, with which all of them end.
    "${tied[@]}" timeout --foreground -k 5 "$limit" bash "$0" $call >"$work/logs/$name.log" 2>&1 &
    of[$name]=$!
  done
  for entry in "$@"; do
    name=${entry%% *}
    wait "${of[$name]}"
    code=$?
    case $code in
      0) word=passed; [ $result = 1 ] || result=0 ;;
      77) word=skipped ;;
      124 | 137) word="ended at its limit" result=1 ;;
      *) word="failed with exit code $code" result=1 ;;
    esac
    echo "figure: $name $word"
    grep -h '^figure: ' "$work/logs/$name.log" | sed 's/^figure: /figure:   /'
    [ $code = 0 ] || [ $code = 77 ] || grep -hE '^\[  FAILED|: Failure' "$work/logs/$name.log" | head -6 | cut -c1-200 | sed 's/^/figure:   /'
  done
  return $result
}

# kernel_tests SHARD: every sixth test of each program.
kernel_tests() {
  local program found=0 failed=0
  [ "$device" = cuda ] || skip "the CUDA kernels' tests are for GPUs"
  for program in "$bin"/test_cuda*; do
    [[ -x $program && $program != *cuda_host* ]] || continue
    found=1
    gtest "$program" "$1" || failed=1
  done
  [ $found = 1 ] || skip "$bin has no CUDA test programs"
  return $failed
}

# Suites that find no GPU skip every test: that counts as a failure.
gtest() {
  local log
  log=$work/logs/$(basename "$1")_$2
  GTEST_TOTAL_SHARDS=6 GTEST_SHARD_INDEX=$2 "$1" --gtest_brief=1 --gtest_output="json:$log.json" 2>&1 | tee "$log.gtest"
  local code=${PIPESTATUS[0]}
  grep -q '^\[  SKIPPED \] every test' "$log.gtest" && { echo "figure: no GPU, nothing ran"; return 1; }
  echo "figure: $(grep -hE '^\[  (PASSED|SKIPPED|FAILED) +\] [0-9]+ tests?' "$log.gtest" | sed 's/^\[ *\([A-Z]*\) *\]/\1/' | paste -sd' ')"
  [ "$code" = 0 ] && ! grep -qE '^\[  PASSED  \] 0 tests' "$log.gtest"
}

# Losses in fp32 differ by the order of sums alone.
parity_cpu_cuda() {
  local optimizer
  for optimizer in adamw muon; do
    run "cpu_$optimizer" $small --optimizer $optimizer &&
      run "${device}_$optimizer" $small --optimizer $optimizer --device "$device" &&
      same "${device}_$optimizer" "cpu_$optimizer" 1e-4 || return
  done
}

# On equal ranks every strategy gives the same bits.
strategies_bits() {
  local strategy forms at
  for forms in "" "--precision bf16 --master bf16 --state-dtype bf16" "--precision bf16 --master split"; do
    for strategy in zero0 zero1 zero2 zero3; do
      [ -n "$forms" ] && [ $strategy = zero1 ] && continue
      at="bits${forms// /}_"
      run "$at$strategy" $small --optimizer muon --device "$device" --ranks 4 --strategy $strategy $forms --save "$work/$at$strategy" || return
      [ $strategy = zero0 ] || "$bin/sherd" ckpt diff "$work/${at}zero0" "$work/$at$strategy" || return
    done
  done
  echo "figure: zero0 to zero3 on 4 ranks: weights and states bit-identical, also in 16 bits"
}

runs_repeat() {
  local turn
  for turn in 1 2; do
    run turn_$turn $small --optimizer muon --device "$device" --ranks 4 --strategy zero3 --save "$work/turn_$turn" || return
  done
  "$bin/sherd" ckpt diff "$work/turn_1" "$work/turn_2" &&
    echo "figure: the same run twice: bit-identical"
}

# A checkpoint goes from the GPU to the CPU and back, unchanged; training resumes from it on either alike.
checkpoint_crossing() {
  local ten="$small --optimizer muon --stop-at 10"
  run cross_a $ten --device "$device" --ranks 2 --save "$work/cross_a" &&
    run cross_b $ten --device cpu --ranks 4 --resume "$work/cross_a" --save "$work/cross_b" &&
    "$bin/sherd" ckpt diff "$work/cross_a" "$work/cross_b" &&
    run cross_c $ten --device "$device" --ranks 1 --resume "$work/cross_b" --save "$work/cross_c" &&
    "$bin/sherd" ckpt diff "$work/cross_a" "$work/cross_c" &&
    run cross_gpu $small --optimizer muon --device "$device" --ranks 2 --resume "$work/cross_b" &&
    run cross_cpu $small --optimizer muon --device cpu --ranks 2 --resume "$work/cross_a" &&
    same cross_gpu cross_cpu 1e-4 &&
    echo "figure: checkpoints cuda -> cpu -> cuda: bit-identical"
}

# ---- NCCL

needs_gpu() { [ "$device" = cuda ] || skip "NCCL is for GPUs"; }

nccl_one_rank() {
  needs_gpu
  run local1 $small --optimizer muon --device "$device" &&
    run nccl1 $small --optimizer muon --device "$device" --comm nccl && same nccl1 local1 1e-5
}

port=$((29500 + RANDOM % 2000))
# processes COUNT NAME FLAGS...: one process a rank, their pids in `pids`, what they say in NAME.rankR. Without --gpus all are
# on one GPU. NCCL takes that for a mistake unless it believes them on different hosts; it then talks over sockets.
processes() {
  local count=$1 name=$2 r place
  shift 2
  pids=() port=$((port + 10))
  for ((r = 0; r < count; ++r)); do
    place=(LOCAL_RANK=0 "NCCL_HOSTID=gpu_check_$r" NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1)
    [ -z "$gpus" ] || place=("LOCAL_RANK=$r")
    env "${place[@]}" RANK=$r WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port SHERD_STORE_WITHOUT_SECRET=loopback \
      "$bin/train_gpt" --data "$data" --metrics "$work/logs/$name.jsonl" --quiet \
      --device "$device" --comm nccl --ranks "$count" "$@" >"$work/logs/$name.rank$r" 2>&1 &
    pids+=($!)
  done
}

nccl_four_processes() {
  needs_gpu
  local strategy r failed
  for strategy in zero1 zero3; do
    run "local4_$strategy" $small --optimizer muon --device "$device" --ranks 4 --strategy $strategy || return
    processes 4 "nccl4_$strategy" $small --optimizer muon --strategy $strategy
    failed=0
    for r in 0 1 2 3; do
      wait "${pids[r]}" || { echo "rank $r ended with $?:"; tail -5 "$work/logs/nccl4_$strategy.rank$r"; failed=1; }
    done
    [ $failed = 0 ] && same "nccl4_$strategy" "local4_$strategy" 1e-5 || return
  done
}

# MiB in use, of all GPUs.
used_memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum + 0 }'; }

# lost_rank COUNT FLAGS...: when the last of so many processes is killed in the middle of training, the others end with an
# error that names it, and no memory of a GPU stays in use.
lost_rank() {
  local r start last=$(($1 - 1)) took before steps
  before=$(used_memory)
  rm -f "$work/logs/lost.jsonl"  # of the first try
  processes "$1" lost "${@:2}" --steps 100000 --comm-timeout 60
  for ((r = 0; r < 45; ++r)); do
    sleep 1
    steps=$(values lost loss 2>/dev/null | wc -l)
    [ "$steps" -ge 5 ] && break
  done
  if [ "$steps" -lt 5 ]; then
    kill -9 "${pids[@]}" 2>/dev/null
    tail -n 5 "$work"/logs/lost.rank*
    echo "not 5 steps in 45 s, but $steps"
    return 1
  fi
  start=$SECONDS
  kill -9 "${pids[last]}" || return  # it had ended already
  for ((r = 0; r < last; ++r)); do
    wait "${pids[r]}"
    if [ $? != 1 ] || ! grep "rank $last" "$work/logs/lost.rank$r"; then
      echo "rank $r:"
      cat "$work/logs/lost.rank$r"
      return 1
    fi
  done
  took=$((SECONDS - start))
  echo "figure: one of $1 processes killed while training: the others ended, naming it, after $took s"
  [ $took -le 30 ] || return
  for ((r = 0; r < 5; ++r)); do
    [ "$(used_memory)" -le $((before + 64)) ] && return
    sleep 1
  done
  echo "$before MiB of all GPUs were in use before, $(used_memory) MiB are afterwards"
  return 1
}

nccl_lost_rank() { needs_gpu; lost_rank 3 $small --batch 15; }

# ---- compute-sanitizer

# Suites small enough for tools that make kernels ten to a hundred times slower, that between them have every kind of
# kernel: rows and their reductions, tiles in shared memory, tensor cores, sorts with atomics, streams beside each other.
sanitized='Elementwise.*:Reduce.*:Squares.*:RmsNorm.*:Gelu.*:Bias*.*:CrossEntropy.KnownValues:CrossEntropy.Minus*'
sanitized+=':AdamW.*:MuonMomentum.*:MuonUpdate.*:CopySegments.*:Segments.*:EmbeddingBackward.*:CheckIndices.*:RouteTopK.*'
sanitized+=':SortByExpert.*:ExpertRows.*:VocabParallel.*:Gemm.*:GemmEpilogue.*:Gram.*:Products.Mirror*:StridedCopy.*'
sanitized+=':Attention.FirstRow*:Attention.ForwardMatchesReference:Attention.BackwardMatchesReference'

# All tools side by side, each one process over the suites above. sherd checks the result of every call itself.
sanitizers() {
  local tool program=$bin/test_cuda_kernels failed=0 tools=(memcheck racecheck initcheck synccheck)
  local -A of=()
  PATH=$PATH:/usr/local/cuda/bin
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not there"
  [ -x "$program" ] || skip "$program is missing"
  compute-sanitizer --tool memcheck "$program" --gtest_filter='Elementwise.Fill*' 2>&1 |
    grep -q "Device not supported" && skip "compute-sanitizer does not support this machine"
  for tool in "${tools[@]}"; do
    sanitize "$tool" "$program" >"$work/logs/sanitizer_$tool.log" 2>&1 &
    of[$tool]=$!
  done
  for tool in "${tools[@]}"; do
    if wait "${of[$tool]}"; then
      echo "figure: $tool: clean, $(grep -hE '^\[==========\] .* ran' "$work/logs/sanitizer_$tool.log" | sed 's/^\[=*\] //')"
    else
      echo "figure: $tool: $(grep -hE 'ERROR SUMMARY|^\[  FAILED' "$work/logs/sanitizer_$tool.log" | head -3 | paste -sd' '); see sanitizer_$tool.log"
      failed=1
    fi
  done
  return $failed
}

sanitize() {
  local tool=$1 flags=(--report-api-errors no --error-exitcode 9)
  # The libraries read memory that they have not written, on purpose.
  [ "$tool" = initcheck ] && compute-sanitizer --help | grep -q -- --kernel-regex && flags+=(--kernel-regex kns=sherd)
  compute-sanitizer --tool "$tool" "${flags[@]}" "$2" --gtest_brief=1 --gtest_filter="$sanitized"
}

# ---- figures

# figures NAME COMMAND FLAGS...: a table of sherd_bench, and its JSON as NAME.json.
figures() {
  local name=$1
  shift
  "$bin/sherd_bench" "$@" --device "$device" --json "$work/logs/$name.json" | tee "$work/logs/$name.txt"
  local code=${PIPESTATUS[0]}
  sed 's/^/figure: /' "$work/logs/$name.txt"
  return "$code"
}

hopper_figures() {
  { [ "$device" = cuda ] && nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -qx 9.0; } ||
    skip "the kernel is for compute capability 9.0"
  figures newton_schulz_hopper newton_schulz --symmetric-products hopper
}

torch_figures() {
  python3 -c 'import torch' || skip "python3 has no PyTorch"
  local flags=(--device "$device")
  [ "$device" = cuda ] || flags+=(--small)
  python3 "$bench/torch_ops.py" "${flags[@]}" >"$work/logs/torch_device.json" &&
    python3 "$bench/torch_muon.py" "${flags[@]}" >"$work/logs/torch_newton_schulz.json" &&
    python3 "$bench/compare.py" "$work/logs"
}

# ---- training

muon="--optimizer muon --ns-form gram --muon-working fp16 --muon-payload fp16"

# A step must wait for nothing on the host.
no_waits() {
  values "$1" host_syncs | awk -v name="$1" '
    $1 != 0 { bad = 1 } END { print "figure: " name ": host synchronisations in a step: " (bad ? "some" : NR ? 0 : "unknown"); exit bad || !NR }'
}

# speed NAME FLAGS...: a run in bf16; tokens a second, their share of the GPU's dense peak and of its products.
speed() {
  local name=$1
  shift
  run "$name" --device "$device" --precision bf16 --steps 8 "$@" || return
  echo "figure: $name: $(median "$name" tokens_per_s) tokens/s, step $(median "$name" step_ms) ms, optimizer $(median "$name" optim_ms) ms," \
    "mfu $(median "$name" mfu), product share $(median "$name" product_share), peak memory $(values "$name" peak_bytes | sort -g | tail -1 | awk '{printf "%.1f", $1 / 2 ^ 30}') GiB"
  no_waits "$name"
}

optimizer() { [ "$1" = muon ] && echo "$muon" || echo "--optimizer adamw"; }

# train_speed MODEL SEQ BATCH OPTIMIZER: a preset with its whole vocabulary, on random tokens.
train_speed() {
  local name=${1//[.-]/_}_$4 tokens=$work/tokens.u16 model="--model $1 --from-scratch --seq $2 --batch $3" vocabulary=32000
  [ "$device" = cuda ] || vocabulary=256 model="--dim 64 --layers 2 --heads 2 --seq 64 --batch 2"
  [ -e "$tokens" ] || python3 -c 'import array, random, sys
random.seed(1)
array.array("H", (random.randrange(int(sys.argv[2])) for _ in range(4_000_000))).tofile(open(sys.argv[1], "wb"))' "$tokens" "$vocabulary" || return
  speed "$name" --tokens "$tokens" --token-format u16 $model $(optimizer "$4")
}

# The byte model of 1.3 billion elements, by both optimizers.
bytes_speed() {
  local of size="--dim 2048 --layers 26 --heads 16 --seq 1024 --batch 16"
  [ "$device" = cuda ] || size="--dim 64 --layers 2 --heads 2 --seq 64 --batch 4"
  for of in adamw muon; do speed "bytes_1300m_$of" --data "$data" $size $(optimizer $of) || return; done
}

# Step times of both optimizers at half a million tokens a step.
muon_against_adamw() {
  local size="--dim 768 --layers 17 --heads 12 --seq 1024 --batch 512 --grad-accum 8 --steps 6" turn
  [ "$device" = cuda ] || size="--dim 64 --layers 2 --seq 64 --batch 16 --grad-accum 4 --steps 6"
  for turn in 1 2; do
    run "adamw_$turn" $size --optimizer adamw --device "$device" --precision bf16 &&
      run "muon_$turn" $size $muon --device "$device" --precision bf16 || return
    awk -v muon="$(median "muon_$turn" step_ms)" -v adamw="$(median "adamw_$turn" step_ms)" -v size="$size" 'BEGIN {
      printf "figure: %s: a step of Muon %.1f ms, of AdamW %.1f ms: %.3f\n", size, muon, adamw, muon / adamw }'
  done
}

# Losses of a libtorch model on the GPU and on the CPU, with the libraries of the PyTorch that python3 has.
libtorch_losses() {
  local program=libtorch_gpt torch size="--steps 6 --batch 4 --seq 64"
  [ -x "$bin/$program" ] || skip "there is no $program: GPU_CHECK_TORCH was not set when the programs were built"
  torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))') || skip "python3 has no PyTorch"
  export LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  run torch_cpu $size && run "torch_$device" $size --device "$device" && same "torch_$device" torch_cpu 1e-4
}

# A profile of this GPU, what a plan on it says of steps that train_speed ran, and a run that chooses its strategy by it.
plan_measured() {
  local profile=$work/logs/profile.json model name
  "$bin/sherd" plan --measure "$profile" --device "$device" || return
  for model in "gpt2-124m --seq 1024 --batch 64" "llama3.2-1b --seq 2048 --batch 4"; do
    name=${model%% *} name=${name//[.-]/_}_adamw
    "$bin/sherd" plan --json --precision bf16 --hardware "$profile" --preset $model >"$work/logs/plan_$name.jsonl" || return
    echo "figure: $name: planned $(median "plan_$name" tokens_per_s) tokens/s, measured $(median "$name" tokens_per_s 2>/dev/null)"
  done
  "$bin/train_gpt" --strategy auto --hardware "$profile" --device "$device" --steps 3 >"$work/logs/auto.out" &&
    grep '^strategy: ' "$work/logs/auto.out"
}

timeline() {
  run timeline $small --device "$device" --ranks 4 --strategy zero3 --optimizer muon --trace "$work/logs/trace.json" --timeline "$work/logs/timeline.svg" &&
    echo "figure: timeline.svg and trace.json are in the archive"
}

# shellcheck source-path=SCRIPTDIR source=gpu_check_several.sh
. "$here/gpu_check_several.sh"
found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$device" != cuda ] || [ "$found" -ge "${gpus:-1}" ] || skip "no GPU, or too few: $found of ${gpus:-1}"
"$@"
