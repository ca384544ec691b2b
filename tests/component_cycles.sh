#!/usr/bin/env bash
# Components that include each other in a circle; a component is a header with the source of the same name.
# Usage: component_cycles.sh ROOT FOLDER...
#
# Prints every circle that is not in component_cycles_known.txt (one a line, its members; a circle may lose
# members, never gain any) and fails if there is one. Names the known ones that no longer exist, so that they
# leave the list.
set -euo pipefail
known=$(cd "$(dirname "$0")" && pwd)/component_cycles_known.txt
cd "$1"
shift

# A component of <sherd/...> is a folder's; "x.h" is looked for in the includer's folder, then in those above it.
{
  find "$@" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) | sed -E 's/\.(h|cpp|cu)$//; s/$/ ./'
  find "$@" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | sort -z |
    xargs -0 grep -HoE '^#include (<sherd/[^>]+>|"[^"]+")' |
    sed -E -e 's/^([^:]+)\.(h|cpp|cu):#include <sherd\/torch\/([^>]+)\.h>$/\1 adapters\/torch\/\3/' \
      -e 's/^([^:]+)\.(h|cpp|cu):#include <sherd\/([^>]+)\.h>$/\1 \3/' \
      -e 's/^([^:]+)\.(h|cpp|cu):#include "([^"]+)\.h"$/\1 "\3/'
} |
  awk -v known="$known" '
    $2 == "." { component[$1]; next }
    function found(from, name,   folder) {
      for (folder = from; sub(/\/?[^\/]*$/, "", folder) && folder != "";)
        if ((folder "/" name) in component) return folder "/" name
      return name
    }
    NF == 2 { to = $2 ~ /^"/ ? found($1, substr($2, 2)) : $2 }
    NF == 2 && $1 != to && !(($1, to) in edge) { edge[$1, to]; targets[$1] = targets[$1] " " to }

    # All that `from` reaches, by way of `at`.
    function walk(from, at,   i, n, to) {
      n = split(targets[at], to, " ")
      for (i = 1; i <= n; ++i)
        if (!((from, to[i]) in reaches)) { reaches[from, to[i]]; walk(from, to[i]) }
    }
    function sort(list, n,   i, j, x) {
      for (i = 2; i <= n; ++i) {
        x = list[i]
        for (j = i - 1; j > 0 && list[j] > x; --j) list[j + 1] = list[j]
        list[j + 1] = x
      }
    }
    END {
      while ((getline line < known) > 0) {
        if (line ~ /^#/ || line == "") continue
        ++circles
        text[circles] = line
        n = split(line, member, " ")
        for (i = 1; i <= n; ++i) may[circles, member[i]]
      }
      for (name in targets) { walk(name, name); if ((name, name) in reaches) names[++count] = name }
      sort(names, count)
      for (i = 1; i <= count; ++i) {
        if (names[i] in told) continue
        line = ""
        size = 0
        for (j = i; j <= count; ++j)
          if ((names[i], names[j]) in reaches && (names[j], names[i]) in reaches) {
            told[names[j]]
            circle[++size] = names[j]
            line = line (size > 1 ? " " : "") names[j]
          }
        allowed = 0
        for (k = 1; k <= circles && !allowed; ++k) {
          allowed = k
          for (j = 1; j <= size; ++j) if (!((k, circle[j]) in may)) allowed = 0
        }
        if (allowed) seen[allowed]
        else { print "these include each other in a circle: " line; failed = 1 }
      }
      for (k = 1; k <= circles; ++k) if (!(k in seen)) print "no longer a circle, take it off the list: " text[k]
      exit failed
    }'
