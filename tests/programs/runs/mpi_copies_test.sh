#!/usr/bin/env bash
# Processes whose copies of files differ are refused alike, before anything is loaded: by each flag and each call of the API
# that reads files, with one and several files, on 2 and 3 ranks, under zero0 and zero3. Every process ends within 10 s with
# the odd rank and both digests. Equal copies under different paths are accepted.
#   mpi_copies_test.sh BIN_FOLDER train_gpt|libtorch_gpt|copies_ranks [MPIRUN]
# SHERD_NIGHTLY=1: all combinations; otherwise each flag once. 77 (skipped, and says so) where mpirun is missing.
set -uo pipefail
bin=$(cd "$1" && pwd) program=$2
models=$(cd "$(dirname "$0")/../../golden/models" && pwd)
source "$(dirname "$0")/mpi_environment.sh" "${3:-}"
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
cd "$scratch" || exit 1

# ---- files: equal0 and equal1 have the same, odd has another byte or another run in their place

letters() {  # COUNT SEED
  awk -v n="$1" -v seed="$2" 'BEGIN { srand(seed); for (i = 0; i < n; ++i) printf "%c", 97 + int(16 * rand()) }'
}
tokens() { letters "$1" "$2" | tr a-p ' -/' | sed 's/./&\x00/g'; }  # u16
made() { "$@" >made.out 2>&1 || fail "$*: $(cat made.out)"; }
# Another byte, in the low half of a u16, in the middle of each file.
flip() {
  local file at
  for file in "$@"; do
    at=$(($(stat -c %s "$file") / 2 & ~1))
    printf "\\x$(printf %02x $(($(od -An -tu1 -j $at -N 1 "$file") ^ 1)))" |
      dd of="$file" bs=1 seek=$at conv=notrunc status=none
  done
}
weights_files() {  # FROM BYTES: one file, and several with an index
  made "$bin/sherd" ckpt export --quiet "$1" equal0/weights.safetensors
  made "$bin/sherd" ckpt export --quiet --max-shard-size "$2" "$1" equal0/weights/
}
sizes=(--dim 24 --layers 1 --heads 2)
run=(--seq 16 --batch 6 --threads 1 --quiet)

mkdir -p equal0/texts
case $program in
  copies_ranks)
    made "$bin/copies_ranks" save equal0/run 1
    weights_files equal0/run 600
    ;;
  *)
    letters 40000 1 >equal0/text
    seed=2
    for name in a b valid; do
      letters 9000 $seed >equal0/texts/$name
      tokens 9000 $((seed++)) >equal0/$name.bin
    done
    made "$bin/$program" "${run[@]}" "${sizes[@]}" --steps 2 --data equal0/text --save equal0/run
    weights_files equal0/run 30KB
    for model in one several config; do
      mkdir -p equal0/$model
      cp "$models/llama/config.json" equal0/$model
      cp "$models/llama/model.safetensors" equal0/$model
    done
    rm equal0/several/model.safetensors
    made "$bin/sherd" ckpt export --quiet --max-shard-size 60KB "$models/llama/model.safetensors" shards/
    mv shards/* equal0/several
    ;;
esac
cp -r equal0 equal1
cp -r equal0/. odd
second=$(cd equal0/weights && ls model-00002-of-*) || fail "weights/ is one file"
flip odd/weights.safetensors "odd/weights/$second"
if [[ $program == copies_ranks ]]; then
  rm -r odd/run
  made "$bin/copies_ranks" save odd/run 2
else
  flip odd/text odd/texts/b odd/b.bin odd/valid.bin odd/one/model.safetensors odd/several/model-00002-of-*
  sed -i 's/"rms_norm_eps": [0-9.e-]*/"rms_norm_eps": 0.002/' odd/config/config.json
  rm -r odd/run
  made "$bin/$program" "${run[@]}" "${sizes[@]}" --steps 2 --seed 2 --data equal0/text --save odd/run
fi

# ---- runs

