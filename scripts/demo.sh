#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small GPT on the C++ standard library's headers: 4 in-process ranks,
# everything sharded (zero3), Muon for the hidden matrices and AdamW for the rest. The run stops after three quarters and
# resumes its checkpoint on 2 ranks with another strategy and layout. Minutes on two cores.
#
# Usage: scripts/demo.sh [flags of both halves] [-- [flags of the first half] [-- [flags of the second half]]]
#   scripts/demo.sh --steps 40 --seq 64              a shorter run: what is trained must be the same in both halves
#   scripts/demo.sh -- --save-every 50               the first half alone
#   scripts/demo.sh -- -- --ranks 1 --sample 1000    the second half alone
# The first half stops after three quarters of --steps. What an earlier demo saved in out/ is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."

both=() first=() second=()
half=0 steps=400 expect_steps=
for argument in "$@"; do
  if [ "$argument" = -- ]; then
    half=$((half + 1))
    continue
  fi
  case $half in
    0) both+=("$argument") ;;
    1) first+=("$argument") ;;
    2) second+=("$argument") ;;
    *) echo "demo.sh: more than two --; see the head of this file" >&2; exit 2 ;;
  esac
  if [ $half -eq 0 ] && [ -n "$expect_steps" ]; then steps=$argument; fi
  if [ "$argument" = --steps ]; then expect_steps=1; else expect_steps=; fi
  case $argument in
    --steps=*) if [ $half -eq 0 ]; then steps=${argument#--steps=}; fi ;;
    --save | --save=* | --resume | --resume=* | --metrics | --metrics=* | --loss-svg | --loss-svg=* | --stop-at | --stop-at=*)
      echo "demo.sh: $argument is chosen by the demo itself, whose halves hang together by it; use train_gpt" >&2
      exit 2 ;;
  esac
done
if ! [[ $steps =~ ^[0-9]+$ ]] || [ "$steps" -lt 2 ]; then
  echo "demo.sh: --steps $steps: must be 2 or more, for two halves" >&2
  exit 2
fi
stop=$((steps * 3 / 4))

scripts/install_deps.sh
cmake --preset release >/dev/null
cmake --build --preset release --target train_gpt sherd_tool
mkdir -p out
rm -f out/demo.jsonl
bin=build/release/bin
config=programs/train_gpt/demo.txtpb
outputs=(--metrics out/demo.jsonl --loss-svg out/demo.svg)

"$bin/train_gpt" --config "$config" "${outputs[@]}" \
  --save out/checkpoints --overwrite --save-every 100 --keep 2 --async-save --stop-at "$stop" "${both[@]}" "${first[@]}"
echo
echo "== what was saved"
"$bin/sherd" ckpt inspect out/checkpoints
"$bin/sherd" ckpt verify out/checkpoints
echo
echo "== resuming with 2 ranks, zero1, layout even_rows"
exec "$bin/train_gpt" --config "$config" "${outputs[@]}" --ranks 2 --strategy zero1 --layout even_rows \
  --resume out/checkpoints --export-weights out/demo.safetensors --sample 400 \
  "${both[@]}" "${second[@]}"
