#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small GPT on the C++ standard library's headers: 4 in-process ranks,
# everything sharded (zero3), Muon for the hidden matrices and AdamW for the rest. Minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_deps.sh
cmake --preset release >/dev/null
cmake --build --preset release --target train_gpt
mkdir -p out
exec build/release/bin/train_gpt --config samples/train_gpt/demo.txtpb "$@"
