#!/usr/bin/env bash
# Compiles no_forward.cpp, which must give one error for each of its calls. Usage: no_forward.sh COMPILER INCLUDE_FOLDERS
set -uo pipefail
compiler=$1
shift
folders=()
for list in "$@"; do
  IFS=';' read -ra some <<<"$list"
  for folder in "${some[@]}"; do folders+=("-I$folder"); done
done
text=$("$compiler" -std=c++20 -fsyntax-only "${folders[@]}" "$(dirname "$0")/no_forward.cpp" 2>&1)
errors=$(grep -c 'error:' <<<"$text")
named=$(grep -c 'error:.*has no public forward() for the arguments of this call; declare one' <<<"$text")
[ "$errors" = 3 ] && [ "$named" = 3 ] && exit 0
echo "$errors errors, of which $named name forward(); each of 3 calls must give one:"
echo "$text"
exit 1
