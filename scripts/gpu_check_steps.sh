# shellcheck shell=bash disable=SC2086,SC2154
# Part of gpu_check.sh: the steps. A step's output goes to logs/NAME.log; lines "figure: ..." in it to the summary.
# Called as a program it runs one step's function; here, out, bin, bench, data and device come from gpu_check.sh.

# step NAME SECONDS FUNCTION...: exit code 77 of it is a SKIP. What is still running after so many seconds is ended.
step() {
  local name=$1 limit=$2 log=$out/logs/$1.log start=$SECONDS code word
  shift 2
  timeout -k 10 "$limit" bash "$here/gpu_check_steps.sh" "$@" >"$log" 2>&1
  code=$?
  case $code in 0) word=PASS ;; 77) word=SKIP ;; *) word=FAIL failed=$((failed + 1)) ;; esac
  printf '%s  %-32s %4d s%s\n' $word "$name" $((SECONDS - start)) \
    "$([ $code = 124 ] && echo "  timeout of $limit s"; [ $word = FAIL ] && [ $code != 124 ] && echo "  exit code $code; see $log")" |
    tee -a "$summary"
  grep -h '^figure: ' "$log" | sed 's/^figure: /      /' | tee -a "$summary"
  return 0
}

skip() { echo "figure: $*"; exit 77; }

# A small run of train_gpt: run NAME FLAGS... writes metrics to $out/NAME.jsonl.
run() {
  local name=$1
  shift
  "$bin/train_gpt" --data "$data" --metrics "$out/$name.jsonl" --quiet "$@"
}
small="--dim 128 --layers 4 --heads 4 --seq 128 --batch 16 --steps 20"

losses() { grep -o '"loss": [0-9.e+-]*' "$1" | cut -d' ' -f2; }

# same NAME NAME TOLERANCE: the losses of two runs, step by step, relative.
same() {
  paste <(losses "$out/$1.jsonl") <(losses "$out/$2.jsonl") | awk -v tolerance="$3" -v a="$1" -v b="$2" '
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
    step "$(basename "$program")" 300 gtest "$program"
  done
  [ $found = 1 ] || step cuda_tests 10 skip "there are no CUDA test programs in $bin"
  step parity_cpu_cuda 120 parity_cpu_cuda
  step strategies_bits 120 strategies_bits
  step runs_repeat 60 runs_repeat
  step checkpoint_crossing 120 checkpoint_crossing
}

# Suites that find no GPU skip every test: no failure, and no success either.
gtest() {
  "$@" --gtest_brief=1 || return
  echo "figure: $("$@" --gtest_list_tests | grep -c '^  ') tests"
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
  rm -rf "$out/again"
  run again $small --optimizer muon --device "$device" --ranks 4 --strategy zero3 --save "$out/again" &&
    "$bin/sherd" ckpt diff "$out/bits_zero3" "$out/again" &&
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
  step nccl_lost_rank 120 nccl_lost_rank
}

nccl_one_rank() {
  run local1 $small --optimizer muon --device "$device" &&
    run nccl1 $small --optimizer muon --device "$device" --comm nccl && same nccl1 local1 1e-5
}

# processes COUNT NAME FLAGS...: one process a rank, all on one GPU. NCCL takes two ranks on one GPU for a mistake unless
# it believes them on different hosts; it then talks over sockets.
processes() {
  local count=$1 name=$2 r code=0
  shift 2
  pids=()
  for ((r = 0; r < count; ++r)); do
    RANK=$r WORLD_SIZE=$count LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((29500 + RANDOM_PORT)) NCCL_HOSTID=gpu_check_$r \
      NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 run "$name" --device "$device" --comm nccl --ranks "$count" "$@" &
    pids+=($!)
  done
}
RANDOM_PORT=$((RANDOM % 2000))

nccl_four_processes() {
  local strategy pid
  for strategy in zero1 zero3; do
    run "local4_$strategy" $small --optimizer muon --device "$device" --ranks 4 --strategy $strategy || return
    RANDOM_PORT=$((RANDOM_PORT + 10))
    processes 4 "nccl4_$strategy" $small --optimizer muon --strategy $strategy
    for pid in "${pids[@]}"; do wait "$pid" || return; done
    same "nccl4_$strategy" "local4_$strategy" 1e-5 || return
  done
}

# When one process is killed, the others end with an error instead of waiting for it.
nccl_lost_rank() {
  local start=$SECONDS
  RANDOM_PORT=$((RANDOM_PORT + 10))
  processes 3 lost $small --steps 100000 --comm-timeout 30
  sleep 20
  pkill -9 -P "${pids[2]}"; kill -9 "${pids[2]}"
  wait "${pids[0]}" && return 1
  wait "${pids[1]}" && return 1
  echo "figure: one of three killed after 20 s: the others ended after $((SECONDS - start)) s"
}

# ---- compute-sanitizer

check_sanitizer() {
  local tool
  if ! command -v compute-sanitizer >/dev/null || [ ! -x "$bin/test_cuda_kernels" ]; then
    step sanitizer 10 skip "compute-sanitizer or $bin/test_cuda_kernels is missing"
    return
  fi
  for tool in memcheck racecheck initcheck synccheck; do step "sanitizer_$tool" 170 sanitize $tool; done
}

# Suite by suite, those that are slow under the tool cut off.
sanitize() {
  local tool=$1 suite code ran=0 slow=() start=$SECONDS only=()
  # The libraries read memory that they have not written, on purpose.
  [ "$tool" = initcheck ] && compute-sanitizer --help | grep -q -- --kernel-regex && only=(--kernel-regex kns=sherd)
  for suite in $("$bin/test_cuda_kernels" --gtest_list_tests | grep -v '^ ' | sed 's/\..*//' | sort -u); do
    [ $((SECONDS - start)) -lt 130 ] || { slow+=("$suite"); continue; }
    timeout -k 5 25 compute-sanitizer --tool "$tool" "${only[@]}" --error-exitcode 9 "$bin/test_cuda_kernels" --gtest_brief=1 \
      --gtest_filter="$suite.*"
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
  step train_speed 120 train_speed
  step timeline 60 timeline
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

# Tokens per second of a GPT of 8 x 1024 (about 100 million parameters).
train_speed() {
  local precision size="--dim 1024 --layers 8 --heads 16 --seq 1024 --batch 16 --steps 12"
  [ "$device" = cuda ] || size="--dim 64 --layers 2 --seq 64 --batch 4 --steps 4"
  for precision in fp32 bf16; do
    run "speed_$precision" $size --optimizer muon --ns-form gram --muon-working fp16 --device "$device" --precision $precision || return
    echo "figure: train_gpt $size --precision $precision: $(grep -o '"tokens_per_s": [0-9.e+]*' "$out/speed_$precision.jsonl" |
      cut -d' ' -f2 | sort -g | awk '{v[NR] = $1} END {printf "%.0f", v[int((NR + 1) / 2)]}') tokens/s (median step)"
  done
}

timeline() {
  run timeline $small --device "$device" --ranks 4 --strategy zero3 --optimizer muon --trace "$out/trace.json" --timeline "$out/timeline.svg" &&
    echo "figure: $out/timeline.svg, $out/trace.json"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || "$@"
