#!/usr/bin/env bash
# libtorch_gpt against train_gpt: the same weights and data give the same losses and gradient norms to 1e-5 on any number of
# ranks, and the same weights, byte for byte, under every strategy; a run can be resumed elsewhere. SOAP divides by
# eigenvalues that are rounding in early factors (docs/soap.md): with a larger --soap-eps its losses agree to 0.0005.
# Usage: libtorch_gpt_test.sh BIN_FOLDER DATA_FOLDER
set -euo pipefail
bin=$1 data=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
failed=0
complain() { echo "$*"; failed=1; }

model=(--dim 32 --layers 2 --heads 2 --seq 32)
flags=(--data "$data" "${model[@]}" --batch 12 --lr 0.003 --quiet --threads 1 --init-weights init.safetensors)
"$bin/libtorch_gpt" --steps 0 --export-weights init.safetensors "${model[@]}"

# "STEP LOSS NORM" of every step of a metrics file.
figures() { sed -nE 's/^\{"step": ([0-9]+),.*"loss": ([^,}]+).*"grad_norm": ([^,}]+).*/\1 \2 \3/p' "$1"; }
# same_figures A B [LOSSES]: of every step that B has; with LOSSES only losses, to so much.
same_figures() {
  awk -v a="$1" -v b="$2" -v losses="${3:-0}" '
    FNR == NR { loss[$1] = $2; norm[$1] = $3; next }
    { ++n; d = $2 - loss[$1]; e = losses ? 0 : $3 - norm[$1]; if (d * d > (losses ? losses * losses : 1e-10) || e * e > 1e-10 || !($1 in loss)) { print b ": step " $1 ": " $2 ", " $3 "; " a ": " loss[$1] ", " norm[$1]; bad = 1 } }
    END { if (n == 0) { print b " has no steps"; bad = 1 } exit bad }' <(figures "$1") <(figures "$2") || failed=1
}

for optimizer in adamw muon normuon fraction soap; do
  run=("${flags[@]}" --steps 8 --optimizer "$optimizer")
  [ $optimizer != fraction ] || run=("${flags[@]}" --steps 8 --optimizer muon --muon-fraction 0.25)
  [ $optimizer != soap ] || run+=(--soap-eps 1e-3)
  "$bin/train_gpt" "${run[@]}" --metrics train.$optimizer
  losses=
  [ $optimizer != soap ] || losses=0.0005
  for arrangement in 1.zero0 1.zero3 3.zero0 3.zero1 3.zero2 3.zero3 4.zero0 4.zero3; do
    ranks=${arrangement%.*} strategy=${arrangement#*.} name=$optimizer.$arrangement
    "$bin/libtorch_gpt" "${run[@]}" --ranks $ranks --strategy $strategy --metrics metrics.$name --export-weights weights.$name
    same_figures train.$optimizer metrics.$name $losses
    cmp weights.$optimizer.$ranks.zero0 weights.$name || failed=1
  done
  "$bin/libtorch_gpt" "${run[@]}" --ranks 3 --recompute blocks --export-weights weights.$optimizer.recomputed
  cmp weights.$optimizer.3.zero0 weights.$optimizer.recomputed || failed=1
done
"$bin/libtorch_gpt" "${flags[@]}" --steps 8 --ranks 3 --grad-accum 2 --metrics metrics.accumulated
same_figures train.adamw metrics.accumulated
"$bin/libtorch_gpt" "${flags[@]}" --steps 4 --ranks 3 --save saved
"$bin/libtorch_gpt" "${flags[@]}" --steps 8 --ranks 4 --strategy zero1 --resume saved --metrics metrics.resumed
same_figures train.adamw metrics.resumed
[ "$(figures metrics.resumed | head -1 | cut -d' ' -f1)" = 5 ] || complain "the resumed run did not begin with step 5"

# Further flags of the same name in both: held-out losses, schedules, AdamW's numbers; and replicas.
run=("${flags[@]}" --steps 6 --eval-every 3 --adam-beta1 0.8 --adam-beta2 0.99 --adam-eps 1e-6 --lr-schedule wsd --decay-steps 3 --min-lr 0.001)
"$bin/train_gpt" "${run[@]}" --metrics train.told
"$bin/libtorch_gpt" "${run[@]}" --ranks 4 --replicas 2 --layout even_rows --metrics metrics.told --trace trace.json
same_figures train.told metrics.told
held_out() { sed -nE 's/.*"eval_loss": ([^,}]+).*/\1/p' "$1"; }
[ "$(held_out metrics.told | wc -l)" = 2 ] || complain "held-out losses: $(held_out metrics.told)"
paste <(held_out train.told) <(held_out metrics.told) | awk '{ d = $1 - $2; if (d * d > 1e-10) { print "held-out losses: " $0; exit 1 } }' || failed=1
grep -q '"name"' trace.json || complain "nothing is traced"

code=0
"$bin/libtorch_gpt" --heads 3 --ranks 5 2>usage || code=$?
[ $code -eq 2 ] || complain "wrong flags: exit status $code"
code=0
"$bin/libtorch_gpt" --steps 0 --muon-fraction 0.25 2>idle || code=$?
[ $code -eq 2 ] && grep -q "no parameter goes to Muon" idle || complain "a flag of Muon without Muon: $(cat idle)"
grep -q -- --heads usage && grep -q -- --batch usage && grep -q -- --data usage || complain "not all wrong flags are named: $(cat usage)"
exit $failed
