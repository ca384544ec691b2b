#!/usr/bin/env bash
# Trains for MINUTES with all that usually happens: saves, crashes (kill -9), resumes, ranks that are suspended for a while.
# Exit code 0 when nothing grew and nothing was lost:
#
#   memory       of every process, resident (VmRSS), is flat within 1 %: medians of 10 samples, those after its first minute and
#                20 saves and those at its end; a process that came to no such point is a failure, too: give it more minutes
#   checkpoints  every one that was committed verifies (`sherd ckpt verify`: all bytes, checksums, weights finite)
#   metrics      have every step; those that a crash made to be done again have the same bits as before
#   the end      the last resume ends by itself with exit code 0
#
#   scripts/soak.sh MINUTES [FLAG of train_gpt...]
#
# Environment: BUILD, where train_gpt and sherd lie (build/release/bin); RANKS (2); COMM: local, threads of one process, or mpi,
# a process each; LEGS (3), crashes and one; OUT, a folder to keep instead of a temporary one, which has memory.csv.
set -uo pipefail
export LC_ALL=C  # sort and printf take a decimal point
cd "$(dirname "$0")/.." || exit 1
minutes=${1:-}
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
shift
build=${BUILD:-build/release/bin} ranks=${RANKS:-2} comm=${COMM:-local} legs=${LEGS:-3}
train_gpt=$build/train_gpt sherd=$build/sherd
for program in "$train_gpt" "$sherd"; do
  [[ -x $program ]] || { echo "soak.sh: $program is missing: build it, or set BUILD to its folder" >&2; exit 2; }
done
[[ $comm == local || $comm == mpi ]] || { echo "soak.sh: COMM=$comm: local or mpi" >&2; exit 2; }
out=${OUT:-}
if [[ -z $out ]]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out/seen"
rm -rf "${out:?}/saved" "$out/metrics.jsonl"
echo "leg,process,seconds,kib,saves" >"$out/memory.csv"
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

seq 1 20000 | awk '{ printf "%d is more than %d. ", $1, $1 - 1 }' >"$out/text"
flags=(--data "$out/text" --dim 128 --layers 4 --heads 4 --seq 64 --batch 8 --optimizer muon --strategy zero3 --quiet
  --steps 1000000000 --lr-schedule constant --save "$out/saved" --save-every 10 --async-save
  --metrics "$out/metrics.jsonl" "$@")

# start FLAG...: in the background; its processes are $processes.
start() {
  local command=("$train_gpt" "${flags[@]}" --comm "$comm" "$@") resume=()
  [[ ! -e $out/saved/latest ]] || resume=(--resume "$out/saved")
  if [[ $comm == mpi ]]; then
    mpirun --oversubscribe --bind-to none -n "$ranks" "${command[@]}" "${resume[@]}" >>"$out/log" 2>&1 </dev/null &
  else
    "${command[@]}" --ranks "$ranks" "${resume[@]}" >>"$out/log" 2>&1 </dev/null &
  fi
  job=$!
}
find_processes() {
  if [[ $comm == mpi ]]; then mapfile -t processes < <(pgrep -P "$job" -x train_gpt); else processes=("$job"); fi
}

