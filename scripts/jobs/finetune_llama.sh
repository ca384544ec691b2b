#!/usr/bin/env bash
# A llama folder on one's own tokens. Every rank reads only its part of the weights, and nothing of the model's size is
# ever whole on one of them.
source "$(dirname "$0")/job.sh"
need MODEL "a folder of Hugging Face, e.g. one of Llama 3.2 1B"
need VALID_TOKENS "token files that are not trained on"

train --model "$MODEL" --tokens "$TOKENS" --valid-tokens "$VALID_TOKENS" --order shuffled --seq 2048 --batch 32 \
  --grad-accum 4 --steps 1000 --lr 1e-5 --lr-schedule linear --min-lr 0 --warmup 50 --weight-decay 0 --grad-clip 1 \
  --precision bf16 --strategy zero3 --recompute blocks --save-every 200 --eval-every 50
