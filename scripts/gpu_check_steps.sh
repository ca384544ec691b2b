# shellcheck shell=bash disable=SC2086,SC2154
# Part of gpu_check.sh: the steps. A step's output goes to logs/NAME.log; lines "figure: ..." in it to the summary.
# Called as a program it runs one step's function; here, out, bin, bench, data and device come from gpu_check.sh.

# Names that steps are made of beside those written below.
sanitizers="memcheck racecheck initcheck synccheck"
# Every step with its part, for --only.
steps() {
  grep -oE '\bstep [a-z][a-z0-9_]* [0-9]+' "${BASH_SOURCE[0]}" | cut -d' ' -f2
  for tool in $sanitizers; do echo "sanitizer_$tool"; done
  for program in "${bin:-}"/test_cuda*; do basename "$program"; done
}

# Whether --only names this step or its part.
chosen() { [[ ,$only, == *,$part,* || ,$only, == *,$1,* ]]; }

# step NAME SECONDS FUNCTION...: exit code 77 of it is a SKIP. What is still running after so many seconds is ended.
step() {
  chosen "$1" || return 0
  local name=$1 limit=$2 log=$out/logs/$1.log start=$SECONDS code word
  shift 2
  timeout -k 10 "$limit" bash "$here/gpu_check_steps.sh" "$@" >"$log" 2>&1
  code=$?
  case $code in
    0) word=PASS passed=$((passed + 1)) ;;
    77) word=SKIP skipped=$((skipped + 1)) ;;
    *) word=FAIL failed=$((failed + 1)) ;;
  esac
  printf '%s  %-32s %4d s%s\n' $word "$name" $((SECONDS - start)) \
    "$([ $code = 124 ] && echo "  timeout of $limit s"; [ $word = FAIL ] && [ $code != 124 ] && echo "  exit code $code; see $log")" |
    tee -a "$summary"
  grep -h '^figure: ' "$log" | sed 's/^figure: /      /' | tee -a "$summary"
  return 0
}

skip() { echo "figure: $*"; exit 77; }

# A run of train_gpt: run NAME FLAGS... writes metrics to $out/NAME.jsonl.
run() {
  local name=$1
  shift
  "$bin/train_gpt" --data "$data" --metrics "$out/$name.jsonl" --quiet "$@"
}
small="--dim 128 --layers 4 --heads 4 --seq 128 --batch 16 --steps 20"

