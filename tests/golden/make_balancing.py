"""Writes balancing.json beside this file: the load-balancing loss of router logits and its gradient, by transformers in f64.

    python tests/golden/make_balancing.py
"""

import json
import pathlib

import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

ROWS, EXPERTS = 12, 5


def values(count, salt):
    """Numbers that any language can repeat: exact in single precision, between -2 and 2."""
    return torch.tensor([((i * 73 + salt * 31) % 127 - 63) / 32 for i in range(count)], dtype=torch.float64)


def case(layers, k, lengths=None):
    """`lengths`: of sequences of ROWS / len(lengths) rows, those that are not padding."""
    logits = [values(ROWS * EXPERTS, layer).reshape(ROWS, EXPERTS).requires_grad_() for layer in range(layers)]
    mask = lengths and torch.tensor([[int(i < n) for i in range(ROWS // len(lengths))] for n in lengths])
    loss = load_balancing_loss_func(tuple(logits), EXPERTS, k, mask)
    loss.backward()
    return {"layers": layers, "k": k, "lengths": lengths or [ROWS], "loss": loss.item(),
            "gradients": [[round(x, 12) for x in t.grad.flatten().tolist()] for t in logits]}


cases = [case(layers, k, lengths) for lengths in (None, [4, 1, 2]) for layers in (1, 4) for k in (1, 2)]
text = {"transformers": transformers.__version__, "torch": torch.__version__, "rows": ROWS, "experts": EXPERTS, "cases": cases}
(pathlib.Path(__file__).parent / "balancing.json").write_text(json.dumps(text, indent=1) + "\n")
