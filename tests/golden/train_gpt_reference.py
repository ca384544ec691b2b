#!/usr/bin/env python3
"""The model and the training of programs/train_gpt in plain PyTorch, on one CPU thread.

An independent reference: it shares no code with sherd and follows the written description of the sample
(README.md beside this file). Prints one JSON object per step; --out writes the whole run as JSON.

  train_gpt_reference.py --make-weights 7 --weights w.safetensors --dim 48 --layers 2 --heads 3 --seq 32
  train_gpt_reference.py --weights w.safetensors --data text.bin --dim 48 --layers 2 --heads 3 --seq 32 \
      --batch 6 --steps 10 --lr 5e-3 --weight-decay 1.0 --grad-clip 1.0 --optimizer muon --out results.json
"""

import argparse
import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

VOCABULARY = 256


# ---- model: a dictionary of weights and a function -------------------------------------------------------


def weight_shapes(dim, layers, seq):
    """Name -> shape of every parameter; a weight is stored as [out, in]."""
    shapes = {"tok": (VOCABULARY, dim), "pos": (seq, dim)}
    for i in range(layers):
        block = f"blocks.{i}."
        shapes[block + "norm1"] = (dim,)
        shapes[block + "qkv"] = (3 * dim, dim)  # rows: q, then k, then v
        shapes[block + "proj"] = (dim, dim)
        shapes[block + "norm2"] = (dim,)
        shapes[block + "fc"] = (4 * dim, dim)
        shapes[block + "out"] = (dim, 4 * dim)
    shapes["norm"] = (dim,)
    shapes["head"] = (VOCABULARY, dim)
    return {name + ".weight": shape for name, shape in shapes.items()}


def random_weights(seed, dim, layers, seq):
    """The sample's distribution from PyTorch's generator: other values than sherd's for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(dim, layers, seq).items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            std = 0.02
            if name.endswith((".proj.weight", ".out.weight")):
                std /= math.sqrt(2 * layers)
            weights[name] = std * torch.randn(shape, generator=generator)
    return weights


def load_weights(path, dim, layers, seq):
    weights = load_file(path)
    expected = weight_shapes(dim, layers, seq)
    found = {name: tuple(w.shape) for name, w in weights.items()}
    if found != expected:
        names = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
        raise SystemExit(f"{path}: not the model of these flags; differing names or shapes: {names}")
    for name, w in weights.items():
        if w.dtype != torch.float32:
            raise SystemExit(f"{path}: {name} is {w.dtype}, expected float32")
    return {name: weights[name] for name in expected}


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * weight


def causal_attention(qkv, heads):
    """qkv [B, T, 3d] -> [B, T, d]; inside each third, head h has columns [h*d/heads, (h+1)*d/heads)."""
    batch, seq, width = qkv.shape
    dim = width // 3
    q, k, v = (x.view(batch, seq, heads, dim // heads).transpose(1, 2) for x in qkv.split(dim, dim=-1))
    scores = q @ k.transpose(-2, -1) / math.sqrt(dim // heads)
    future = torch.ones(seq, seq, dtype=torch.bool).triu(diagonal=1)
    attention = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return (attention @ v).transpose(1, 2).reshape(batch, seq, dim)


def forward(weights, tokens, layers, heads):
    """tokens [B, T] -> logits [B, T, 256]."""
    x = F.embedding(tokens, weights["tok.weight"]) + weights["pos.weight"]
    for i in range(layers):
        block = {n: weights[f"blocks.{i}.{n}.weight"] for n in ("norm1", "qkv", "proj", "norm2", "fc", "out")}
        qkv = F.linear(rms_norm(x, block["norm1"]), block["qkv"])
        x = x + F.linear(causal_attention(qkv, heads), block["proj"])
        hidden = F.gelu(F.linear(rms_norm(x, block["norm2"]), block["fc"]), approximate="tanh")
        x = x + F.linear(hidden, block["out"])
    return F.linear(rms_norm(x, weights["norm.weight"]), weights["head.weight"])


def mean_loss(weights, inputs, targets, layers, heads):
    return F.cross_entropy(forward(weights, inputs, layers, heads).flatten(0, 1), targets.flatten())


# ---- data ------------------------------------------------------------------------------------------------


class Windows:
    """The bytes of one file as windows of seq tokens; the last 1/50 of the windows are held out."""

    def __init__(self, path, seq):
        with open(path, "rb") as f:
            self.bytes = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).long()
        self.seq = seq
        self.total = (len(self.bytes) - 1) // seq
        self.training = self.total - self.total // 50
        if self.training < 1:
            raise SystemExit(f"{path}: {len(self.bytes)} bytes, at least {seq + 1} are needed for one window")

    def read(self, windows):
        """(inputs, targets), both [len(windows), seq]; a target is the byte after its input."""
        inputs = torch.stack([self.bytes[w * self.seq : (w + 1) * self.seq] for w in windows])
        targets = torch.stack([self.bytes[w * self.seq + 1 : (w + 1) * self.seq + 1] for w in windows])
        return inputs, targets

    def training_batch(self, step, batch):
        """step counts from 0; the product wraps at 64 bits, unsigned."""
        return self.read([(step * batch + i) * 2654435761 % 2**64 % self.training for i in range(batch)])

    def held_out_batches(self, batch):
        held_out = range(self.training, self.total)
        for begin in range(0, len(held_out), batch):
            yield self.read(held_out[begin : begin + batch])


# ---- optimizers ------------------------------------------------------------------------------------------


def orthogonalize(u):
    """Five quintic Newton-Schulz steps on the wide orientation of u, in the precision of u."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / (torch.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if u.shape[0] > u.shape[1] else x


