#!/usr/bin/env python3
"""Regenerates attention.json beside this file: rotary embedding, grouped attention and QK norm by plain PyTorch, in
double precision, with their gradients. See README.md.

  make_attention.py
"""

import json
import os
import platform

import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Every case: qkv [batch * seq, (heads + 2 * kv_heads) * head_dim] -> QK norm, where asked for -> RoPE -> attention.
CASES = [
    {"batch": 2, "seq": 3, "heads": 4, "kv_heads": 2, "head_dim": 4, "first_position": 0, "qk_norm": False},
    {"batch": 1, "seq": 5, "heads": 3, "kv_heads": 1, "head_dim": 6, "first_position": 70, "qk_norm": False},
    {"batch": 2, "seq": 4, "heads": 4, "kv_heads": 2, "head_dim": 4, "first_position": 1, "qk_norm": True},
    {"batch": 1, "seq": 7, "heads": 2, "kv_heads": 2, "head_dim": 2, "first_position": 0, "qk_norm": True},
]
THETA = 100.0  # small, so that all angles of a short sequence count
EPS = 1e-6
FREQUENCIES = [
    {"head_dim": 64, "rope_theta": 10000.0, "rope_type": "default"},
    {"head_dim": 128, "rope_theta": 1000000.0, "rope_type": "default"},
    {"head_dim": 128, "rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    {"head_dim": 64, "rope_theta": 500000.0, "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    {"head_dim": 64, "rope_theta": 10000.0, "rope_type": "linear", "factor": 3.0},
    {"head_dim": 64, "rope_theta": 10000.0, "rope_type": "dynamic", "factor": 3.0},
    {"head_dim": 128, "rope_theta": 1000000.0, "rope_type": "yarn", "factor": 4.0,
     "original_max_position_embeddings": 32768},
    {"head_dim": 64, "rope_theta": 10000.0, "rope_type": "yarn", "factor": 40.0, "beta_fast": 16.0, "beta_slow": 2.0,
     "mscale": 0.9, "mscale_all_dim": 0.7, "truncate": False, "original_max_position_embeddings": 4096},
    {"head_dim": 64, "rope_theta": 10000.0, "rope_type": "yarn", "factor": 40.0, "attention_factor": 1.25,
     "original_max_position_embeddings": 4096},
] + [
    {"head_dim": 12, "rope_theta": 10000.0, "rope_type": "longrope", "factor": factor, "positions": positions,
     "original_max_position_embeddings": 4096, "short_factor": [1.0, 1.02, 1.1, 1.25, 1.5, 2.0],
     "long_factor": [1.0, 1.3, 2.7, 9.1, 33.3, 64.0], **more}
    for factor, positions, more in ((32.0, 4096, {}), (32.0, 4097, {}), (1.0, 4097, {}), (4.0, 9, {"attention_factor": 1.5}))
]


def values(count, salt):
    """Numbers that any language can repeat: exact in single precision, between -2 and 2."""
    return torch.tensor([((i * 73 + salt * 31) % 127 - 63) / 32 for i in range(count)], dtype=torch.float64)


def frequencies(head_dim, theta):
    """As modelling code on Hugging Face computes them, in single precision."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def scaled_frequencies(head_dim, positions, **rope):
    """By transformers, with the factor of cosines and sines."""
    if rope["rope_type"] == "default":
        return frequencies(head_dim, rope["rope_theta"]), 1.0
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=131072,
                         rope_parameters=rope)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=positions)


def table(settings):
    settings = {"positions": 0, **settings}
    values, scale = scaled_frequencies(**settings)
    return dict(settings, rotation_scale=scale, values=listed(values))


def rotate(x, first_position):
    """x [batch, seq, heads, head_dim]; the angle is a product in single precision."""
    positions = torch.arange(first_position, first_position + x.shape[1], dtype=torch.float32)
    angles = torch.outer(positions, frequencies(x.shape[-1], THETA)).double()
    cos, sin = torch.cat([angles, angles], -1).cos()[:, None], torch.cat([angles, angles], -1).sin()[:, None]
    x1, x2 = x.chunk(2, -1)
    return x * cos + torch.cat([-x2, x1], -1) * sin


def run(case):
    batch, seq, heads, kv_heads, width = (case[k] for k in ("batch", "seq", "heads", "kv_heads", "head_dim"))
    columns = (heads + 2 * kv_heads) * width
    qkv = values(batch * seq * columns, 1).requires_grad_()
    weights = [(1 + values(width, salt) / 4).requires_grad_() for salt in (2, 3)]
    q, k, v = qkv.view(batch, seq, heads + 2 * kv_heads, width).split([heads, kv_heads, kv_heads], 2)
    if case["qk_norm"]:
        q, k = (F.rms_norm(x, (width,), w, EPS) for x, w in zip((q, k), weights))
    q, k = (rotate(x, case["first_position"]) for x in (q, k))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    scores = q @ k.repeat_interleave(heads // kv_heads, 1).transpose(-1, -2) / width**0.5
    seen = torch.ones(seq, seq, dtype=torch.bool).tril()
    out = out.transpose(1, 2).reshape(batch * seq, heads * width)
    out.backward(values(out.numel(), 4).view_as(out))
    result = dict(case, theta=THETA, eps=EPS, turned=torch.cat([x.transpose(1, 2) for x in (q, k, v)], 2), out=out,
                  max_logits=scores.masked_fill(~seen, -torch.inf).amax((0, 2, 3)), dqkv=qkv.grad)
    if case["qk_norm"]:
        result.update(dq_weight=weights[0].grad, dk_weight=weights[1].grad)
    return {key: listed(x) if torch.is_tensor(x) else x for key, x in result.items()}


def listed(x):
    return [float(f"{v:.9g}") for v in x.detach().flatten().tolist()]


def main():
    golden = {
        "cases": [run(case) for case in CASES],
        "frequencies": [table(f) for f in FREQUENCIES],
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    parts = [f'"{key}": ' + ("[\n" + ",\n".join(json.dumps(x) for x in part) + "\n]" if isinstance(part, list)
                             else json.dumps(part)) for key, part in golden.items()]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "attention.json"), "w") as f:
        f.write("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