# processes FOLDERS ARGUMENTS...: one process in each folder, with rank.N and rank.N.code; leaves seconds.
processes() {
  local command=("$mpirun") folder n=0 begin=$SECONDS
  rm -f rank.*
  for folder in $1; do
    [[ $n == 0 ]] || command+=(:)
    command+=(-n 1 --wdir "$scratch/$folder" sh -c
      'out=$1; shift; "$@" >"$out" 2>&1 </dev/null; echo $? >"$out.code"' sh "$scratch/rank.$n" "$bin/$program" "${@:2}")
    n=$((n + 1))
  done
  timeout -k 5 120 "${command[@]}" >mpirun.out 2>&1 </dev/null || cat mpirun.out >&2
  seconds=$((SECONDS - begin))
}
# refused RANKS TEXTS ARGUMENTS...: on every process, with the odd copies on the last one. TEXTS: files, with semicolons.
refused() {
  local ranks=$1 texts who='ranks 0, 1 have' odd='rank 2 has' digest='XXH3 [0-9a-f]{16}' text n
  IFS=';' read -ra texts <<<"$2"
  shift 2
  if [[ $ranks == 2 ]]; then
    who='rank 1 has' odd='rank 0 has'  # no majority: both are named, in order
    processes "equal0 odd" "$@"
  else
    processes "equal0 equal1 odd" "$@"
  fi
  for ((n = 0; n < ranks; ++n)); do
    [[ $(cat rank.$n.code) == 1 ]] || fail "rank $n of $ranks, $*: exit code $(cat rank.$n.code): $(cat rank.$n)"
    for text in "${texts[@]}"; do
      grep -qE "different copies.* $text: $odd $digest [^;]*, $who $digest" rank.$n ||
        fail "rank $n of $ranks, $*: does not name $text but: $(cat rank.$n)"
    done
  done
  ((seconds <= ${SHERD_COPIES_SECONDS:-10})) || fail "$ranks ranks, $*: refused after $seconds s"
}
accepted() {
  local ranks=$1 n
  shift
  [[ $ranks == 2 ]] && processes "equal0 equal1" "$@" || processes "equal0 equal1 equal0/texts/.." "$@"
  for ((n = 0; n < ranks; ++n)); do
    [[ $(cat rank.$n.code) == 0 ]] || fail "equal copies, rank $n of $ranks, $*: $(cat rank.$n)"
  done
}

# ---- cases: TEXTS|ARGUMENTS of what is refused; ARGUMENTS of what is accepted. STRATEGY stands for one. `rarely`: nightly only.

