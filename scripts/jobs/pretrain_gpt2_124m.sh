#!/usr/bin/env bash
# GPT-2 124M from random weights: half a million tokens a step, as the model was trained by others. README.md says how to
# run it; on one GPU give --ranks 1 --grad-accum 16, on eight --ranks 8 --grad-accum 2.
source "$(dirname "$0")/job.sh"

train --model gpt2-124m --from-scratch --tokens "$TOKENS" --order shuffled --seq 1024 --batch 512 --grad-accum 16 \
  --steps 19000 --lr 6e-4 --lr-schedule cosine --min-lr 6e-5 --warmup 700 --weight-decay 0.1 --grad-clip 1 \
  --precision bf16 --strategy zero2 --save-every 1000 --eval-every 250
