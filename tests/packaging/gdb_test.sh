#!/usr/bin/env bash
# The gdb printers on a program with debug information. Usage: gdb_test.sh SOURCE_DIR PROGRAM [gdb arguments...]
# Exit code 77 where gdb is missing or may not trace.
set -euo pipefail
source=$1 program=$2
shift 2
command -v gdb >/dev/null || { echo "SKIPPED: gdb is not installed"; exit 77; }
got=$(gdb -batch -nx "$@" -ex "set breakpoint pending off" -ex "break stop" -ex run \
  -ex "print tensor" -ex "print half" -ex "print sharded" -ex "print described" -ex "print parameter" -ex kill "$program" 2>&1) || true  # 1 when the last command failed: the output decides
if grep -q "ptrace: Operation not permitted\|Could not trace" <<<"$got"; then
  echo "SKIPPED: gdb may not trace here"
  exit 77
fi
diff "$source/tests/packaging/gdb/expected.txt" <(grep '^\$' <<<"$got") || { echo "$got"; exit 1; }
echo "gdb: values as expected"
