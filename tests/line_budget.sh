#!/usr/bin/env bash
# Lines of code of each folder beside its budget, tests/line_budget.txt: lines of C++, CUDA, Protobuf and Python that are
# neither empty nor only a comment. Fails where a folder has more than its budget, or code that no line of the table counts.
#
# Usage: line_budget.sh ROOT [--write]   --write: the table as the tree is, in steps of 50
#
# A budget is raised in the commit that needs it, which says why; one that a folder has left by more than a twentieth is lowered.
set -euo pipefail
table=$(cd "$(dirname "$0")" && pwd)/line_budget.txt
cd "$1"

# "FOLDER LINES" of the folders in the table; tests/ is one of them.
count() {
  find . \( -path ./build -o -path ./.git -o -path ./include -o -path ./docs \) -prune -o -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.proto' -o -name '*.py' \) -print |
    LC_ALL=C sort | xargs awk '
      FNR == 1 { split(FILENAME, part, "/"); folder = part[2] ~ /^(programs|adapters|nn|samples)$/ && part[4] != "" ? part[2] "/" part[3] : part[2]
                 if (folder ~ /^nn\// && folder !~ /\/(kernels|models|hf)$/) folder = "nn"
                 if (folder ~ /^samples/) folder = "samples"
                 python = FILENAME ~ /\.py$/ }
      /^[ \t]*$/ || (python && /^[ \t]*#/) || (!python && /^[ \t]*\/\//) { next }
      { ++lines[folder] }
      END { for (folder in lines) print folder, lines[folder] }' | LC_ALL=C sort
}

if [ "${2:-}" = --write ]; then
  { sed -n '/^#/p' "$table"; count | awk '{ print $1, int(($2 + 49) / 50) * 50 }'; } >"$table.new"
  mv "$table.new" "$table"
fi
count | awk -v table="$table" '
  BEGIN { while ((getline line < table) > 0) if (line !~ /^#/ && split(line, word, " ") == 2) budget[word[1]] = word[2] }
  {
    all += $1 == "tests" ? 0 : $2
    seen[$1]
    if (!($1 in budget)) { print $1 ": " $2 " lines, and no budget in tests/line_budget.txt"; failed = 1 }
    else if ($2 > budget[$1]) {
      printf "%s: %d lines of code, and its budget is %d: remove some, or raise it in tests/line_budget.txt and say why\n", $1, $2, budget[$1]
      failed = 1
    } else if ($2 < budget[$1] * 0.95) {
      printf "%s: %d lines of code, and its budget is %d: lower it in tests/line_budget.txt\n", $1, $2, budget[$1]
      failed = 1
    }
    if ($1 == "tests") tests = $2
  }
  END {
    for (folder in budget) if (!(folder in seen)) { print folder ": has a budget and no code"; failed = 1 }
    print "line budget: " all " lines outside tests/, " tests " in it"
    exit failed
  }'
