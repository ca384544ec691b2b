#!/usr/bin/env bash
# Checks formatting, wording and, where it is installed, clang-tidy over changed files. Usage:
#   scripts/check_style.sh [--all] [--base REVISION] [--only format|words|tidy]
#
#   --all            every file of the tree and every line, without clang-tidy
#   --base REVISION  changed since the merge base with REVISION (default: origin/main; where that is HEAD or missing: HEAD~1;
#                    without that, nothing is checked)
#   --only CHECK     one of the checks
#
# format: clang-format over whole changed files. words: expressions that are not used in comments, help, errors and pages; lines
# that changed. tidy: .clang-tidy over changed sources, and those of changed headers, that are in $BUILD/compile_commands.json (BUILD: build/release), for a
# minute at most; what WarningsAsErrors there names fails, the rest is for information.
# Exit code: 0 nothing found, 1 something found, 2 usage.
set -euo pipefail
cd "$(dirname "$0")/.."

all='' base='' only=''
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=1 ;;
    --base) base=${2:?--base needs a revision}; shift ;;
    --only) only=${2:?--only needs format, words or tidy}; shift ;;
    *) echo "check_style.sh: unknown argument '$1'; see the head of this file" >&2; exit 2 ;;
  esac
  shift
done
case $only in
  '' | format | words | tidy) ;;
  *) echo "check_style.sh: --only '$only' is not a check; choose format, words or tidy" >&2; exit 2 ;;
esac
if [ -z "$all" ]; then
  if [ -z "$base" ]; then
    base=origin/main
    if [ "$(git rev-parse -q --verify "$base" || true)" = "$(git rev-parse HEAD)" ] ||
      ! git rev-parse -q --verify "$base" >/dev/null; then
      base=HEAD~1
      git rev-parse -q --verify "$base" >/dev/null ||
        { echo "check_style.sh: SKIPPED, neither origin/main nor HEAD~1 is here; use --base or --all"; exit 0; }
    fi
  fi
  git rev-parse -q --verify "$base^{commit}" >/dev/null ||
    { echo "check_style.sh: '$base' is not a commit; choose another --base" >&2; exit 2; }
  base=$(git merge-base "$base" HEAD)
fi

# Files of the kinds given as patterns: of the tree, or changed since the base, uncommitted and untracked ones included.
files() {
  if [ -n "$all" ]; then
    git ls-files -- "$@"
  else
    git diff --name-only --diff-filter=d "$base" -- "$@"
    git ls-files --others --exclude-standard -- "$@"
  fi | sort -u
}

failed=0
check_format() {
  if ! command -v clang-format >/dev/null; then
    echo "format: SKIPPED, clang-format is not installed"
    return
  fi
  local sources count bad
  sources=$(files '*.h' '*.cpp' '*.cu')
  count=$(grep -c . <<<"$sources" || true)
  bad=$(xargs -r -P "$(nproc)" -n 40 clang-format --dry-run <<<"$sources" 2>&1 |
    sed -nE 's/^([^:]+):[0-9]+:[0-9]+: .*clang-format-violations.*/\1/p' | sort -u) ||
    { echo "format: clang-format failed; try it on one file"; failed=1; return; }
  [ -z "$bad" ] || sed 's/^/format: /' <<<"$bad"
  bad=$(grep -c . <<<"$bad" || true)
  echo "format: $bad of $count files differ from .clang-format (clang-format -i FILE)"
  [ "$bad" -eq 0 ] || failed=1
}

check_words() {
  local list
  list=$(mktemp)
  files '*.h' '*.cpp' '*.cu' '*.md' '*.proto' '*.sh' '*.py' '*.cmake' 'CMakeLists.txt' '*/CMakeLists.txt' |
    grep -vxE 'scripts/check_style\.sh|scripts/words\.txt' >"$list" || true
  # Lines to check: all, or those that the base does not have ("FILE:LINE" of each; a new file has all).
  if [ -n "$all" ]; then
    perl scripts/words.pl scripts/words.txt "$list" || failed=1
  else
    local lines
    lines=$(mktemp)
    git diff -U0 "$base" | perl -ne '$f = $1 if m{^\+\+\+ b/(.*)}; if (/^\@\@ \S+ \+(\d+)(?:,(\d+))?/) {
      my $n = $2 // 1; print "$f:$_\n" for $1 .. $1 + $n - 1 }' >"$lines"
    git ls-files --others --exclude-standard | sed 's/$/:*/' >>"$lines"
    perl scripts/words.pl scripts/words.txt "$list" "$lines" || failed=1
    rm -f "$lines"
  fi
  rm -f "$list"
}

# In parallel, for a minute at most: about a dozen sources on two cores, those of tests last.
check_tidy() {
  local build=${BUILD:-build/release} work code=0
  if ! command -v clang-tidy >/dev/null; then
    echo "tidy: SKIPPED, clang-tidy is not installed"
    return
  fi
  if [ ! -f "$build/compile_commands.json" ]; then
    echo "tidy: SKIPPED, $build/compile_commands.json is missing; configure, or set BUILD"
    return
  fi
  work=$(mktemp -d)
  { files '*.cpp' | grep -v '^tests/' || true; files '*.h' | sed 's/h$/cpp/'; files 'tests/*.cpp'; } |
    awk -v root="$PWD/" '!seen[$0]++ { print root $0 }' >"$work/changed"
  perl scripts/tidy_commands.pl "$build/compile_commands.json" "$work/changed" "$work/sources" >"$work/compile_commands.json"
  timeout 60 xargs -r -P "$(nproc)" -n 1 clang-tidy --quiet -p "$work" --extra-arg=-Wno-unknown-warning-option \
    <"$work/sources" 2> >(grep -v 'warnings\? generated' >&2 || true) >"$work/findings" || code=$?
  cat "$work/findings"
  [ $code -ne 124 ] || echo "tidy: stopped after a minute; not all sources are checked"
  # Of .clang-tidy, and what does not compile alone; the rest is for information.
  ! grep -q -e '-warnings-as-errors\]' -e '\[clang-diagnostic-error\]' "$work/findings" || failed=1
  echo "tidy: $(grep -c . "$work/sources" || true) of $(grep -c . "$work/changed" || true) changed sources are in $build"
  rm -rf "$work"
}

[[ $only = words || $only = tidy ]] || check_format
[[ $only = format || $only = tidy ]] || check_words
[[ -n $all && $only != tidy || $only = format || $only = words ]] || check_tidy
exit $failed
