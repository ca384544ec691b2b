#!/usr/bin/env bash
# Installs cudnn-frontend's headers for attention by cuDNN into build/cudnn-frontend, from PyPI: 3 MB.
# Usage: scripts/install_cudnn_frontend.sh [VERSION]     (1.32.0 unless told)
#
# cudnn.h is not among them: it comes with cuDNN 9, as do the libraries that a program loads.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-1.32.0}
target=build/cudnn-frontend

if [ "$(cat $target/version 2>/dev/null)" = "$version" ]; then
  exit 0
fi
mkdir -p build
venv=build/venv
[ -x $venv/bin/python ] || python3 -m venv $venv || {
  echo "install_cudnn_frontend: python3 cannot make a virtual environment; install python3-venv" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$venv/bin/pip install --quiet --disable-pip-version-check --retries 2 --no-deps --target "$work" "nvidia-cudnn-frontend==$version"
rm -rf $target
mkdir $target
cp -r "$work/include" "$work"/nvidia_cudnn_frontend-*.dist-info $target/
echo "$version" >$target/version
echo "cudnn-frontend $version is in $target: configure with -DSHERD_CUDNN=ON"
