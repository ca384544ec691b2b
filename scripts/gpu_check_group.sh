# shellcheck shell=bash disable=SC2034,SC2154
# Part of gpu_check.sh: programs that end when it does. `running` is the process group of the one that runs, or empty;
# `ended` is empty until a signal comes, then the exit code for it.

# Handles a signal: ends the running command; the remaining script continues without further commands.
end_by() {
  ended=$1
  end_group "$running"
}

# end_group ID: TERM to all that is left of a group of processes, and after half a second KILL. The group may not be there yet,
# when only its leader is.
end_group() {
  local turn
  [ -n "$1" ] || return 0
  for turn in {1..5}; do
    kill -TERM -- "-$1" 2>/dev/null || kill -TERM "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL -- "-$1" 2>/dev/null
}

# attend LIMIT COMMAND...: runs it for LIMIT seconds at most (0: as long as it takes), and returns its exit code, or 124 or
# 137 after the limit. The shell waits for it in the background, for it would take no signal while it waits in the
# foreground. Where this script is killed and cannot do a thing, the kernel tells `timeout`, which ends its group.
attend() {
  local code tied=()
  setpriv --pdeathsig TERM true 2>/dev/null && tied=(setpriv --pdeathsig TERM)
  "${tied[@]}" timeout -k 5 "$@" &
  running=$!
  [ -z "$ended" ] || end_group "$running"  # a signal that came before there was a group to end
  wait "$running"
  code=$?
  [ -n "$ended" ] || end_group "$running"  # processes that the command has not ended
  running=''
  return $code
}
