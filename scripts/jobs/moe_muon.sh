#!/usr/bin/env bash
# A mixture of experts with Muon for its matrices and AdamW for the rest; the experts are shared out over two ranks.
source "$(dirname "$0")/job.sh"
need MODEL "a folder of qwen3_moe or mixtral; with --from-scratch only its shape is taken"

train --model "$MODEL" --tokens "$TOKENS" --order shuffled --seq 2048 --batch 64 --grad-accum 4 --ranks 8 \
  --expert-parallel 2 --optimizer muon --steps 5000 --lr 1e-3 --lr-schedule wsd --decay-steps 1000 --warmup 100 \
  --precision bf16 --strategy zero3 --recompute blocks --save-every 500 --eval-every 100
