#!/usr/bin/env bash
# Runs every COUNT-th test of a binary in one process. Usage: run_shard.sh BINARY PREFIX INDEX COUNT, INDEX from 1.
#
# Starting a process for each test costs more than most tests (SHERD_TEST_SHARDS). Tests whose names in gtest, or in ctest
# (PREFIX.Suite.Test, parameters by value), match the regular expression SHERD_SKIP_TESTS are left out.
set -euo pipefail
binary=$1 prefix=$2 index=$3 count=$4

# NAME in gtest, tab, name in ctest: "Suite/Name/3  # GetParam() = 8 ranks" is Suite/Name/8 ranks.
tests=$("$binary" --gtest_list_tests | awk -v prefix="$prefix" '
  /^[^ ].*\.([ \t]*#.*)?$/ { suite = $1; next }
  /^  / {
    test = shown = $1
    if (match($0, /# GetParam\(\) = /)) {
      shown = substr($0, RSTART + RLENGTH)
      name = test
      if (name ~ /\//) { sub(/\/[^\/]*$/, "/", name); shown = name shown }
    }
    print suite test "\t" prefix "." suite shown
  }')
[ -n "$tests" ] || { echo "run_shard: $binary has no tests" >&2; exit 1; }
all=$(wc -l <<<"$tests")
if [ -n "${SHERD_SKIP_TESTS:-}" ]; then
  tests=$(awk -F '\t' '$1 !~ ENVIRON["SHERD_SKIP_TESTS"] && $2 !~ ENVIRON["SHERD_SKIP_TESTS"]' <<<"$tests")
fi
mine=$(awk -F '\t' -v index_="$index" -v count="$count" 'NF && NR % count == index_ % count { print $1 }' <<<"$tests")
echo "run_shard: $(grep -c . <<<"$mine" || true) of the $all tests of $binary; $(grep -c . <<<"$tests" || true) are not left out"
[ -n "$mine" ] || exit 0
exec "$binary" --gtest_filter="$(paste -sd: <<<"$mine")"
