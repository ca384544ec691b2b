#!/usr/bin/env bash
# Executes a Dockerfile of Debian images without Docker: each stage is a bare system; the last one's size and user are checked.
# Usage: dockerfile_test.sh SOURCE_DIR DOCKERFILE [COMMAND...]     COMMAND is run by the image's user. Exit code 77: skipped
#
# Supports FROM debian:12-slim [AS NAME], WORKDIR, COPY [--from=NAME] SOURCE TARGET, RUN, USER and CMD
# ["..."].
set -euo pipefail
source=$(realpath "$1") dockerfile=$2
shift 2
most_mb=300
# shellcheck source=tests/packaging/bare_root.sh
. "$source/tests/packaging/bare_root.sh"
bare_needs
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT
fail() { echo "$dockerfile: $*" >&2; exit 1; }

# Same as debian:12-slim: without documentation, translations and downloaded packages.
slim() {
  local folders=(doc man info locale groff lintian)
  printf 'path-exclude /usr/share/%s/*\n' "${folders[@]}" >"$1/etc/dpkg/dpkg.cfg.d/slim"
  echo 'DPkg::Post-Invoke {"rm -f /var/cache/apt/archives/*.deb";}; Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";' \
    >"$1/etc/apt/apt.conf.d/slim"
  (cd "$1/usr/share" && rm -rf "${folders[@]}")
  rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
}

stages=0 stage='' folder=/ user=root command=''
instruction() {
  local word=$1 text=$2 from=$source
  echo "-- $word ${text:0:100}"
  case $word in
    FROM)
      [[ $text =~ ^debian:12-slim(\ AS\ ([a-z]+))?$ ]] || fail "FROM $text is not debian:12-slim"
      stages=$((stages + 1)) folder=/ user=root
      stage=$scratch/${BASH_REMATCH[2]:-stage$stages}
      bare_root "$stage"
      slim "$stage"
      ;;
    WORKDIR)
      folder=$text
      mkdir -p "$stage$folder"
      ;;
    COPY)
      if [[ $text =~ ^--from=([a-z]+)\ (.*)$ ]]; then
        from=$scratch/${BASH_REMATCH[1]} text=${BASH_REMATCH[2]}
      fi
      local what=${text% *} target=${text#* }
      [[ $target == /* ]] || target=$folder/$target
      mkdir -p "$stage$target"
      if [ "$from" = "$source" ]; then
        git -C "$from/$what" ls-files -z | tar -C "$from/$what" --null -T - -c | tar -C "$stage$target" -x
      else
        cp -a "$from/$what/." "$stage$target"
      fi
      ;;
    RUN) [ "$user" = root ] && bare_run "$stage" sh -ec "cd '$folder'; $text" ;;
    USER) user=$text ;;
    CMD) command=$(sed 's/^\[//; s/\]$//; s/,//g' <<<"$text") ;;
    *) fail "the instruction $word is unknown" ;;
  esac
}
joined=''
while IFS= read -r line || [ -n "$line" ]; do
  [[ $line =~ ^# || -z $line ]] && continue
  joined+=$line
  if [[ $joined == *\\ ]]; then
    joined=${joined%\\}
    continue
  fi
  instruction "${joined%% *}" "${joined#* }" </dev/null
  joined=''
done <"$dockerfile"

[ "$user" != root ] || fail "the image runs as root"
megabytes=$(du -sm --one-file-system "$stage" | cut -f1)
[ "$megabytes" -lt $most_mb ] || fail "the image has $megabytes MB, $most_mb are allowed"
as_user() { bare_run "$stage" setpriv --reuid="$user" --regid="$user" --init-groups env HOME="$folder" sh -ec "cd '$folder'; $*"; }
as_user "$command" >/dev/null
[ $# -eq 0 ] || as_user "$@"
echo "$dockerfile: $megabytes MB, runs as $user: $command"
