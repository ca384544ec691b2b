# shellcheck shell=bash disable=SC2086,SC2154
# Part of gpu_check.sh: which steps there are, in which order, and what becomes of each. What they do is in
# gpu_check_work.sh, how their programs are ended in gpu_check_group.sh.

# Name, part, expected seconds on one H200, longest, and the function that does it with its arguments. Those of part
# `tests` are right or wrong: they run side by side and first, since the host's processors bound them. What is timed
# follows, one after the other, what tells most first.
steps() {
  [ -z "$gpus" ] || { several_steps; return; }
  cat <<'END'
kernels_0               tests     100  200  kernel_tests 0
kernels_1               tests     100  200  kernel_tests 1
kernels_2               tests     100  200  kernel_tests 2
kernels_3               tests     100  200  kernel_tests 3
kernels_4               tests     100  200  kernel_tests 4
kernels_5               tests     100  200  kernel_tests 5
strategies_bits         tests      40  150  strategies_bits
runs_repeat             tests      25  150  runs_repeat
nccl_one_rank           tests      25  150  nccl_one_rank
parity_cpu_cuda         tests     100  200  parity_cpu_cuda
checkpoint_crossing     tests      60  200  checkpoint_crossing
bench_device            bench       6  120  figures device device
gpt2_124m               training   10   90  train_speed gpt2-124m 1024 64 adamw
llama_1b                training   10   90  train_speed llama3.2-1b 2048 4 adamw
llama_1b_muon           training   10  120  train_speed llama3.2-1b 2048 4 muon
bytes_1300m             training   15  150  bytes_speed
plan_measured           bench      60  120  plan_measured
bench_newton_schulz     bench      10  120  figures newton_schulz newton_schulz --symmetric-products blocks
newton_schulz_hopper    bench      10  120  hopper_figures
bench_torch             bench      30  240  torch_figures
nccl_four_processes     nccl       60  180  nccl_four_processes
muon_against_adamw      training   90  180  muon_against_adamw
nccl_lost_rank          nccl       50  150  nccl_lost_rank
libtorch                training   40  150  libtorch_losses
timeline                training   12   60  timeline
sanitizers              sanitizer 150  300  sanitizers
END
}

# With --gpus: each step adds one thing to those before it, so that the first failure names its cause.
several_steps() {
  cat <<'END'
processes               several    20   60  several_processes
exact_order             several    15   60  several_exact_order
tp_and_replicas         several    25   60  several_groups
experts                 several    15   60  several_experts
async_save              several    20   60  several_saves
lost_process            several    20   60  several_lost
buffers                 several    30   60  several_buffers
threads                 several    35   60  several_threads
local_copies            several    25   60  several_copies
END
}

# Returns whether --only names the step or its part.
chosen() { [[ -z $only || ,$only, == *,$1,* || ,$only, == *,$2,* ]]; }

# Seconds of --minutes that are left; a lot without it. A few are kept for the archive.
seconds_left() { [ -z "$minutes" ] && echo 100000 || echo $((begin + minutes * 60 - 5 - SECONDS)); }

# summary.txt and logs.tar.gz as of now, each replaced as a whole. What is given ends the summary.
publish() {
  { cat "$work/summary"; printf '%s\n' "$@"; } >"$out/summary.txt.part" && mv "$out/summary.txt.part" "$out/summary.txt"
  tar -czf "$out/logs.tar.gz.part" -C "$work" logs && mv "$out/logs.tar.gz.part" "$out/logs.tar.gz"
}

say() { printf '%s\n' "$@" | tee -a "$work/summary"; }

# All chosen steps, counted in passed, skipped, failed and left_out.
run_steps() {
  local name part expected limit call beside=() longest=0 last=0
  while read -r name part expected limit call; do
    chosen "$name" "$part" || continue
    if [ "$part" = tests ]; then
      beside+=("$name $limit $call")
      longest=$((expected > longest ? expected : longest)) last=$((limit > last ? limit : last))
      continue
    fi
    [ ${#beside[@]} -eq 0 ] || step correctness "$longest" "$((last + 10))" side_by_side "${beside[@]}" </dev/null
    beside=()
    step "$name" "$expected" "$limit" $call </dev/null
  done < <(steps)
  [ ${#beside[@]} -eq 0 ] || step correctness "$longest" "$((last + 10))" side_by_side "${beside[@]}" </dev/null
  say "$passed passed, $skipped skipped, $failed failed, $left_out not run or cut off"
  publish
}

# step NAME EXPECTED LIMIT FUNCTION...: what it says goes to logs/NAME.log, its lines "figure: ..." to the summary. Exit
# code 77 is a SKIP. What still runs after LIMIT seconds is ended and has failed; when no time is left, it is cut off.
step() {
  local name=$1 expected=$2 limit=$3 left cut=0 log=$work/logs/$1.log start=$SECONDS code word why='' reason
  shift 3
  left=$(seconds_left)
  if [ -n "$ended" ] || [ "$left" -lt "$expected" ]; then
    why="expected to take $expected s, $((left > 0 ? left : 0)) are left"
    [ -z "$ended" ] || why="ended by SIG$(kill -l "$ended")"
    left_out=$((left_out + 1))
    say "$(printf 'NOT RUN  %-24s         %s' "$name" "$why")"
    [ -n "$ended" ] || publish
    return
  fi
  [ "$limit" -le "$left" ] || limit=$left cut=1
  publish "RUNNING  $name"
  attend "$limit" bash "$here/gpu_check_work.sh" "$@" >"$log" 2>&1
  code=$?
  [ -z "$ended" ] || [ $code -le 128 ] || code=ended
  reason=$(tail -n 3 "$log")
  if [ -n "$gpus" ] && [[ $code != 0 && $code != 77 && $code != ended ]] && [ "$(seconds_left)" -ge "$limit" ]; then
    echo "figure: once more, with --nccl-check-calls:" >>"$log"
    check_calls=--nccl-check-calls NCCL_DEBUG=INFO attend "$limit" bash "$here/gpu_check_work.sh" "$@" >>"$log" 2>&1
    reason+=$'\n'"with --nccl-check-calls: exit code $?"$'\n'$(tail -n 3 "$log")
  fi
  case $code in
    ended) word="CUT OFF" left_out=$((left_out + 1)) why="  ended by SIG$(kill -l "$ended")" ;;
    0) word=PASS passed=$((passed + 1)) ;;
    77) word=SKIP skipped=$((skipped + 1)) ;;
    124 | 137)
      why="  ended after $limit s"
      if [ $cut = 1 ]; then
        word="CUT OFF" left_out=$((left_out + 1)) why+=", when no time was left"
      else
        word=FAIL failed=$((failed + 1))
      fi
      ;;
    *) word=FAIL failed=$((failed + 1)) why="  exit code $code; see logs/$name.log" ;;
  esac
  say "$(printf '%-7s  %-24s %4d s%s' "$word" "$name" $((SECONDS - start)) "$why")"
  { grep -h '^figure: ' "$log" || true; } | sed 's/^figure: /      /' | tee -a "$work/summary"
  # The reason, where no figure tells it: the logs may not be at hand.
  if [ "$word" = FAIL ] && [ -s "$log" ]; then
    echo "$reason" | cut -c1-200 | sed 's/^/      | /' | tee -a "$work/summary"
  fi
  publish
}
