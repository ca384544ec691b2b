#!/usr/bin/env bash
# Installs what builds with CUDA can use beside the toolkit into build/cuda-extras, from PyPI: 10 MB.
# Usage: scripts/install_cuda_extras.sh
#
#   cudnn-frontend       headers, for attention by cuDNN (cudnn.h comes with cuDNN 9, as do the libraries that a program loads)
#   cuobjdump, nvdisasm  for the test cuda.sass, where the toolkit has none
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(nvidia-cudnn-frontend==1.32.0 nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)
target=build/cuda-extras venv=build/venv

if [ "$(cat $target/packages 2>/dev/null)" = "${packages[*]}" ]; then
  exit 0
fi
mkdir -p build
[ -x $venv/bin/python ] || PATH=/usr/bin:$PATH python3 -m venv $venv || {
  echo "install_cuda_extras: python3 cannot make a virtual environment; install python3-venv" >&2
  exit 1
}
rm -rf $target
$venv/bin/pip install --quiet --disable-pip-version-check --retries 2 --no-deps --target $target "${packages[@]}"
rm -rf $target/cudnn  # for Python
echo "${packages[*]}" >$target/packages
echo "cudnn-frontend, cuobjdump and nvdisasm are in $target: configure with -DSHERD_CUDNN=ON"
