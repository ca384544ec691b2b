#!/usr/bin/env python3
"""Writes the matrices of a published model as the input of `sherd layout`.

    docs/published_params.py llama3-8b > model.json

Embeddings, the output head and norms are left out: AdamW updates them. Shapes: the models' config.json (Llama 3 8B, Kimi K2).
"""

import json
import sys


def llama3_8b():
    return [("q", [4096, 4096]), ("kv", [2048, 4096], [1024, 1024]), ("o", [4096, 4096]),
            ("gate_up", [28672, 4096], [14336, 14336]), ("down", [4096, 14336])]


def kimi_k2():
    """Layers 2 to 61: latent attention, and 384 experts with the shared one."""
    return [("q_a", [1536, 7168]), ("q_b", [12288, 1536]), ("kv_a", [576, 7168]), ("kv_b", [16384, 512]), ("o", [7168, 8192]),
            ("gate_up", [385, 4096, 7168], [2048, 2048]), ("down", [385, 7168, 2048])]


MODELS = {"llama3-8b": (32, llama3_8b), "kimi-k2": (60, kimi_k2)}

if len(sys.argv) != 2 or sys.argv[1] not in MODELS:
    sys.exit(f"usage: {sys.argv[0]} {'|'.join(MODELS)}")
layers, matrices_of = MODELS[sys.argv[1]]
params = []
for layer in range(layers):
    for name, shape, *blocks in matrices_of():
        entry = {"name": f"l{layer}.{name}", "shape": shape, "dtype": "bf16", "optimizer": "muon", "unit": f"l{layer}"}
        params.append(entry | ({"blocks": blocks[0]} if blocks else {}))
json.dump(params, sys.stdout)
