#!/usr/bin/env bash
# Runs a sample in a folder of its own and compares what it prints. Usage: sample.sh EXPECTED_OUTPUT PROGRAM [arguments...]
#
# The bits of a run depend on the processor (its vector instructions choose among products), so samples print few digits, none
# of them near the border to the next: products of another kernel (the reference's, say) change none.
set -euo pipefail
expected=$(realpath "$1") program=$(realpath "$2")
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"$program" "$@" >output.txt
diff "$expected" output.txt