# Every value of a metric in a run: values NAME FIELD; and their median: median NAME FIELD.
values() { grep -oE "\"$2\": [0-9.e+-]+" "$out/$1.jsonl" | cut -d' ' -f2; }
median() { values "$1" "$2" | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

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

check_tests() {
  local program found=0
  for program in "$bin"/test_cuda*; do
    [[ -x $program && $program != *cuda_host* ]] || continue
    found=1
    step "$(basename "$program")" 240 gtest "$program"
  done
  [ $found = 1 ] || step cuda_tests 10 skip "there are no CUDA test programs in $bin"
  step parity_cpu_cuda 90 parity_cpu_cuda
  step strategies_bits 60 strategies_bits
  step runs_repeat 30 runs_repeat
  step checkpoint_crossing 60 checkpoint_crossing
}

# Suites that find no GPU skip every test: that is no success.
gtest() {
  local log=$out/logs/$(basename "$1").gtest
  "$1" --gtest_brief=1 2>&1 | tee "$log"
  local code=${PIPESTATUS[0]}
  grep -q '^\[  SKIPPED \] every test' "$log" && { echo "figure: no GPU, nothing ran"; return 1; }
  echo "figure: $(grep -hE '^\[  (PASSED|SKIPPED|FAILED) +\] [0-9]+ tests?' "$log" | sed 's/^\[ *\([A-Z]*\) *\]/\1/' | paste -sd' ')"
  [ "$code" = 0 ] && ! grep -qE '^\[  PASSED  \] 0 tests' "$log"
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
  local strategy
  for strategy in zero0 zero1 zero2 zero3; do
    rm -rf "$out/bits_$strategy"
    run "bits_$strategy" $small --optimizer muon --device "$device" --ranks 4 --strategy $strategy --save "$out/bits_$strategy" || return
    [ $strategy = zero0 ] || "$bin/sherd" ckpt diff "$out/bits_zero0" "$out/bits_$strategy" || return
  done
  echo "figure: zero0 to zero3 on 4 ranks: weights and states bit-identical"
}

runs_repeat() {
  local turn
  rm -rf "$out"/turn_*
  for turn in 1 2; do
    run turn_$turn $small --optimizer muon --device "$device" --ranks 4 --strategy zero3 --save "$out/turn_$turn" || return
  done
  "$bin/sherd" ckpt diff "$out/turn_1" "$out/turn_2" &&
    echo "figure: the same run twice: bit-identical"
}

# A checkpoint goes from the GPU to the CPU and back, unchanged; training goes on from it on either alike.
checkpoint_crossing() {
  rm -rf "$out"/cross_*
  local ten="$small --optimizer muon --stop-at 10"
  run cross_a $ten --device "$device" --ranks 2 --save "$out/cross_a" &&
    run cross_b $ten --device cpu --ranks 4 --resume "$out/cross_a" --save "$out/cross_b" &&
    "$bin/sherd" ckpt diff "$out/cross_a" "$out/cross_b" &&
    run cross_c $ten --device "$device" --ranks 1 --resume "$out/cross_b" --save "$out/cross_c" &&
    "$bin/sherd" ckpt diff "$out/cross_a" "$out/cross_c" &&
    run cross_gpu $small --optimizer muon --device "$device" --ranks 2 --resume "$out/cross_b" &&
    run cross_cpu $small --optimizer muon --device cpu --ranks 2 --resume "$out/cross_a" &&
    same cross_gpu cross_cpu 1e-4 &&
    echo "figure: checkpoints cuda -> cpu -> cuda: bit-identical"
}

# ---- NCCL

check_nccl() {
  step nccl_one_rank 60 nccl_one_rank
  step nccl_four_processes 180 nccl_four_processes
  step nccl_lost_rank 150 nccl_lost_rank
}

nccl_one_rank() {
  run local1 $small --optimizer muon --device "$device" &&
    run nccl1 $small --optimizer muon --device "$device" --comm nccl && same nccl1 local1 1e-5
}

port=$((29500 + RANDOM % 2000))
# processes COUNT NAME FLAGS...: one process a rank, all on one GPU, their pids in `pids`, what they say in NAME.rankR.
# NCCL takes two ranks on one GPU for a mistake unless it believes them on different hosts; it then talks over sockets.
processes() {
  local count=$1 name=$2 r
  shift 2
  pids=() port=$((port + 10))
  for ((r = 0; r < count; ++r)); do
    RANK=$r WORLD_SIZE=$count LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_HOSTID=gpu_check_$r \
      NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 "$bin/train_gpt" --data "$data" --metrics "$out/$name.jsonl" --quiet \
      --device "$device" --comm nccl --ranks "$count" "$@" >"$out/logs/$name.rank$r" 2>&1 &
    pids+=($!)
  done
}

nccl_four_processes() {
  local strategy r failed
  for strategy in zero1 zero3; do
    run "local4_$strategy" $small --optimizer muon --device "$device" --ranks 4 --strategy $strategy || return
    processes 4 "nccl4_$strategy" $small --optimizer muon --strategy $strategy
    failed=0
    for r in 0 1 2 3; do
      wait "${pids[r]}" || { echo "rank $r ended with $?:"; tail -5 "$out/logs/nccl4_$strategy.rank$r"; failed=1; }
    done
    [ $failed = 0 ] && same "nccl4_$strategy" "local4_$strategy" 1e-5 || return
  done
}

# When one process is killed in the middle of training, the others end with an error that names it.
nccl_lost_rank() {
  local r start
  rm -f "$out/lost.jsonl"
  processes 3 lost $small --batch 15 --steps 100000 --comm-timeout 60
  for ((r = 0; r < 60; ++r)); do
    sleep 1
    [ "$(values lost loss 2>/dev/null | wc -l)" -ge 20 ] && break
  done
  kill -0 "${pids[@]}" || { echo "not all were running:"; tail -5 "$out"/logs/lost.rank*; kill "${pids[@]}"; return 1; }
  start=$SECONDS
  kill -9 "${pids[2]}"
  for r in 0 1; do
    wait "${pids[r]}"
    [ $? = 1 ] && grep "rank 2" "$out/logs/lost.rank$r" || { echo "rank $r:"; cat "$out/logs/lost.rank$r"; return 1; }
  done
  echo "figure: one of three processes killed while training: the others ended, naming it, after $((SECONDS - start)) s"
  [ $((SECONDS - start)) -le 30 ]
}

# ---- compute-sanitizer

check_sanitizer() {
  local tool
  PATH=$PATH:/usr/local/cuda/bin
  for tool in $sanitizers; do step "sanitizer_$tool" 120 sanitize $tool; done
}

# Suite by suite, those that are slow under the tool cut off. sherd looks at the result of every call itself.
sanitize() {
  local tool=$1 suite code ran=0 slow=() start=$SECONDS flags=(--report-api-errors no --error-exitcode 9)
  local program=$bin/test_cuda_kernels
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not there"
  [ -x "$program" ] || skip "$program is missing"
  compute-sanitizer --tool "$tool" "${flags[@]}" "$program" --gtest_filter=Elementwise.Fill* 2>&1 |
    grep -q "Device not supported" && skip "compute-sanitizer does not support this machine"
  # The libraries read memory that they have not written, on purpose.
  [ "$tool" = initcheck ] && compute-sanitizer --help | grep -q -- --kernel-regex && flags+=(--kernel-regex kns=sherd)
  for suite in $("$program" --gtest_list_tests | grep -v '^ ' | sed 's/\..*//' | sort -u); do
    [ $((SECONDS - start)) -lt 85 ] || { slow+=("$suite"); continue; }
    timeout -k 5 20 compute-sanitizer --tool "$tool" "${flags[@]}" "$program" --gtest_brief=1 --gtest_filter="$suite.*"
    code=$?
    case $code in
      0) ran=$((ran + 1)) ;;
      124 | 137) slow+=("$suite") ;;
      *) echo "figure: $tool: $suite ended with $code"; return 1 ;;
    esac
  done
  echo "figure: $tool: $ran suites clean; cut off as slow: ${slow[*]:-none}"
  [ $ran -gt 0 ]
}

