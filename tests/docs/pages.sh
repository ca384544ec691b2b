#!/usr/bin/env bash
# Checks the pages against the tree: the README's first program is the first sample, word for word; every file
# or folder of this tree that a page links to or names is there, headings included; the design page's table of
# strategies is that of the code. Usage: pages.sh SOURCE_DIR
set -uo pipefail
cd "$1"
failed=0
complain() { echo "$*"; failed=1; }
# The anchors of a page's headings, as GitHub makes them.
headings() {
  awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); print tolower($0) }' "$1" | sed -E 's/[^a-z0-9_ -]//g; s/ /-/g'
}

block=$(awk '/^```cpp$/ { inside = 1; next } /^```$/ && inside { exit } inside' README.md)
if [ "$block" != "$(cat samples/01_first/main.cpp)" ]; then
  diff <(echo "$block") samples/01_first/main.cpp
  complain "README.md: the first program is not samples/01_first/main.cpp (above: < README, > sample)"
fi

# Code and output of the tutorial are contiguous parts of samples.
perl -0777 -e '
  my $failed = 0; my %all = (cpp => "", text => "");
  for (glob "samples/*/main.cpp samples/*/expected_output.txt") { open my $f, "<", $_; $all{/cpp$/ ? "cpp" : "text"} .= <$f> }
  open my $f, "<", "docs/tutorial.md"; my $page = <$f>;
  while ($page =~ /^```(cpp|text)\n(.*?)^```/msg) {
    next if index($all{$1}, $2) >= 0;
    print "docs/tutorial.md: no sample has this part:\n$2"; $failed = 1;
  }
  exit $failed' || failed=1

# Folders whose contents pages name by a path from the root.
roots='base|kernels|comm|dtensor|fsdp|nn|optim|checkpoint|train|samples|tools|bench|tests|docs|scripts|cmake|include'
while IFS= read -r page; do
  folder=$(dirname "$page")
  text=$(awk '/^ *```/ { code = !code } !code && !/^    /' "$page")
  while IFS= read -r target; do
    file=${target%%#*}
    path=${file:+$folder/$file}
    path=${path:-$page}
    if [ ! -e "$path" ]; then
      complain "$page links to $target, which is not there"
    elif [[ $target == *#* ]] && ! headings "$path" | grep -qxF -- "${target#*#}"; then
      complain "$page links to $target, and $path has no such heading"
    fi
  done < <(grep -oE '\]\([^)]+\)' <<<"$text" | sed -E 's/^\]\(|\)$//g' | grep -vE '^(https?:|mailto:)')
  # `comm/launcher.h` and the like, and the same in indented commands. A shell's patterns and braces are expanded. (A
  # checkpoint has a folder `optim` of its own.)
  while IFS= read -r name; do
    for path in $(bash -c "printf '%s\n' $name"); do
      [ -e "$path" ] || [ -e "include/sherd/$path" ] || complain "$page names $path, which is not there"
    done
  done < <(grep -ohE "(^|[\`( ])($roots)/[A-Za-z0-9_./{},*-]*[A-Za-z0-9_/}*]" "$page" | sed -E 's/^[`( ]//' |
    grep -v '^optim/shard-' | sort -u)
done < <(find . -name '*.md' -not -path './build*' -not -path './shared/*' -not -path './out/*' | sort)

rows=0
while IFS= read -r row; do
  rows=$((rows + 1))
  grep -qF "$row" docs/design.md || complain "docs/design.md lacks the row of fsdp/strategy.cpp: $row"
done < <(sed -nE 's/^ *\{(Strategy|Outer)::\w+, "(\w+)", ("(\w+)", )?\{(.), (.), (.), (.)\}\},$/| `\2` | \4 | \5 | \6 | \7 | \8 |/p' \
  fsdp/strategy.cpp | sed 's/ |  | / | /')
[ $rows -eq 6 ] || complain "pages.sh: fsdp/strategy.cpp has $rows rows of a table that had 6; its form has changed"

exit $failed
