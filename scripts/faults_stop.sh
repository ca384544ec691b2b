# shellcheck shell=bash disable=SC2154,SC2004,SC2317
# Stop signals as terminals, batch systems and users send them; part of scripts/faults.sh, which sources it.
# A case is PROGRAM/KIND/SAVE/MODE. PROGRAM: run (`sherd run`, $ranks processes) or alone (train_gpt, $ranks threads).
# SAVE: fast, or slow: the save after the signal takes 4 s, by a slow fsync. MODE: sync, or async (--async-save).
stop_kinds=(ctrl-c term-all term-twice usr1 hup reader script)

can_stop() { cc -shared -fPIC -o "$scratch/slow.so" scripts/slow_fsync.c -ldl 2>/dev/null; }
# The program as a child: what follows keeps bash from becoming it.
printf '#!/bin/bash\n"$@"\nexit $?\n' >"$scratch/script"
chmod +x "$scratch/script"
# What a shell does with `COMMAND 2>&1 | tee LOG` at a terminal, in a process group of its own. Its exit code is in run.code.
cat >"$scratch/terminal" <<'END'
#!/bin/bash
trap : INT TERM HUP USR1
{
  trap : INT TERM HUP USR1
  "${@:2}" 2>&1
  echo $? >"$1.code"
} | tee "$1.log" >/dev/null
END
chmod +x "$scratch/terminal"

# Processes below $1 that run program $2, parents first.
running_below() {
  local process
  for process in $(all_below "$1"); do [[ $(readlink "/proc/$process/exe") == "$2" ]] && echo "$process"; done
}

# stop_case NUMBER CASE
stop_case() {
  local number=$1 program kind save mode folder=$scratch/run command=() flag job lead at begun signalled ms verdict=well step code left all=()
  IFS=/ read -r program kind save mode <<<"$2"
  rm -rf "$scratch"/run*
  for flag in "${model[@]}"; do [[ $flag == --quiet ]] || command+=("$flag"); done
  command=("$train_gpt" "${command[@]}" --steps 10000000 --save "$folder" --metrics "$folder.metrics")
  [[ $mode == sync ]] || command+=(--async-save)
  if [[ $program == run ]]; then command+=(--comm mpi); else command+=(--ranks "$ranks"); fi
  [[ $save == fast ]] || command=(env "LD_PRELOAD=$scratch/slow.so" "SLOW_FSYNC=$folder.slow" "${command[@]}")
  [[ $kind != script ]] || command=("$scratch/script" "${command[@]}")
  [[ $program != run ]] || command=("$sherd" run --mpirun "$mpirun" --nproc "$ranks" --max-restarts 0 -- "${command[@]}")
  # A shell without job control starts background jobs with SIGINT ignored, which programs keep to.
  setsid env --default-signal "$scratch/terminal" "$scratch/run" "${command[@]}" </dev/null >/dev/null 2>&1 &
  job=$!
  begun=$SECONDS
  # is_at CONDITION...: it holds, or the run is over, or takes too long
  is_at() { "$@" || ! kill -0 $job 2>/dev/null || ((SECONDS - begun > limit)); }
  has_steps() { [[ $(steps_in "$folder.metrics") -gt $1 ]]; }
  until is_at has_steps 2; do sleep 0.02; done
  sleep "0.$(printf %03d $((RANDOM % 500)))"
  if [[ $program == run ]]; then lead=$(running_below $job "$sherd"); else lead=$(running_below $job "$train_gpt"); fi
  lead=${lead%%$'\n'*}
  if [[ $kind == reader ]]; then
    kill -KILL "$(running_below $job "$(readlink -f "$(command -v tee)")")"
    at=$(steps_in "$folder.metrics")
    until is_at has_steps $((at + 40)); do sleep 0.02; done
    kill -0 $job || verdict="lost (it ended with its log's reader)"
  fi
  mapfile -t all < <(echo $job; all_below $job)
  [[ $save == fast ]] || touch "$folder.slow"
  signalled=$(now)
  case $kind-$program-$mode in
    ctrl-c-* | script-alone-*) kill -INT -- -$job ;;
    term-all-* | script-run-async) kill -TERM "${all[@]}" 2>/dev/null ;;
    term-twice-*)
      kill -TERM "${all[@]}" 2>/dev/null
      sleep 0.05
      kill -TERM "${all[@]}" 2>/dev/null
      ms=$((($(now) - signalled) / 1000000))
      ((ms < 200)) || verdict="late (the second signal came after $ms ms)"
      ;;
    usr1-*) kill -USR1 "$lead" ;;
    hup-*) kill -HUP "$lead" ;;
    reader-* | script-run-sync) kill -TERM "$lead" ;;
  esac 2>/dev/null
  begun=$SECONDS
  until is_at false; do sleep 0.05; done
  at=$(seconds_since "$signalled")
  if kill -0 $job 2>/dev/null; then
    verdict=hung
    kill -KILL "${all[@]}" 2>/dev/null
  fi
  wait $job 2>/dev/null
  code=$(cat "$folder.code" 2>/dev/null)
  step=$(sed -n 's/^{"step": \([0-9]*\).*/\1/p' "$folder.metrics" | tail -1)
  left=$(alive "${all[@]}")
  if [[ $verdict == well ]]; then
    if [[ $(newest_in "$folder") != "${step:-none}" ]]; then
      verdict="lost (the newest checkpoint is $(newest_in "$folder"), the last step ${step:-none}, exit code ${code:-none})"
    elif ! "$sherd" ckpt verify "$folder" >/dev/null 2>&1; then verdict="lost (damaged)"
    elif [[ $code != 0 ]]; then verdict="lost (exit code ${code:-none})"
    elif [[ -n $left ]]; then verdict="hung (processes are left: ${left//$'\n'/ })"
    elif [[ $save == slow ]] && awk -v s="$at" 'BEGIN { exit !(s < 4) }'; then verdict="lost (the save was not slow)"; fi
  fi
  echo "stop $number: $2: $verdict, after step ${step:-none}, $at s"
  [[ $verdict == well ]] || tr '\r' '\n' <"$folder.log" | tail -5 | sed 's/^/    /'
  tried[$kind]=$((${tried[$kind]:-0} + 1))
  [[ $verdict == hung* ]] && hung[$kind]=$((${hung[$kind]:-0} + 1))
  [[ $verdict == lost* ]] && lost[$kind]=$((${lost[$kind]:-0} + 1))
  times[$kind]+="$at "
}

# All cases that match a pattern.
stop_cases() {
  local program kind save mode
  for program in run alone; do
    for kind in "${stop_kinds[@]}"; do
      for save in fast slow; do
        for mode in sync async; do
          # shellcheck disable=SC2053  # a pattern
          [[ $program/$kind/$save/$mode != $1 ]] || echo "$program/$kind/$save/$mode"
        done
      done
    done
  done
}
