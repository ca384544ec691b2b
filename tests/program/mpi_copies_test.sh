#!/usr/bin/env bash
# Processes whose copies of files differ are refused alike, before anything is loaded: by each flag that names files, with
# one and several files, under zero0 and zero3. Equal copies under different paths are accepted.
#   mpi_copies_test.sh TRAIN_GPT [MPIRUN]        SHERD_NIGHTLY=1: the product; otherwise each flag once or twice
# 77 (skipped, and says so) where there is no mpirun.
set -uo pipefail
train_gpt=$1
source "$(dirname "$0")/mpi_environment.sh" "${2:-}"
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
cd "$scratch" || exit 1

model=(--dim 24 --layers 1 --heads 2 --seq 16 --batch 6 --threads 1 --quiet)
bytes() { head -c "$1" /dev/zero | openssl enc -aes-128-ctr -pass "pass:$2" -nosalt 2>/dev/null; }

mkdir equal0 equal1 odd
for folder in equal0 equal1; do
  bytes 40000 text | base64 >"$folder/text"
  mkdir "$folder/texts"
  bytes 9000 a | base64 >"$folder/texts/a"
  bytes 9000 b | base64 >"$folder/texts/b"
  for name in a b valid; do bytes 9000 $name | base64 -w 0 | sed 's/./&\x00/g' >"$folder/$name.bin"; done
done
"$train_gpt" "${model[@]}" --data equal0/text --steps 2 --seed 1 --save equal0/run --export-weights equal0/weights.safetensors \
  >first.out 2>&1 || fail "the first run: $(cat first.out)"
cp -r equal0/run equal0/weights.safetensors equal1/
cp -r equal0/. odd/
# One byte in the middle of each file, and a run of the same steps from another seed.
for file in text texts/b b.bin valid.bin weights.safetensors; do
  size=$(stat -c %s "odd/$file")
  printf '\001' | cmp -s - <(dd if="odd/$file" bs=1 skip=$((size / 2 & ~1)) count=1 2>/dev/null) && byte='\000' || byte='\001'
  printf "$byte" | dd of="odd/$file" bs=1 seek=$((size / 2 & ~1)) conv=notrunc 2>/dev/null
done
rm -r odd/run
"$train_gpt" "${model[@]}" --data equal0/text --steps 2 --seed 2 --save odd/run >first.out 2>&1 || fail "the odd run"

# processes FOLDERS FLAGS...: one process in each folder; leaves out, code and seconds.
processes() {
  local command=("$mpirun") folder separator=
  for folder in $1; do
    command+=($separator -n 1 --wdir "$scratch/$folder" "$train_gpt" "${model[@]}" --comm mpi --ranks "$(wc -w <<<"$1")" "${@:2}")
    separator=:
  done
  local begin=$SECONDS
  out=$(timeout -k 5 120 "${command[@]}" 2>&1 </dev/null)
  code=$?
  seconds=$((SECONDS - begin))
}
# case TEXT FLAGS...: refused with the odd copy on the last rank of 2 and 3, accepted with equal ones.
check() {
  local text=$1
  shift
  processes "equal0 odd" "$@"
  [[ $code == 1 && $out == *"different copies"*"$text"*"rank 0 has"* && $out == *"rank 1 has"* ]] || fail "2 ranks, $*: $code, $out"
  processes "equal0 equal1 odd" "$@"
  [[ $code == 1 && $out == *"different copies"*"$text"*"rank 2 has"*"ranks 0, 1 have"* ]] || fail "3 ranks, $*: $code, $out"
  ((seconds <= ${SHERD_COPIES_SECONDS:-10})) || fail "$*: refused after $seconds s"
  processes "equal0 equal1" "$@"
  [[ $code == 0 ]] || fail "equal copies, $*: $code, $out"
}

strategies=(zero3)
[[ -n ${SHERD_NIGHTLY:-} ]] && strategies=(zero0 zero1 zero2 zero3)
for strategy in "${strategies[@]}"; do
  check '--data, file 1' --data text --steps 1 --strategy "$strategy"
  check '--data, b' --data texts --steps 1 --strategy "$strategy"
  check '--tokens, file 2' --tokens a.bin,b.bin --token-format u16 --steps 1 --strategy "$strategy"
  check '--valid-tokens, file 1' --tokens a.bin --valid-tokens valid.bin --token-format u16 --steps 1 --strategy "$strategy"
  check '--init-weights, the weights' --data "$scratch/equal0/text" --init-weights weights.safetensors --steps 1 --strategy "$strategy"
  check '--resume' --data "$scratch/equal0/text" --resume run --steps 3 --strategy "$strategy"
done
# A process that cannot read its copy is named by all.
rm equal1/text
processes "equal0 equal1" --data text --steps 1
[[ $code == 1 && $out == *"rank 1 cannot read it"* ]] || fail "a missing file: $code, $out"
exit $((failures > 0))
