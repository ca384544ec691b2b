# shellcheck shell=bash
# What the jobs share; they source it. BUILD: where train_gpt lies.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
train_gpt=${BUILD:-$root/build/release/bin}/train_gpt
[ -x "$train_gpt" ] || { echo "$train_gpt is missing: build it (scripts/demo.sh), or set BUILD to its folder" >&2; exit 2; }
need() { [ -n "${!1:-}" ] || { echo "$0: set $1 to $2" >&2; exit 2; }; }
need TOKENS "the token files, with commas between them"
need OUT "the folder for checkpoints, metrics and the trained model"
mkdir -p "$OUT"

# train FLAG...: begins, or resumes the newest checkpoint of $OUT.
train() {
  local start=()
  if [ -e "$OUT/checkpoints/latest" ]; then
    start=(--resume "$OUT/checkpoints")
  fi
  "$train_gpt" "$@" --save "$OUT/checkpoints" --keep 3 --metrics "$OUT/metrics.jsonl" --loss-svg "$OUT/loss.svg" \
    --export-hf "$OUT/model" "${start[@]}" "${extra[@]}"
}
extra=("$@")