text="--data $scratch/equal0/text"
case $program in
  copies_ranks)
    refusals=("the weights|import STRATEGY weights.safetensors"
      "$second|stored STRATEGY weights"
      "manifest.binpb|resume STRATEGY run"
      "manifest.binpb|load STRATEGY run/step_00000001")
    rarely=("$second|import STRATEGY weights"
      "the weights|stored STRATEGY weights.safetensors"
      "shard-00001-[^:]*safetensors|import STRATEGY run/step_00000001/model"
      "manifest.binpb|import STRATEGY run/step_00000001"
      "manifest.binpb|resume STRATEGY run/step_00000001"
      "the weights|load STRATEGY weights.safetensors")
    acceptances=("stored STRATEGY weights")
    rarely_accepted=("resume STRATEGY run" "import STRATEGY weights.safetensors" "import STRATEGY weights" "load STRATEGY run/step_00000001")
    ;;
  libtorch_gpt)
    common="${run[*]} --steps 3 ${sizes[*]} --comm mpi --strategy STRATEGY"
    refusals=("--data, b|$common --data texts"
      "$second|$common $text --init-weights weights"
      "manifest.binpb|$common $text --resume run")
    rarely=("--data, file 1|$common --data text"
      "the weights|$common $text --init-weights weights.safetensors"
      "manifest.binpb|$common $text --resume run/step_00000002")
    acceptances=()
    rarely_accepted=("$common --data texts --init-weights weights" "$common --data text --resume run" "$common --data text --init-weights weights.safetensors")
    ;;
  *)
    common="${run[*]} --steps 3 --comm mpi --strategy STRATEGY"
    bytes="$common ${sizes[*]}"
    list="$bytes --token-format u16"
    model="$common --tokens $scratch/equal0/a.bin --token-format u16 --model"
    refusals=("--tokens, file 2;--valid-tokens, file 1;--model, config.json;--init-weights, model-00002-of-[^:]*|$common
      --token-format u16 --tokens a.bin,b.bin --valid-tokens valid.bin --model config --init-weights several"
      "--data, b;--resume, the checkpoint to resume from|$bytes --data texts --resume run"
      "--model, model-00002-of-[^:]*|$model several"
      "--init-weights, $second|$bytes $text --init-weights weights")
    rarely=("--data, file 1|$bytes --data text"
      "--data, b|$bytes --data texts"
      "--tokens, file 1|$list --tokens b.bin"
      "--tokens, file 2|$list --tokens a.bin,b.bin"
      "--valid-tokens, file 1|$list --tokens a.bin --valid-tokens valid.bin"
      "--valid-tokens, file 2|$list --tokens a.bin --valid-tokens a.bin,valid.bin"
      "--init-weights, the weights|$bytes $text --init-weights weights.safetensors"
      "--init-weights, manifest.binpb|$bytes $text --init-weights run/step_00000002"
      "--resume, the checkpoint to resume from|$bytes $text --resume run"
      "--resume, the checkpoint to resume from|$common $text --resume run/step_00000002"
      "--model, the weights|$model one"
      "--model, config.json|$model config"
      "--init-weights, model-00002-of-[^:]*|$model one --init-weights several")
    acceptances=("$common --token-format u16 --tokens a.bin,b.bin --valid-tokens a.bin,valid.bin --model several"
      "$bytes --data texts --init-weights weights")
    rarely_accepted=("$common --token-format u16 --tokens b.bin --valid-tokens valid.bin --model one"
      "$bytes --data text --init-weights weights.safetensors"
      "$bytes --data text --resume run"
      "$common --data text --resume run/step_00000002")
    ;;
esac

# each STRATEGY RANKS KIND [LIST...]
each() {
  local strategy=$1 ranks=$2 check=$3 case arguments
  for case in "${@:4}"; do
    read -d "" -ra arguments <<<"${case##*|}"
    arguments=("${arguments[@]/#STRATEGY/$strategy}")
    [[ $program != copies_ranks ]] && arguments+=(--ranks "$ranks")
    [[ $check == accepted ]] && accepted "$ranks" "${arguments[@]}" || refused "$ranks" "${case%%|*}" "${arguments[@]}"
  done
}
if [[ -n ${SHERD_NIGHTLY:-} ]]; then
  for strategy in zero0 zero3; do
    for ranks in 2 3; do
      each $strategy $ranks refused "${refusals[@]}" "${rarely[@]}"
      each $strategy $ranks accepted "${acceptances[@]}" "${rarely_accepted[@]}"
    done
  done
else
  ways=("zero0 3" "zero3 2" "zero3 3" "zero0 2")
  for i in "${!refusals[@]}"; do each ${ways[i % 4]} refused "${refusals[i]}"; done
  for i in "${!acceptances[@]}"; do each ${ways[i % 4]} accepted "${acceptances[i]}"; done
fi
# A process that cannot read its copy is named by all.
if [[ $program == train_gpt ]]; then
  rm equal1/text
  processes "equal0 equal1" "${run[@]}" "${sizes[@]}" --steps 1 --comm mpi --ranks 2 --data text
  [[ $(cat rank.*.code) == $'1\n1' && $(grep -c "rank 1 cannot read it" rank.0 rank.1) == $'rank.0:1\nrank.1:1' ]] ||
    fail "a missing file: $(cat rank.*)"
fi
exit $((failures > 0))
