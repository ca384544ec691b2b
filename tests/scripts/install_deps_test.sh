#!/usr/bin/env bash
# scripts/install_deps.sh among programs that stand for dpkg, sudo and apt: under sudo debconf runs without questions, its
# line on apt-utils is dropped, and the errors of apt are shown. Usage: install_deps_test.sh SOURCE_DIR
set -euo pipefail
script=$1/scripts/install_deps.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stub() { printf '#!/bin/sh\n%s\n' "$2" >"$scratch/$1" && chmod +x "$scratch/$1"; }
stub dpkg-query 'exit 1'
stub id 'echo 1000'
stub sudo 'unset DEBIAN_FRONTEND; exec "$@"'
stub apt-get '[ "$1" = update ] && exit 0
echo "frontend: $DEBIAN_FRONTEND" >&2
echo "debconf: delaying package configuration, since apt-utils is not installed" >&2
echo "E: no space left" >&2
echo "Selecting previously unselected package"'
said=$(PATH=$scratch:$PATH "$script" somepackage 2>&1)
wanted=$(printf 'frontend: noninteractive\nE: no space left')
[ "$(grep -v '^installing: .* somepackage$' <<<"$said")" = "$wanted" ] && exit 0
echo "it printed:"
echo "$said"
exit 1
