#!/usr/bin/env python3
"""Folders that train_gpt wrote after training, opened by transformers: hf_training.py TRAIN_GPT FOLDER_OF_MODELS

A model is trained for some steps on several ranks and written with --export-hf. transformers opens the folder and computes the loss
of the windows that come next; train_gpt, given the same folder, computes it as the loss of its first step. Names, shapes
and dtypes are those of the folder that came in.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

SEQ, BATCH, TOLERANCE = 16, 8, 1e-5


def shapes_of(folder):
    shapes = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        if file.name.startswith("expected"):
            continue
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_slice(name)
                shapes[name] = (tuple(tensor.get_shape()), tensor.get_dtype())
    return shapes


def run(program, *flags):
    done = subprocess.run([program, *map(str, flags), "--quiet", "--threads", "1"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"train_gpt failed: {done.stderr}")


def main():
    program, models = sys.argv[1], Path(sys.argv[2])
    work = Path(tempfile.mkdtemp())
    tokens = [(i * i + 7 * (i // 5)) % 190 for i in range(3000)]
    (work / "tokens.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in tokens))
    data = ["--tokens", work / "tokens.bin", "--token-format", "u16", "--order", "sequential", "--seq", SEQ, "--batch", BATCH]
    for family in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3", "olmo2", "glm4_moe", "olmo3", "gemma3_text", "gpt_oss", "mistral_longrope", "qwen2_yarn"):
        out, metrics = work / family, work / f"{family}.jsonl"
        ranks = ["--ranks", 4, "--tp", 2] + (["--expert-parallel", 2] if family in ("qwen3_moe", "deepseek_v3", "glm4_moe", "gpt_oss") else [])
        run(program, "--model", models / family, *data, *ranks, "--optimizer", "muon", "--steps", 20, "--export-hf", out)
        if shapes_of(out) != shapes_of(models / family):
            sys.exit(f"{family}: names, shapes or dtypes are not those of the folder that came in")
        run(program, "--model", out, *data, "--ranks", 2, "--steps", 1, "--metrics", metrics)
        ours = [json.loads(line) for line in metrics.read_text().splitlines()]
        ours = next(step["loss"] for step in ours if "loss" in step)
        # grouped_mm wants rows of whole 16 bytes.
        eager = {"experts_implementation": "eager"} if family == "gpt_oss" else {}
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, **eager)
        inputs = torch.tensor([tokens[w * SEQ:(w + 1) * SEQ] for w in range(BATCH)])
        targets = torch.tensor([tokens[w * SEQ + 1:(w + 1) * SEQ + 1] for w in range(BATCH)])
        with torch.no_grad():
            logits = model(input_ids=inputs).logits
        theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten()).item()
        if abs(ours - theirs) > TOLERANCE * theirs:
            sys.exit(f"{family}: the loss is {ours} here and {theirs} with transformers")
        print(f"{family}: {ours:.7f} here, {theirs:.7f} with transformers")


if __name__ == "__main__":
    main()
