#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small GPT on the C++ standard library's headers: 4 in-process ranks,
# everything sharded (zero3), Muon for the hidden matrices and AdamW for the rest. The run stops after three quarters and
# goes on from its checkpoint on 2 ranks with another strategy and layout. Minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_deps.sh
cmake --preset release >/dev/null
cmake --build --preset release --target train_gpt sherd_tool
mkdir -p out
rm -f out/demo.jsonl
bin=build/release/bin
config=samples/train_gpt/demo.txtpb
outputs=(--metrics out/demo.jsonl --loss-svg out/demo.svg)

"$bin/train_gpt" --config "$config" "${outputs[@]}" \
  --save out/checkpoints --save-every 100 --keep 2 --async-save --stop-at 300 "$@"
echo
echo "== what was saved"
"$bin/sherd" ckpt inspect out/checkpoints
"$bin/sherd" ckpt verify out/checkpoints
echo
echo "== going on with 2 ranks, zero1, layout even_rows"
exec "$bin/train_gpt" --config "$config" "${outputs[@]}" --ranks 2 --strategy zero1 --layout even_rows \
  --resume out/checkpoints --export-weights out/demo.safetensors --sample 400 "$@"
