# shellcheck shell=bash disable=SC2034,SC2046,SC2086,SC2154
# Part of gpu_check.sh: the steps of --gpus N, which gpu_check_work.sh runs. A process for each GPU, unless the step says
# otherwise. `check_calls` is --nccl-check-calls on the second try of a step.

# A model for runs that shall be right, and one whose units take the time of a transfer. Imitated GPUs compute slowly.
tiny="--dim 64 --layers 2 --heads 4 --seq 32 --batch $((2 * ${gpus:-1})) --steps 6 --strategy zero3"
wide="--dim 4096 --layers 4 --heads 32 --seq 1024 --batch ${gpus:-1} --steps 6 --strategy zero3 --precision bf16"
[ "$device" = cuda ] && [ -z "${SHERD_HOST_CUDA_DEVICES:-}" ] || wide=$tiny

# ranks COUNT NAME FLAGS...: a run of so many processes. NAME.trace compares what they did last when it fails.
ranks() {
  local launcher=("$bin/sherd" run --max-restarts 0 --stop-grace 2 --nproc "$1" --) name=$2
  shift 2
  needs_gpu
  run "$name" --device "$device" --comm nccl --comm-timeout 20 --flight-recorder "$work/logs/$name.flight" ${check_calls:-} "$@" && return
  "$bin/sherd" trace "$work/logs/$name.flight" >"$work/logs/$name.trace" 2>&1
  return 1
}

# threads NAME FLAGS...: a run of one thread a GPU, which read each other's memory.
threads() { run "$1" --device "$device" --ranks "$gpus" --comm-timeout 20 "${@:2}"; }

# cpu OPTIMIZER: the losses to compare with, as cpu_OPTIMIZER.
cpu() { run "cpu_$1" $tiny --optimizer "$1"; }

# bits NAME NAME: losses and exported weights of two runs are equal.
bits() {
  same "$1" "$2" 0 && cmp "$work/$1.safetensors" "$work/$2.safetensors" && echo "figure: weights of $1 and $2: bit-identical"
}
export_of() { echo "--export-weights $work/$1.safetensors"; }

several_processes() {
  local count
  cpu adamw || return
  for count in $(printf '%s\n' 2 "$gpus" | uniq); do
    ranks "$count" "processes_$count" $tiny && same "processes_$count" cpu_adamw 1e-4 || return
  done
}

several_exact_order() {
  threads local $tiny $(export_of local) &&
    ranks "$gpus" exact $tiny --nccl-exact-order $(export_of exact) && bits exact local
}

# Two communicators of tensors and shards, then three of shards and replicas, and Muon's.
several_groups() {
  cpu adamw && ranks "$gpus" tp_2 $tiny --tp 2 && same tp_2 cpu_adamw 1e-4 &&
    cpu muon && ranks "$gpus" replicas_2 $tiny --replicas 2 --optimizer muon && same replicas_2 cpu_muon 1e-4
}

# Two tokens a rank, each with one of four experts a rank: most pairs of ranks exchange nothing in a step.
several_experts() {
  local few="$tiny --seq 2 --batch $gpus --experts $((4 * gpus)) --expert-parallel $gpus --expert-top-k 1"
  threads experts_local $few $(export_of experts_local) &&
    ranks "$gpus" experts $few --nccl-exact-order $(export_of experts) && bits experts experts_local
}

several_saves() {
  rm -rf "$work/saved" "$work/resumed"  # of the first try
  ranks "$gpus" saved $tiny --save "$work/saved" --save-every 3 --async-save &&
    ranks "$gpus" resumed $tiny --resume "$work/saved/step_00000003" --save "$work/resumed" &&
    "$bin/sherd" ckpt diff "$work/saved" "$work/resumed" &&
    echo "figure: resumed from step 3, saved in the background: weights and states of step 6 bit-identical"
}

several_lost() { needs_gpu; lost_rank "$gpus" $tiny ${check_calls:-}; }

# Sums in windows may have another order, unless it is the exact one.
several_buffers() {
  local kind exact="$tiny --nccl-exact-order"
  ranks "$gpus" plain $exact $(export_of plain) || return
  for kind in windows register-buffers; do
    ranks "$gpus" "$kind" $exact --nccl-$kind $(export_of $kind) && bits $kind plain || return
  done
}

# What becomes of it is information; only wrong losses are a failure.
several_threads() {
  local launcher=(timeout --foreground -k 2 30) code
  needs_gpu
  threads threads $tiny --comm nccl --nccl-threads ${check_calls:-} 2>&1 | tee "$work/logs/threads.txt"
  code=${PIPESTATUS[0]}
  case $code in
    0) echo "figure: threads of one process with NCCL: they train"; cpu adamw && same threads cpu_adamw 1e-4; return ;;
    124 | 137) echo "figure: threads of one process with NCCL: they hang, after $(values threads loss 2>/dev/null | wc -l) steps" ;;
    *) echo "figure: threads of one process with NCCL: exit code $code, $(grep -v ': line [0-9]' "$work/logs/threads.txt" | tail -n 1 | cut -c1-200)" ;;
  esac
}

several_copies() {
  cpu adamw && threads copies $tiny && same copies cpu_adamw 1e-4 &&
    threads wide $wide --trace "$work/logs/wide_trace.json" || return
  # A bar begins when its rank arrives: the shortest of a collective has no wait for peers.
  python3 - "$work/logs/wide" <<'END'
import json, sys
bars, received = {}, 0
for e in json.load(open(sys.argv[1] + "_trace.json"))["traceEvents"]:
    if e["name"].startswith("all_gather") and e["ph"] == "X":
        bars.setdefault(e["pid"], []).append((e["ts"], e["dur"]))
for step in [json.loads(line) for line in open(sys.argv[1] + ".jsonl")][2:4]:
    received += sum(c["bytes"] for name, c in step["comm"].items() if name.startswith("all_gather"))
shortest = [min(times) for times in zip(*([dur for _, dur in sorted(of)] for of in bars.values()))]
print(f"figure: --comm local: {len(shortest)} all-gathers of {received / len(shortest) / 1e6:.4g} MB a rank on average, "
      f"{received / sum(shortest) / 1e3:.4g} GB/s a rank")
END
}
