#!/usr/bin/env bash
# Checks that installed headers are public. None is of a detail/ folder or of a backend, calls itself private,
# or includes a header that is not installed. Usage: public_headers.sh INCLUDE/sherd
set -uo pipefail
cd "$1"
failed=0
complain() { echo "$*" >&2; failed=1; }

count=0
while IFS= read -r header; do
  count=$((count + 1))
  case /$header in
    */detail/* | */kernels/*/reference* | */kernels/*/cpu* | */kernels/*/cuda*)
      complain "installed, and lies in a private folder: $header" ;;
  esac
  head -4 "$header" | tr '\n' ' ' | grep -qE 'Private (// )?to' &&
    complain "installed, and says that it is private: $header"
  while IFS= read -r included; do
    [ -f "$included" ] || complain "$header includes sherd/$included, which is not installed"
  done < <(sed -nE 's/^ *# *include [<"]sherd\/([^>"]+)[>"].*/\1/p' "$header")
done < <(find . -name '*.h' -printf '%P\n' | sort)
[ "$count" -gt 0 ] || complain "no headers in $1"
exit $failed