class Muon:
    """Named matrices; qkv is three square matrices for orthogonalization and for the update's scale."""

    def __init__(self, named_weights, lr, weight_decay, momentum=0.95):
        self.weights = dict(named_weights)
        self.buffers = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.lr, self.weight_decay, self.momentum = lr, weight_decay, momentum

    @torch.no_grad()
    def step(self):
        for name, w in self.weights.items():
            buffer = self.buffers[name].lerp_(w.grad, 1 - self.momentum)
            update = w.grad.lerp(buffer, self.momentum)  # Nesterov
            w.mul_(1 - self.lr * self.weight_decay)
            blocks = 3 if name.endswith(".qkv.weight") else 1
            for w_block, u in zip(w.chunk(blocks), update.chunk(blocks)):
                w_block.sub_(self.lr * 0.2 * math.sqrt(max(u.shape)) * orthogonalize(u))


def make_optimizers(weights, kind, lr, weight_decay):
    """Muon, if chosen, takes the matrices of the blocks; AdamW everything else. Vectors are never decayed."""
    to_muon = {n: w for n, w in weights.items() if kind == "muon" and n.startswith("blocks.") and w.ndim >= 2}
    rest = [w for n, w in weights.items() if n not in to_muon]
    groups = [
        {"params": [w for w in rest if w.ndim >= 2], "weight_decay": weight_decay},
        {"params": [w for w in rest if w.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
    return [Muon(to_muon, lr, weight_decay), adamw] if to_muon else [adamw]


# ---- training --------------------------------------------------------------------------------------------


@torch.no_grad()
def clip_gradients(weights, max_norm):
    """Scales gradients by min(1, max_norm / (total + 1e-6)), not at all for 0; returns the norm before."""
    total = math.sqrt(sum(w.grad.double().square().sum().item() for w in weights.values()))
    if max_norm > 0:
        coefficient = min(1.0, max_norm / (total + 1e-6))
        for w in weights.values():
            w.grad.mul_(coefficient)
    return total


@torch.no_grad()
def held_out_loss(weights, windows, batch, layers, heads):
    """Mean over all held-out tokens, or None where the data is too small to hold any out."""
    losses, tokens = 0.0, 0
    for inputs, targets in windows.held_out_batches(batch):
        losses += mean_loss(weights, inputs, targets, layers, heads).item() * targets.numel()
        tokens += targets.numel()
    return losses / tokens if tokens else None


def train(weights, windows, *, layers, heads, batch, steps, lr, weight_decay, grad_clip, optimizer,
          report=lambda record: None):
    """Trains weights (name -> tensor) in place; returns {"steps": [...], "eval_loss": at the end}."""
    for w in weights.values():
        w.requires_grad_(True)
    optimizers = make_optimizers(weights, optimizer, lr, weight_decay)
    records = []
    for step in range(steps):
        for w in weights.values():
            w.grad = None
        loss = mean_loss(weights, *windows.training_batch(step, batch), layers, heads)
        loss.backward()
        num_zeros = sum((w.grad == 0).sum().item() for w in weights.values())
        grad_norm = clip_gradients(weights, grad_clip)
        for o in optimizers:
            o.step()
        record = {"step": step + 1, "loss": loss.item(), "grad_norm": grad_norm, "num_zeros": num_zeros}
        records.append(record)
        report(record)
    return {"steps": records, "eval_loss": held_out_loss(weights, windows, batch, layers, heads)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", required=True, help="safetensors file with the initial weights")
    parser.add_argument("--make-weights", type=int, metavar="SEED", help="write random --weights and stop")
    parser.add_argument("--data", help="file whose bytes are the text")
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--weight-decay", type=float, default=1.0)
    parser.add_argument("--grad-clip", type=float, default=1.0, help="0 turns clipping off")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--double", action="store_true", help="float64, to see what rounding contributes")
    parser.add_argument("--out", help="write the run as one JSON document")
    args = parser.parse_args()
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not a multiple of --heads {args.heads}")
    if args.make_weights is None and not args.data:
        parser.error("--data is needed to train")
    return args


def main():
    args = parse_arguments()
    torch.set_num_threads(1)
    if args.make_weights is not None:
        save_file(random_weights(args.make_weights, args.dim, args.layers, args.seq), args.weights)
        return
    weights = load_weights(args.weights, args.dim, args.layers, args.seq)
    if args.double:
        weights = {name: w.double() for name, w in weights.items()}
    result = train(
        weights, Windows(args.data, args.seq), layers=args.layers, heads=args.heads, batch=args.batch,
        steps=args.steps, lr=args.lr, weight_decay=args.weight_decay, grad_clip=args.grad_clip,
        optimizer=args.optimizer, report=lambda record: print(json.dumps(record), flush=True))
    print(json.dumps({"eval_loss": result["eval_loss"]}))
    if args.out:
        with open(args.out, "w") as f:
            json.dump({"config": vars(args), **result}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
