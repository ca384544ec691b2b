#!/usr/bin/env python3
"""PyTorch's kernels on the shapes of `sherd_bench device`: what a user would otherwise run.

Prints one JSON object of the same form; rows have the same names and shapes, so that times compare one to one. Attention
is measured once as PyTorch chooses it and once for each of its implementations, "attention [flash]" and "[cudnn]", whose
backward is measured as it is and asked to be deterministic; "notes" says which are not there, and whether five repetitions
of a backward had the same bits.
"""
import argparse
import contextlib
import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_muon import measure


@contextlib.contextmanager
def deterministic(on):
    """What can be deterministic is; collects what PyTorch warns cannot."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(on, warn_only=True)
        try:
            yield caught
        finally:
            torch.use_deterministic_algorithms(False)


def attention(add, notes, q, k, v, shape, product):
    """Rows of causal attention by each implementation, and a note for what is missing or does not repeat."""
    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    backends = [("", None), (" [flash]", SDPBackend.FLASH_ATTENTION), (" [cudnn]", SDPBackend.CUDNN_ATTENTION)]
    for suffix, backend in backends:
        try:
            with sdpa_kernel([backend]) if backend is not None else contextlib.nullcontext():
                with torch.no_grad():
                    add("attention" + suffix, shape, forward, flops=2 * product)
                for fixed in (False, True):
                    with deterministic(fixed) as caught:
                        out = forward()
                        dout = torch.randn_like(out)

                        def backward():
                            return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

                        how = " [deterministic]" if fixed else ""
                        add("attention backward" + suffix + how, shape, backward, flops=5 * product)
                        first = backward()
                        same = all(torch.equal(x, y) for _ in range(4) for x, y in zip(first, backward()))
                        warned = any("deterministic" in str(w.message) for w in caught)
                    notes.append(f"attention backward{suffix}{how}, {shape}: {'the same' if same else 'other'} bits in five"
                                 + (", warned of as not deterministic" if warned else ""))
        except (RuntimeError, NotImplementedError) as e:
            notes.append(f"attention{suffix}, {shape}: not available: {str(e).splitlines()[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_ops.py: PyTorch sees no GPU")
    device, full = args.device, not args.small
    rows, notes = [], []

    def add(name, shape, work, nbytes=0, flops=0):
        median, spread, calls = measure(work, device, args.rounds, 0.02 if full else 0.005)
        r = {"name": name, "shape": shape, "us": median * 1e6, "spread": spread, "calls": calls}
        if nbytes:
            r |= {"bytes": nbytes, "gb_per_s": nbytes / median * 1e-9}
        if flops:
            r |= {"flops": flops, "tflop_per_s": flops / median * 1e-12}
        rows.append(r)

    def random(*shape, dtype=torch.bfloat16, grad=False):
        return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(grad)

    mib = 2048 if full else 64
    source = torch.ones(mib << 18, device=device)
    target = torch.empty_like(source)
    add("copy", f"{mib} MiB", lambda: target.copy_(source), nbytes=2 * mib << 20)
    del source, target
    n = 8192 if full else 1024
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
        a, b = random(n, n, dtype=dtype), random(n, n, dtype=dtype)
        add(f"gemm {name}", f"{n} x {n} x {n}", lambda: a @ b, flops=2 * n**3)

    n = (256 if full else 4) << 20
    w = torch.nn.Parameter(random(n, dtype=torch.float32))
    w.grad = random(n, dtype=torch.float32)
    adamw = torch.optim.AdamW([w], lr=1e-6, fused=True)
    add("adamw", f"{n >> 20} Mi elements", adamw.step, nbytes=28 * n)
    del w, adamw

    height, width = (32768, 4096) if full else (1024, 512)
    x, dy, weight = random(height, width, grad=True), random(height, width), random(width, grad=True)
    shape = f"{height} x {width} bf16"
    add("rms norm", shape, lambda: F.rms_norm(x.detach(), (width,), weight.detach(), 1e-5), nbytes=4 * height * width)
    y = F.rms_norm(x, (width,), weight, 1e-5)
    add("rms norm backward", shape, lambda: torch.autograd.grad(y, (x, weight), dy, retain_graph=True),
        nbytes=6 * height * width)
    y = F.gelu(x, approximate="tanh")
    add("gelu", shape, lambda: F.gelu(x.detach(), approximate="tanh"), nbytes=4 * height * width)
    add("gelu backward", shape, lambda: torch.autograd.grad(y, x, dy, retain_graph=True), nbytes=6 * height * width)

    height, vocab = (8192, 50304) if full else (512, 2048)
    logits = random(height, vocab, grad=True)
    targets = torch.zeros(height, dtype=torch.long, device=device)
    shape = f"{height} x {vocab} bf16"
    add("cross entropy", shape, lambda: F.cross_entropy(logits.detach(), targets), nbytes=2 * height * vocab)
    loss = F.cross_entropy(logits, targets)
    add("cross entropy backward", shape, lambda: torch.autograd.grad(loss, logits, retain_graph=True),
        nbytes=4 * height * vocab)
    add("cross entropy, both in one", shape,
        lambda: torch.autograd.grad(F.cross_entropy(logits, targets), logits), nbytes=4 * height * vocab)
    del logits, loss

    batch, seq, dim = (4, 4096, 2048) if full else (1, 256, 128)
    for head_dim in (64, 128):
        heads = dim // head_dim
        q, k, v = (random(batch, heads, seq, head_dim, grad=True) for _ in range(3))
        product = batch * heads * seq * seq * head_dim
        shape = f"B {batch} T {seq} H {heads} x {head_dim} bf16"
        attention(add, notes, q, k, v, shape, product)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(json.dumps({"suite": "device", "device": f"{name}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
                      "rows": rows, "notes": notes}, indent=1))


if __name__ == "__main__":
    main()
