"""Writes functions.json beside this file: inputs, outputs and gradients of every function of nn/, by PyTorch in f64.

    python tests/golden/make_functions.py
"""

import numpy as np
import torch
import torch.nn.functional as F
from cases import Cases

FUNCTIONS = Cases(20260101)
grid = FUNCTIONS.grid
RMS_EPS, LAYER_EPS = float(np.float32(1e-6)), float(np.float32(1e-5))


def attention(qkv, batch, heads):
    rows, width = qkv.shape
    q, k, v = (t.reshape(batch, rows // batch, heads, -1).transpose(1, 2) for t in qkv.split(width // 3, dim=1))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(rows, width // 3)


def swiglu(gate, up):
    return F.silu(gate) * up


# ---- dropout's mask: DropoutKey and DropoutArgs of nn/kernels/dropout/dropout.h, written down a second time

M64 = (1 << 64) - 1


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def hash64(seed, name):
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & M64
    return mix(mix(seed) ^ h)


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def dropout(x, p, seed, step, site, call, first_row):
    key = hash64((hash64(seed, "dropout") + step) & M64, site)
    kept = torch.zeros_like(x)
    for r in range(x.shape[0]):
        for c in range(x.shape[1]):
            row = first_row + r
            word = philox([c // 4, row & 0xFFFFFFFF, row >> 32, call], [key & 0xFFFFFFFF, key >> 32])[c % 4]
            kept[r, c] = float(word >= int(p * 2**32))
    return x * kept / (1 - p)


# ---- the cases: name -> (inputs, parameters, integers, function of the three)


def cross_entropy(logits, targets):
    return 0.25 * F.cross_entropy(logits, targets.flatten(), reduction="sum")


def embedding(x, w, n):
    seq = n[0].shape[1]
    rows = w[0][n[0].flatten()]
    return rows + w[1][:seq].repeat(n[0].shape[0], 1) if len(w) > 1 else rows


def gelu(x):
    return F.gelu(x, approximate="tanh")


TOKENS = torch.tensor([[4, 0, 6], [6, 6, 1]])
TARGETS = torch.tensor([3, 0, 6, 6, 2])

CASES = {
    "linear": ([grid(5, 7)], [grid(3, 7)], [], lambda x, w, n: x[0] @ w[0].T),
    "linear_bias": ([grid(5, 7)], [grid(3, 7), grid(3)], [], lambda x, w, n: F.linear(x[0], w[0], w[1])),
    "linear_gelu": ([grid(5, 7)], [grid(3, 7)], [], lambda x, w, n: gelu(x[0] @ w[0].T)),
    "linear_gelu_bias": ([grid(5, 7)], [grid(3, 7), grid(3)], [], lambda x, w, n: gelu(F.linear(x[0], w[0], w[1]))),
    "add_linear": ([grid(5, 3), grid(5, 7)], [grid(3, 7)], [], lambda x, w, n: x[0] + x[1] @ w[0].T),
    "gelu_mlp": ([grid(5, 3)], [grid(7, 3), grid(3, 7)], [], lambda x, w, n: gelu(x[0] @ w[0].T) @ w[1].T),
    "gelu_mlp_residual": ([grid(5, 3), grid(5, 3)], [grid(7, 3), grid(3, 7)], [],
                          lambda x, w, n: x[1] + gelu(x[0] @ w[0].T) @ w[1].T),
    "rms_norm": ([grid(5, 7)], [grid(7)], [],
                 lambda x, w, n: x[0] * torch.rsqrt((x[0] ** 2).mean(1, keepdim=True) + RMS_EPS) * w[0]),
    "layer_norm": ([grid(5, 7)], [grid(7)], [], lambda x, w, n: F.layer_norm(x[0], (7,), w[0], None, LAYER_EPS)),
    "layer_norm_bias": ([grid(5, 7)], [grid(7), grid(7)], [],
                        lambda x, w, n: F.layer_norm(x[0], (7,), w[0], w[1], LAYER_EPS)),
    "causal_attention": ([grid(2 * 4, 3 * 3 * 2)], [], [], lambda x, w, n: attention(x[0], 2, 3)),
    "embedding": ([], [grid(7, 3)], [TOKENS], embedding),
    "embedding_positions": ([], [grid(7, 3), grid(5, 3)], [TOKENS], embedding),
    "gelu": ([grid(5, 7)], [], [], lambda x, w, n: gelu(x[0])),
    "gelu_erf": ([grid(5, 7)], [], [], lambda x, w, n: F.gelu(x[0])),
    "silu": ([grid(5, 7)], [], [], lambda x, w, n: F.silu(x[0])),
    "relu": ([grid(5, 7)], [], [], lambda x, w, n: F.relu(x[0])),
    "swiglu": ([grid(5, 3), grid(5, 3)], [], [], lambda x, w, n: swiglu(x[0], x[1])),
    "swiglu_packed": ([grid(5, 6)], [], [], lambda x, w, n: swiglu(x[0][:, :3], x[0][:, 3:])),
    "softmax": ([grid(2, 3, 5)], [], [], lambda x, w, n: F.softmax(x[0], -1)),
    "add": ([grid(5, 3), grid(5, 3)], [], [], lambda x, w, n: x[0] + x[1]),
    "multiply": ([grid(5, 3), grid(5, 3)], [], [], lambda x, w, n: x[0] * x[1]),
    "multiply_itself": ([grid(5, 3)], [], [], lambda x, w, n: x[0] * x[0]),
    "scale": ([grid(5, 3)], [], [], lambda x, w, n: -1.5 * x[0]),
    "view": ([grid(5, 3)], [], [], lambda x, w, n: x[0].reshape(3, 5)),
    "sum": ([grid(5, 3)], [], [], lambda x, w, n: x[0].sum().reshape(1)),
    # Factors are f32: with a power of two of elements this one is exact.
    "mean": ([grid(4, 2)], [], [], lambda x, w, n: x[0].mean().reshape(1)),
    "mean_squared_error": ([grid(4, 2)], [], [],
                           lambda x, w, n: ((x[0] - torch.arange(8.0).reshape(4, 2) / 4) ** 2).mean().reshape(1)),
    "cross_entropy": ([grid(5, 7)], [], [TARGETS], lambda x, w, n: cross_entropy(x[0], n[0]).reshape(1)),
    "linear_cross_entropy": ([grid(5, 3)], [grid(7, 3)], [TARGETS],
                             lambda x, w, n: cross_entropy(x[0] @ w[0].T, n[0]).reshape(1)),
    "linear_cross_entropy_chunks": ([grid(5, 3)], [grid(7, 3)], [TARGETS],
                                    lambda x, w, n: cross_entropy(x[0] @ w[0].T, n[0]).reshape(1)),
    "dropout": ([grid(5, 7)], [], [], lambda x, w, n: dropout(x[0], 0.25, 7, 3, "blocks.0.mlp", 1, (1 << 32) - 2)),
    "concat_rows": ([grid(2, 3), grid(1, 3), grid(3, 3)], [], [], lambda x, w, n: torch.cat(x)),
    "rows": ([grid(5, 3)], [], [], lambda x, w, n: x[0][1:3]),
    "split_columns": ([grid(5, 7)], [], [], lambda x, w, n: x[0].split([2, 1, 4], dim=1)),
}

FUNCTIONS.write("functions", CASES)
