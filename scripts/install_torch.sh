#!/usr/bin/env bash
# Installs PyTorch's CPU half for the adapter (-DSHERD_TORCH=ON) into build/venv, from PyPI: about 1 GB.
# Usage: scripts/install_torch.sh [--python] [VERSION]     (2.11 or newer; the newest unless told)
#
#   --python  also PyTorch's Python half and the packages of the tests `interop.*` and `torch.interop`, which use the Python
#             of build/venv where it exists: about 6 GB
#
# The wheel of PyPI is built for CUDA; of what it depends on, libtorch_cpu.so needs two libraries alone. Does nothing when
# a torch is there that is new enough. The file build/venv/has_torch tells scripts/test.sh that the installation is complete.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/venv
python=
if [ "${1:-}" = --python ]; then
  python=1
  shift
fi
version=${1:-}

# The system's Python first: tests run as a user who may not execute one in another user's home.
make_venv() {
  mkdir -p build
  [ -x $venv/bin/python ] || PATH=/usr/bin:$PATH python3 -m venv $venv || {
    echo "install_torch: python3 cannot make a virtual environment; install python3-venv" >&2
    exit 1
  }
}
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --retries 2)
if [ -n "$python" ]; then
  make_venv
  "${pip[@]}" "torch${version:+==}${version:->=2.11}" transformers==5.24.* tokenizers safetensors jinja2 numpy
  touch $venv/has_torch
  exit 0
fi

if [ -x $venv/bin/python ] && $venv/bin/python - "$version" <<'END'
import importlib.metadata as m, sys
try:
    have = m.version("torch").split("+")[0]
except m.PackageNotFoundError:
    sys.exit(1)
number = [int(x) for x in have.split(".")[:2]]
sys.exit(0 if (have == sys.argv[1] if sys.argv[1] else number >= [2, 11]) else 1)
END
then
  touch $venv/has_torch
  exit 0
fi
make_venv
pip+=(--no-deps)
"${pip[@]}" "torch${version:+==$version}"
# The two parts of CUDA, in the version that this torch requires: given part by part, or as one of the whole
# toolkit.
mapfile -t parts < <($venv/bin/python - <<'END' | sort -u
import importlib.metadata, re
for wanted in importlib.metadata.requires("torch") or []:
    if part := re.match(r"(nvidia-cuda-(?:runtime|cupti)[\w-]*) *== *([\d.]+)", wanted):
        print(f"{part[1]}=={part[2]}")
    elif toolkit := re.match(r"cuda-toolkit\[.*\] *== *(\d+)\.(\d+)", wanted):
        for name in ("nvidia-cuda-runtime", "nvidia-cuda-cupti"):
            print(f"{name}=={toolkit[1]}.{toolkit[2]}.*")
END
)
[ ${#parts[@]} -eq 0 ] || "${pip[@]}" "${parts[@]}"
touch $venv/has_torch
echo "torch is in $venv: scripts/test.sh builds with it; elsewhere configure with -DSHERD_TORCH=ON"
