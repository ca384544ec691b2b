#!/usr/bin/env bash
# Installs what sherd builds with, and the packages named as arguments, from the distribution (Debian 12 or newer).
# Does nothing when all is there.
set -euo pipefail

packages=(
  g++ cmake ninja-build
  libdnnl-dev liblapack-dev libfmt-dev libcli11-dev nlohmann-json3-dev libprotobuf-dev protobuf-compiler libre2-dev libxxhash-dev
  libssl-dev libpcre2-dev libutf8proc-dev
  libgtest-dev libgmock-dev librapidcheck-dev
  "$@"
)

missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_deps: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
# By env, since sudo drops variables. debconf has a line on a missing apt-utils even so, which concerns nothing here.
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
  2> >(grep -v '^debconf: delaying package configuration' >&2) >/dev/null
