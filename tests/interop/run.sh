#!/bin/sh
# run.sh SCRIPT ARGUMENTS...: runs it with the Python that SHERD_PYTHON names, that of build/venv, or python3; exit code 77,
# which ctest takes for "skipped", where that Python lacks what the scripts need. One process does both: importing PyTorch
# takes seconds.
needs='from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import distribute_tensor'
case $1 in
  */dlpack_interop.py) needs='import torch' ;;
  */chat_test.py) needs='import jinja2, tokenizers, transformers' ;;
  */hf_interop.py | */hf_training.py | */multi_token_training.py | */rope_training.py | */sft_training.py) needs='import safetensors.torch
from transformers import Qwen3MoeConfig' ;;
  */encode_test.py | */tokenize_test.py) needs='import tokenizers' ;;
esac
program='import os, runpy, sys
needs = sys.argv[1]
del sys.argv[:2]
sys.path[0] = os.path.dirname(sys.argv[0])
try:
    exec(needs)
except Exception as error:
    print(f"{sys.executable} cannot import what this needs of PyTorch, safetensors, transformers and tokenizers: {error}")
    sys.exit(77)
runpy.run_path(sys.argv[0], run_name="__main__")'
venv=$(cd "$(dirname "$0")/../.." && pwd)/build/venv/bin/python
for python in "${SHERD_PYTHON:-$venv}" "${SHERD_PYTHON:-python3}"; do
  command -v "$python" >/dev/null || { echo "$python is missing"; continue; }
  "$python" -c "$program" "$needs" "$@"
  code=$?
  [ $code = 77 ] || exit $code
done
echo "skipped: run scripts/install_torch.sh --python, or set SHERD_PYTHON to a Python with torch, safetensors, transformers, tokenizers and jinja2"
exit 77