checked=0
# Each new checkpoint; those that are verified go, but for the newest three. A step that a crash undid is saved once more.
verify_new() {
  local folder verified=()
  for folder in "$out"/saved/step_*; do
    [[ -d $folder && $folder =~ /step_[0-9]+$ ]] || continue
    verified+=("$folder")
    [[ ! $folder/manifest.binpb -ef $out/seen/${folder##*/} ]] || continue
    "$sherd" ckpt verify --quiet "$folder" >"$out/verify" 2>&1 || fail "${folder##*/}: $(tail -3 "$out/verify")"
    ln -f "$folder/manifest.binpb" "$out/seen/${folder##*/}"
    checked=$((checked + 1))
  done
  for folder in "${verified[@]:0:$((${#verified[@]} > 3 ? ${#verified[@]} - 3 : 0))}"; do
    rm -r "$folder" "$out/seen/${folder##*/}"
  done
}
last_step() { grep -oE '"step": *[0-9]+' "$out/metrics.jsonl" 2>/dev/null | tail -1 | grep -oE '[0-9]+$' || echo 0; }

began=$SECONDS
length=$((minutes * 60 / legs)) stalls=0
for ((leg = 1; leg <= legs; ++leg)); do
  leg_began=$SECONDS checked_before=$checked
  start
  while ((SECONDS - leg_began < length)); do
    sleep 2
    find_processes
    kill -0 "$job" 2>/dev/null || { fail "leg $leg ended by itself: $(tail -3 "$out/log")"; break 2; }
    for process in "${processes[@]}"; do
      rss=$(awk '/^VmRSS/ { print $2 }' "/proc/$process/status" 2>/dev/null)
      [[ -z $rss ]] || echo "$leg,$process,$((SECONDS - leg_began)),$rss,$((checked - checked_before))" >>"$out/memory.csv"
    done
    verify_new
    if ((RANDOM % 10 == 0)) && ((${#processes[@]} > 0)); then  # suspend a rank for a second
      victim=${processes[RANDOM % ${#processes[@]}]}
      kill -STOP "$victim" && sleep 1 && kill -CONT "$victim" && stalls=$((stalls + 1))
    fi
  done
  find_processes
  if ((${#processes[@]} == 0)); then
    fail "leg $leg: no process of it is left, but its launcher is: $(tail -3 "$out/log")"
    kill -KILL "$job"
    break
  fi
  kill -KILL "${processes[RANDOM % ${#processes[@]}]}"
  wait "$job" 2>/dev/null
done
if ((failures == 0)); then
  start --stop-at $(($(last_step) + 20))
  wait "$job" || fail "the last resume: exit code $?: $(tail -3 "$out/log")"
  verify_new
fi
elapsed=$((SECONDS - began)) steps=$(last_step)

# Every step, and the same numbers where a step was done twice.
repeated=$(grep -oE '"(step|loss|grad_norm)": *[^,}]*' "$out/metrics.jsonl" | paste -d ' ' - - - | awk -v last="$steps" '
  { step = $2 ? $2 : $1; gsub(/[^0-9]/, "", step); if (step in seen) { ++again; if (seen[step] != $0) print "differs: " $0 " was " seen[step] } seen[step] = $0 }
  END { for (s = 1; s <= last; ++s) if (!(s in seen)) print "missing: step " s; print again + 0 }')
[[ $(wc -l <<<"$repeated") == 1 ]] || fail "metrics: $(head -5 <<<"$repeated")"
((steps > 0)) || fail "no step was trained"
((checked > 0)) || fail "no checkpoint was saved"

printf '%s minutes of %s ranks (%s), %s steps; %s crashes and resumes, %s stalls of a second\n' \
  "$(awk "BEGIN { printf \"%.1f\", $elapsed / 60 }")" "$ranks" "$comm" "$steps" "$legs" "$stalls"
printf '%s checkpoints verified; %s steps done again after crashes, with the same bits\n\n' "$checked" "$(tail -1 <<<"$repeated")"
awk -F, '
  function median(first, n,   i, j, t, v) {
    for (i = 0; i < n; ++i) v[i] = kib[first + i]
    for (i = 1; i < n; ++i) { t = v[i]; for (j = i; j > 0 && v[j - 1] > t; --j) v[j] = v[j - 1]; v[j] = t }
    return v[int(n / 2)]
  }
  function tell(   n, a, b, change) {
    n = count < 20 ? int(count / 2) : 10
    if (n == 0) { printf "%-5s %-9s did not settle: %d saves in %d s\n", leg, process, s[3], s[1]; bad = 1; return }
    a = median(0, n); b = median(count - n, n); change = 100 * (b / a - 1)
    printf "%-5s %-9s %8d %12.1f %12.1f %8.2f %%\n", leg, process, count, a / 1024, b / 1024, change
    if (change > 1) bad = 1
  }
  BEGIN { print "leg   process    samples  MiB settled    MiB at end   growth" }
  NR > 1 { rows[$1 "," $2] = rows[$1 "," $2] " " $3 ":" $4 ":" $5; if (!(($1 "," $2) in at)) { at[$1 "," $2] = ++keys; key[keys] = $1 "," $2 } }
  END {
    for (k = 1; k <= keys; ++k) {
      split(key[k], who, ","); leg = who[1]; process = who[2]
      all = split(rows[key[k]], r, " "); count = 0
      for (i = 1; i <= all; ++i) { split(r[i], s, ":"); if (s[1] >= 60 && s[3] >= 20) kib[count++] = s[2] }
      tell()
    }
    exit bad
  }' "$out/memory.csv" || fail "memory grew by more than 1 %, or did not settle"
((failures == 0)) && echo && echo "nothing grew, nothing was lost" && exit 0
exit 1
