#!/usr/bin/env python3
"""Held-out loss of the byte GPT under train_gpt's optimizers beside SOAP of heavyball, a package of optimizers for PyTorch.

Every optimizer updates the matrices of blocks, and AdamW the other parameters. All runs have the same first weights, batches,
clipping and weight decay. The model in PyTorch is tests/golden/train_gpt_reference.py, with AdamW as a control: it differs from
sherd's by rounding alone. q, k and v are matrices of their own on both sides. Rounding alone changes the loss of one run by
up to 2 %, so every loss is the mean over several texts. Printed is it at every learning rate.

Needs torch, numpy, safetensors and heavyball (tried: 3.2.1):
  soap_beside_heavyball.py --build build/release [--text FILE ...] [--steps 300]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))
import train_gpt_reference as reference

RATES = {"AdamW": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
         "Muon": (5e-3, 1e-2, 2e-2, 4e-2, 8e-2),
         "NorMuon": (5e-3, 1e-2, 2e-2, 4e-2, 8e-2),
         "KL-SOAP": (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2)}
NAMES = {"AdamW": "adamw", "Muon": "muon", "NorMuon": "normuon", "KL-SOAP": "soap"}
THEIRS = {"AdamW of PyTorch": "AdamW", "SOAP of heavyball": "KL-SOAP", "KLSOAP of heavyball": "KL-SOAP"}  # whose rates they try


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def flags(args):
    return ["--dim", args.dim, "--layers", args.layers, "--heads", args.heads, "--seq", args.seq, "--threads", 1, "--quiet"]


def train_sherd(args, folder, text, optimizer, rate):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    run([args.build / "bin/train_gpt", *flags(args), "--data", text, "--init-weights", folder / "init.safetensors", "--batch",
         args.batch, "--steps", args.steps, "--optimizer", NAMES[optimizer], "--lr", rate, "--weight-decay", args.weight_decay,
         "--eval-every", args.steps, "--eval-windows", 0, "--metrics", metrics, "--measure-peak", "false", "--plan", "false"])
    return json.loads(metrics.read_text().splitlines()[-1])["eval_loss"]


def tree_texts(folder):
    """The headers of three groups of folders, and the pages; at most 350,000 bytes of each."""
    texts = []
    for pattern, parts in (("*.h", ["kernels", "fsdp"]), ("*.h", ["nn"]), ("*.h", ["comm", "optim", "checkpoint", "train"]), ("*.md", ["docs"])):
        files = [p for part in parts for p in sorted((ROOT / part).rglob(pattern))]
        texts.append(folder / f"text{len(texts)}")
        texts[-1].write_bytes(b"".join(p.read_bytes() for p in files)[:350000])
    return texts


def heavyball_optimizer(name, matrices, rate, decay):
    import heavyball

    heavyball.utils.compile_mode = None
    kind = heavyball.SOAP if name.startswith("SOAP") else heavyball.KLSOAP
    return kind(matrices, lr=rate, betas=(0.9, 0.95), shampoo_beta=0.95, eps=1e-8, weight_decay=decay, precondition_frequency=1,
                max_precond_dim=8192, merge_dims=False)


def train_torch(args, folder, text, name, rate):
    weights = reference.load_weights(folder / "init.safetensors", args.dim, args.layers, args.seq)
    leaves = {}
    for key, w in weights.items():
        parts = w.chunk(3) if key.endswith("qkv.weight") else [w]
        leaves.update({f"{key} {i}": part.clone().requires_grad_() for i, part in enumerate(parts)})

    def whole():
        return {key: torch.cat([leaves[f"{key} {i}"] for i in range(3)]) if key.endswith("qkv.weight") else leaves[f"{key} 0"]
                for key in weights}

    own = name != "AdamW of PyTorch"
    matrices = [w for key, w in leaves.items() if own and key.startswith("blocks.") and w.ndim >= 2]
    rest = [w for key, w in leaves.items() if not own or not key.startswith("blocks.") or w.ndim < 2]
    optimizers = [torch.optim.AdamW([{"params": [w for w in rest if w.ndim >= 2], "weight_decay": args.weight_decay},
                                     {"params": [w for w in rest if w.ndim < 2], "weight_decay": 0.0}],
                                    lr=rate, betas=(0.9, 0.95), eps=1e-8)]
    if own:
        optimizers.append(heavyball_optimizer(name, matrices, rate, args.weight_decay))
    windows = reference.Windows(text, args.seq)
    for step in range(args.steps):
        for w in leaves.values():
            w.grad = None
        reference.mean_loss(whole(), *windows.training_batch(step, args.batch), args.layers, args.heads).backward()
        reference.clip_gradients(leaves, 1.0)
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        return reference.held_out_loss(whole(), windows, 64, args.layers, args.heads)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--text", type=Path, nargs="*", help="files to train on; default: four texts of this tree")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--only", nargs="*", help="names of optimizers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        texts = args.text or tree_texts(folder)
        run([args.build / "bin/train_gpt", *flags(args), "--steps", 0, "--export-weights", folder / "init.safetensors"])
        sizes = ", ".join(str(text.stat().st_size) for text in texts)
        print(f"texts of {sizes} bytes, {args.steps} steps of {args.batch} x {args.seq} bytes, nats per byte\n")
        print("| optimizer | best rate | held-out loss | loss at each rate |\n|---|---|---|---|", flush=True)
        for name in args.only or [*RATES, *THEIRS]:
            train, rates = (train_torch, RATES[THEIRS[name]]) if name in THEIRS else (train_sherd, RATES[name])
            losses = [statistics.mean(train(args, folder, text, name, rate) for text in texts) for rate in rates]
            best = min(range(len(rates)), key=lambda i: losses[i] if losses[i] == losses[i] else float("inf"))
            print(f"| {name} | {rates[best]:g} | {losses[best]:.4f} | " +
                  ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in zip(rates, losses)) + " |", flush=True)


main()
