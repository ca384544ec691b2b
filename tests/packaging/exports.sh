#!/usr/bin/env bash
# Checks the exports of libsherd.so: symbols of namespace sherd with its version, none of a library that it
# links, no generated message. Usage: exports.sh LIBSHERD.SO
set -euo pipefail
symbols=$(nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }')
count=$(grep -c . <<<"$symbols")
others=$(grep -vE "^_Z(Z|GVZ?|T[A-Z]|Thn[0-9]+_|Tv[0-9n]+_[0-9n]+_)?N[KRO]*5sherd.*@@SHERD_[0-9.]+\$" <<<"$symbols" || true)
if [ -n "$others" ]; then
  printf 'exported, and not of namespace sherd:\n%s\n' "$others" | head -20
  exit 1
fi
of_messages=$(grep -E '^_ZN?K?5sherd(5proto|5event)' <<<"$symbols" | head -5 || true)
[ -z "$of_messages" ] || { printf 'exported, and of generated messages:\n%s\n' "$of_messages"; exit 1; }
grep -q '^_ZN5sherd6launch' <<<"$symbols" || { echo "sherd::launch() is not exported"; exit 1; }
echo "exports: $count symbols of namespace sherd"
