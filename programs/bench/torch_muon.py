#!/usr/bin/env python3
"""torch.optim.Muon's own Newton-Schulz iteration on the shapes of `sherd_bench newton_schulz`.

Prints one JSON object of the same form: {"suite", "device", "rows": [{"name", "shape", "us", "spread", ...}]}.
TFLOP/s count what that iteration multiplies, (20a + 10) n^3 for five steps; compare times, not TFLOP/s, with a program
that halves symmetric products. Needs PyTorch 2.9 or newer; --device cpu --small tries it without a GPU.
"""
import argparse
import json
import statistics
import sys
import time

import torch

FULL = [(1, 1024, 1024), (1, 2048, 2048), (1, 4096, 4096), (1, 8192, 8192), (1, 2048, 7168), (1, 4096, 11008),
        (32, 1024, 1024), (16, 2048, 2048), (4, 4096, 4096), (32, 1024, 4096), (8, 2048, 7168)]
SMALL = [(1, 128, 128), (1, 256, 256), (1, 128, 448), (1, 256, 688), (8, 64, 64), (4, 128, 128), (8, 64, 256)]
JORDAN = (3.4445, -4.7750, 2.0315)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(work, device, rounds, batch_s):
    """Median seconds of one call, (slowest - fastest) / median of batches, calls in a batch."""
    def batch(calls):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        synchronize(device)
        return (time.perf_counter() - start) / calls

    batch(2)
    calls = max(1, min(2000, round(batch_s / batch(1))))
    seconds = sorted(batch(calls) for _ in range(rounds))
    median = statistics.median(seconds)
    return median, (seconds[-1] - seconds[0]) / median, calls


def row(name, shape, timing, flops):
    median, spread, calls = timing
    return {"name": name, "shape": shape, "us": median * 1e6, "spread": spread, "calls": calls, "flops": flops,
            "tflop_per_s": flops / median * 1e-12}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile the iteration")
    args = parser.parse_args()
    try:
        from torch.optim._muon import _zeropower_via_newtonschulz as iteration
    except ImportError:
        sys.exit(f"torch_muon.py: PyTorch {torch.__version__} has no torch.optim.Muon; 2.9 or newer does")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_muon.py: PyTorch sees no GPU")
    if args.compile:
        iteration = torch.compile(iteration)

    torch.manual_seed(0)
    batch_s = 0.005 if args.small else 0.02
    rows = []
    n = 1024 if args.small else 8192
    a, b = (torch.randn(n, n, device=args.device, dtype=torch.bfloat16) for _ in range(2))
    rows.append(row("gemm bf16", f"{n} x {n} x {n}", measure(lambda: a @ b, args.device, args.rounds, batch_s),
                    2 * n**3))
    for count, height, width in SMALL if args.small else FULL:
        matrices = [torch.randn(height, width, device=args.device) for _ in range(count)]

        def work(matrices=matrices):
            for m in matrices:  # one after another, as torch.optim.Muon takes them
                iteration(m, JORDAN, 5, 1e-7)

        short, alpha = min(height, width), max(height, width) / min(height, width)
        rows.append(row("torch.optim.Muon", f"{count} x {height} x {width} bf16",
                        measure(work, args.device, args.rounds, batch_s),
                        count * (20 * alpha + 10) * short**3))
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    print(json.dumps({"suite": "newton_schulz", "device": f"{name}, torch {torch.__version__}", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
