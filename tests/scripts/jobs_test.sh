#!/usr/bin/env bash
# The jobs of scripts/jobs with small models and few steps: each trains, writes a folder, and resumes when it is run again.
# jobs_test.sh FOLDER_OF_TRAIN_GPT REPOSITORY
set -euo pipefail
export BUILD=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ((i = 0; i < 3000; ++i)); do printf "\\$(printf %03o $((i * i % 190)))\\0"; done >"$work/tokens.bin"
export TOKENS=$work/tokens.bin VALID_TOKENS=$work/tokens.bin
small=(--token-format u16 --seq 16 --batch 8 --grad-accum 1 --warmup 1 --eval-every 2 --save-every 2 --threads 1 --precision fp32 --quiet)

# The flags that guard a run are the same in --help-all and on their page.
guards=$("$BUILD/train_gpt" --help-all | sed -n '/^Guards and stopping/,/^$/p' | grep -oE '^  --[a-z-]+')
[ -n "$guards" ]
for flag in $guards; do
  grep -qF -- "$flag" "$root/docs/training.md" || { echo "docs/training.md does not tell of $flag"; exit 1; }
done

job() {
  local script=$1 model=$2
  shift 2
  export OUT=$work/$script MODEL=$root/tests/golden/models/$model
  "$root/scripts/jobs/$script.sh" --model "$MODEL" "${small[@]}" --steps 3 "$@"
  [ "$(grep -c '"step":' "$OUT/metrics.jsonl")" -ge 3 ]
  rm -r "$OUT/model"
  "$root/scripts/jobs/$script.sh" --model "$MODEL" "${small[@]}" --steps 5 "$@"
  [ -s "$OUT/model/config.json" ] && [ -s "$OUT/model/model.safetensors" ] && [ -s "$OUT/loss.svg" ]
  grep -q '"step": *5,' "$OUT/metrics.jsonl" || { echo "$script did not go on to step 5"; exit 1; }
  echo "$script: trained, resumed, written"
}
job pretrain_gpt2_124m gpt2 --ranks 2
job finetune_llama llama --ranks 2
job moe_muon qwen3_moe --ranks 4 --decay-steps 2