# ---- figures

check_bench() {
  step bench_device 120 figures device --device "$device"
  step bench_newton_schulz 90 figures newton_schulz --device "$device"
  step bench_torch 150 torch_figures
}

figures() {
  "$bin/sherd_bench" "$@" --json "$out/$1.json" | tee "$out/$1.txt"
  local code=${PIPESTATUS[0]}
  sed 's/^/figure: /' "$out/$1.txt"
  return "$code"
}

torch_figures() {
  python3 -c 'import torch' || skip "python3 has no PyTorch"
  local flags=(--device "$device")
  [ "$device" = cuda ] || flags+=(--small)
  python3 "$bench/torch_ops.py" "${flags[@]}" >"$out/torch_device.json" &&
    python3 "$bench/torch_muon.py" "${flags[@]}" >"$out/torch_newton_schulz.json" &&
    python3 "$bench/compare.py" "$out"
}

# ---- training

check_training() {
  step train_124m 90 train_speed 124m 17 768 12 64
  step train_1300m 120 train_speed 1300m 26 2048 16 16
  step muon_against_adamw 150 muon_against_adamw
  step timeline 60 timeline
}

muon="--optimizer muon --ns-form gram --muon-working fp16 --muon-payload fp16"

# The measured bf16 product of bench_device, TFLOP/s, or nothing.
ceiling() { awk '/^gemm bf16/ { for (i = 1; i <= NF; ++i) last = $i; print last; exit }' "$out/device.txt" 2>/dev/null; }

# A step must wait for nothing on the host.
no_waits() {
  values "$1" host_syncs | awk -v name="$1" '
    $1 != 0 { bad = 1 } END { print "figure: " name ": host synchronisations in a step: " (bad ? "some" : NR ? 0 : "unknown"); exit bad || !NR }'
}

# train_speed NAME LAYERS DIM HEADS BATCH: bf16, sequences of 1024, both optimizers. Operations of a token: 6 for each
# element of a matrix and 6 T D of causal attention a layer.
train_speed() {
  local name=$1 layers=$2 dim=$3 heads=$4 batch=$5 seq=1024 steps=10 optimizer
  [ "$device" = cuda ] || layers=2 dim=64 heads=2 batch=4 seq=64 steps=4
  for optimizer in "--optimizer adamw" "$muon"; do
    run "speed_$name" $optimizer --device "$device" --precision bf16 --dim $dim --layers $layers --heads $heads --seq $seq \
      --batch $batch --steps $steps || return
    awk -v what="$name, ${optimizer%% --ns*}, $batch sequences of $seq" -v speed="$(median "speed_$name" tokens_per_s)" \
      -v flops=$((layers * (72 * dim * dim + 6 * seq * dim) + 6 * 256 * dim)) -v top="$(ceiling)" 'BEGIN {
        tflops = speed * flops / 1e12
        printf "figure: %s: %.0f tokens/s, %.3g TFLOP/s", what, speed, tflops
        if (top > 0) printf ", %.0f %% of gemm bf16 (%.0f)", 100 * tflops / top, top
        print ""
      }'
    no_waits "speed_$name" || return
  done
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

timeline() {
  run timeline $small --device "$device" --ranks 4 --strategy zero3 --optimizer muon --trace "$out/trace.json" --timeline "$out/timeline.svg" &&
    echo "figure: $out/timeline.svg, $out/trace.json"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || "$@"
