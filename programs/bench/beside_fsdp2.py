#!/usr/bin/env python3
"""One model of libtorch's operations trained by libtorch_gpt and by PyTorch's FSDP2 and DDP, side by side in one run on CPUs.

The kernels, the model, the first weights, the tokens, the batch and the threads of a rank are the same, so a ratio of speeds
is that of the runtimes. Every round trains a few steps with each way, one after the other, and begins with another of them;
nothing else should run on the machine. Nothing is reported when the losses of the first steps differ.

  zero3, zero0           libtorch_gpt (samples/07_libtorch_gpt), ranks as threads of one process
  zero3-mpi, zero0-mpi   libtorch_gpt, ranks as processes of mpirun
  fsdp2                  torch's fully_shard on each block and on the root, gloo, one process for each rank
  ddp                    torch's DistributedDataParallel, gloo, gradients as views of its buckets

Speed: tokens of a step over the median time of the steps behind --warmup. A step is all that repeats: batch, forward, backward,
clipping, AdamW (PyTorch's: fused), and the loss summed over ranks and read.

Memory: the most that each process ever had resident (VmHWM), added up over all processes of the way, less what several of them
share and the sum has twice: the difference of Rss and Pss, of all of them, when it was last looked at. So libraries and
interpreters count once, mpirun as well. The look, once a second, is the same for all ways.

Collectives: calls of one rank in one step, and bytes that it receives from others in them, by the same formula for all: an
all-gather or reduce-scatter (n-1)/n of the whole, an all-reduce twice that. libtorch_gpt tells its own; PyTorch's are those that
its dispatcher sees in a step of the warm-up.

Needs torch and numpy, in a Python whose torch is the one that libtorch_gpt was built with:
  beside_fsdp2.py --libtorch-gpt build/release/bin/libtorch_gpt [--rounds 5] [--out figures.json]
  beside_fsdp2.py --smoke       # small, one round: that all of it works
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

VOCABULARY = 256
SHAPE = ("dim", "layers", "heads", "seq")
LOSSES = 1e-5  # how far those of the first steps may be apart
COMPARED = 4


# ---- what is expected ----------------------------------------------------------------------------------------


def parameters(args):
    """Of a block, and of all that is in none."""
    d = args.dim
    return 12 * d * d + 2 * d, VOCABULARY * d + args.seq * d + d + VOCABULARY * d


def flops_of_step(args):
    """Of forward and backward, in matrix products; attention's are causal. The head counts, the embedding does not."""
    d = args.dim
    return 6 * args.batch * args.seq * (args.layers * (12 * d * d + d * args.seq) + d * VOCABULARY)


def expected_bytes(args, way):
    """Received by a rank in a step: weights twice under zero3, the root's once; gradients once. Padding is left out."""
    block, root = parameters(args)
    size = 4 * (args.ranks - 1) / args.ranks
    if way.startswith("zero3") or way == "fsdp2":
        return size * (3 * args.layers * block + 2 * root)
    return size * 2 * (args.layers * block + root)


# ---- memory of a way's processes -----------------------------------------------------------------------------


def kilobytes(path, names):
    found = {}
    for line in Path(path).read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in names:
            found[name] = int(rest.split()[0]) * 1024
    return found


def below(process):
    """The process and all that come from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass  # it has ended
    found = [process]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found


class MemoryWatch(threading.Thread):
    """Looks at some processes, and at those that come from them, until close()."""

    def __init__(self, processes, period):
        super().__init__(daemon=True)
        self.processes, self.period = processes, period
        self.peaks, self.shared, self.most = {}, 0, 0
        self.closed = threading.Event()
        self.start()

    def run(self):
        while not self.closed.wait(self.period):
            rss = pss = seen = 0
            for p in {p for top in self.processes for p in below(top)}:
                try:
                    peak = kilobytes(f"/proc/{p}/status", {"VmHWM"})["VmHWM"]
                    now = kilobytes(f"/proc/{p}/smaps_rollup", {"Rss", "Pss"})
                    rss, pss, seen = rss + now["Rss"], pss + now["Pss"], seen + 1
                    self.peaks[p] = peak
                except (OSError, KeyError):
                    pass  # it is ending
            if seen and seen >= self.most:  # not when some have ended already
                self.shared, self.most = rss - pss, seen

    def close(self):
        self.closed.set()
        self.join()
        return sum(self.peaks.values()) - self.shared


# ---- the ways ------------------------------------------------------------------------------------------------


def training_flags(args):
    return [flag for name in (*SHAPE, "batch", "steps", "threads", "lr") for flag in (f"--{name}", str(getattr(args, name)))]


def run_sherd(args, way, inputs):
    metrics = Path(tempfile.mkdtemp(dir=inputs)) / "metrics.jsonl"
    strategy, _, comm = way.partition("-")
    command = [args.libtorch_gpt, "--data", inputs / "data", "--init-weights", inputs / "init.safetensors", "--strategy", strategy,
               "--comm", comm or "local", "--ranks", args.ranks, "--quiet", "--metrics", metrics, *training_flags(args), *args.sherd]
    if comm == "mpi":
        command = [*shlex.split(args.mpirun), "-n", args.ranks, *command]
    process = subprocess.Popen([str(c) for c in command])
    watch = MemoryWatch([process.pid], args.period)
    status = process.wait()
    peak = watch.close()
    if status != 0:
        sys.exit(f"{way} ended with {status}")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [s for s in steps if "loss" in s]
    comms = [{name: [c["calls"], c["bytes"]] for name, c in s["comm"].items() if c["calls"]} for s in steps]
    return {"times": [s["step_ms"] / 1e3 for s in steps], "losses": [s["loss"] for s in steps], "comm": comms[args.warmup - 1],
            "peak": peak}


def run_torch(args, way, inputs):
    out = Path(tempfile.mkdtemp(dir=inputs))
    children = []
    for rank in range(args.ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.ranks), OMP_NUM_THREADS=str(args.threads))
        children.append(subprocess.Popen(
            [sys.executable, __file__, "--worker", way, "--inputs", str(inputs), "--meet", str(out / "meet"), "--out",
             str(out / f"{rank}.json"), "--warmup", str(args.warmup), *training_flags(args)], env=env))
    watch = MemoryWatch([child.pid for child in children], args.period)
    statuses = [child.wait() for child in children]
    peak = watch.close()
    if any(statuses):
        sys.exit(f"{way} ended with {statuses}")
    return dict(json.loads((out / "0.json").read_text()), peak=peak)


def run(args, way, inputs):
    result = (run_sherd if way.startswith("zero") else run_torch)(args, way, inputs)
    result["tokens_per_s"] = args.batch * args.seq / statistics.median(result["times"][args.warmup:])
    return result


# ---- the model and its training in Python --------------------------------------------------------------------


def build_model(args, path):
    """samples/07_libtorch_gpt/gpt.h, name for name and formula for formula, with the weights of a safetensors file."""
    import numpy
    import torch
    from torch import nn
    from torch.nn import functional

    class RmsNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            return torch.rms_norm(x, self.weight.shape, self.weight, 1e-6)

    class Block(nn.Module):
        def __init__(self, d, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = RmsNorm(d), RmsNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            self.fc, self.out = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            mid = x + self.proj(attended.transpose(1, 2).reshape(b, t, d))
            return mid + self.out(functional.gelu(self.fc(self.norm2(mid)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(VOCABULARY, args.dim), nn.Embedding(args.seq, args.dim)
            self.blocks = nn.ModuleList(Block(args.dim, args.heads) for _ in range(args.layers))
            self.norm, self.head = RmsNorm(args.dim), nn.Linear(args.dim, VOCABULARY, bias=False)

        def forward(self, tokens):
            x = self.tok(tokens) + self.pos.weight[:tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    with torch.device("meta"):
        model = Gpt()
    with open(path, "rb") as file:
        head = int.from_bytes(file.read(8), "little")
        described = json.loads(file.read(head))
    tensors = {}
    for name, t in described.items():
        if name != "__metadata__":
            assert t["dtype"] == "F32", (name, t)
            begin, end = t["data_offsets"]
            values = numpy.fromfile(path, numpy.float32, (end - begin) // 4, offset=8 + head + begin)
            tensors[name] = torch.from_numpy(values).view(t["shape"])
    model.load_state_dict(tensors, assign=True)
    return model


def data_parallel(way, model):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if way == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def counting():
    """A context that counts collectives, by the names that libtorch_gpt has for them."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.comm = {}

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if any(issubclass(t, DTensor) for t in types):
                return NotImplemented  # it comes again, as the operations that this is made of
            if function.namespace in ("c10d", "_c10d_functional"):
                self.count(function, args)
            return function(*args, **(kwargs or {}))

        def count(self, function, args):
            # allreduce_, all_reduce; _allgather_base_, all_gather_into_tensor; _reduce_scatter_base_, ...
            op = function._schema.name.split("::")[1].replace("_", "")
            kinds = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
            kind = next((k for k in kinds if op.startswith(k.replace("_", ""))), None)
            if kind is None:
                return  # waits and barriers
            n = torch.distributed.get_world_size()
            # The unsharded buffer is the largest of the operands: the output of an all-gather, the input of a
            # reduce-scatter.
            whole = max(self.bytes_of(a) for a in args)
            if function.namespace == "_c10d_functional" and kind == "all_gather":
                whole *= n  # its result is not among them
            calls, size = self.comm.get(kind, (0, 0))
            self.comm[kind] = (calls + 1, size + whole * (n - 1) * (2 if kind == "all_reduce" else 1) // n)

        def bytes_of(self, value):
            if isinstance(value, torch.Tensor):
                return value.numel() * value.element_size()
            return sum(self.bytes_of(v) for v in value) if isinstance(value, (list, tuple)) else 0

    return Counting()


def worker(args):
    import contextlib

    import numpy
    import torch
    import torch.distributed as dist

    torch.set_num_threads(args.threads)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{args.meet}", rank=rank, world_size=world)
    inputs = Path(args.inputs)
    model = build_model(args, inputs / "init.safetensors")
    step_model = data_parallel(args.worker, model)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    data = numpy.memmap(inputs / "data", dtype=numpy.uint8, mode="r")
    windows = (len(data) - 1) // args.seq
    windows -= windows // 50  # held out
    micro = args.batch // world
    times, losses, comm = [], [], {}
    for step in range(args.steps):
        counter = counting() if step + 1 == args.warmup else None
        dist.barrier()
        begin = time.perf_counter()
        with counter or contextlib.nullcontext():
            first = step * args.batch + rank * micro
            numbers = [(n * 2654435761 % 2**64) % windows for n in range(first, first + micro)]
            rows = numpy.stack([data[w * args.seq:w * args.seq + args.seq + 1] for w in numbers]).astype(numpy.int64)
            tokens = torch.from_numpy(rows)
            logits = step_model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
            (loss / (micro * args.seq)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            total = loss.detach().double()
            dist.all_reduce(total)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total.item() / (args.batch * args.seq))
        times.append(time.perf_counter() - begin)
        if counter:
            comm = counter.comm
    dist.barrier()
    Path(args.out).write_text(json.dumps({"times": times, "losses": losses, "comm": comm, "torch": torch.__version__}))
    dist.destroy_process_group()


# ---- side by side --------------------------------------------------------------------------------------------


def make_inputs(args, folder):
    """First weights by libtorch_gpt, and text that can be learnt: each byte is a small step from the one before."""
    import random

    draw = random.Random(1)
    text, byte = bytearray(), 0
    for _ in range(1 << 20):
        byte = (byte + draw.choice((1, 1, 1, 2, 5))) % 96
        text.append(32 + byte)
    (folder / "data").write_bytes(text)
    shape = [flag for name in SHAPE for flag in (f"--{name}", str(getattr(args, name)))]
    subprocess.run([args.libtorch_gpt, "--steps", "0", "--quiet", "--export-weights", folder / "init.safetensors", *shape], check=True)


def require_same_losses(rounds):
    expected = None
    for way, runs in rounds.items():
        for r in runs:
            expected = expected or (way, r["losses"])
            apart = max(abs(a - b) for a, b in zip(expected[1][:COMPARED], r["losses"][:COMPARED]))
            if not apart <= LOSSES:
                sys.exit(f"losses of the first steps differ by {apart}: {way} {r['losses'][:COMPARED]}, {expected[0]} "
                         f"{expected[1][:COMPARED]}; what is trained is not the same, so nothing is reported")


def report(args, rounds):
    figures = {"shape": {name: getattr(args, name) for name in (*SHAPE, "batch", "ranks", "threads")}, "ways": {}}
    python = [way for way in rounds if not way.startswith("zero")]
    # Each round's ratio, and of those the median: what slows the machine down for a while slows both.
    fastest = [max(rounds[way][i]["tokens_per_s"] for way in python) for i in range(args.rounds)] if python else None
    print(f"\n{'':<10} {'tokens/s':>9} {'beside the faster':>18} {'MiB':>7} {'beside FSDP2':>13}   collectives of a step: calls, MB received")
    for way, runs in rounds.items():
        f = {"tokens_per_s": statistics.median(r["tokens_per_s"] for r in runs), "peak": statistics.median(r["peak"] for r in runs),
             "comm": runs[0]["comm"]}
        speed = memory = ""
        if fastest:
            f["speed_ratios"] = [r["tokens_per_s"] / best for r, best in zip(runs, fastest)]
            speed = f"{statistics.median(f['speed_ratios']):.3f}"
        if "fsdp2" in rounds:
            f["memory_ratios"] = [r["peak"] / other["peak"] for r, other in zip(runs, rounds["fsdp2"])]
            memory = f"{statistics.median(f['memory_ratios']):.3f}"
        calls = ", ".join(f"{name} {count} ({size / 1e6:.1f})" for name, (count, size) in sorted(f["comm"].items()))
        print(f"{way:<10} {f['tokens_per_s']:9.0f} {speed:>18} {f['peak'] / 2**20:7.0f} {memory:>13}   {calls}")
        figures["ways"][way] = f
    return figures


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libtorch-gpt", default="build/release/bin/libtorch_gpt")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none", help="with its flags")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, of all ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3, help="first steps of each run that are not counted")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", help="of those above; without it all, and mpirun's where it is there and libtorch_gpt built with MPI")
    parser.add_argument("--smoke", action="store_true", help="a small model, one round")
    parser.add_argument("--out")
    parser.add_argument("--sherd", nargs=argparse.REMAINDER, default=[], help="further flags of libtorch_gpt; the last")
    for hidden in ("--worker", "--inputs", "--meet"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.period = 1.0
    if args.smoke:
        args.dim, args.layers, args.heads, args.seq, args.batch = 64, 2, 4, 64, 4 * args.ranks
        args.steps, args.warmup, args.rounds, args.period = 6, 3, 1, 0.1
    if args.warmup < 3 or args.steps < max(COMPARED, args.warmup + 1):
        parser.error("--warmup must be 3 or more (DDP makes its buckets anew behind the first step), --steps more")
    if args.batch % args.ranks:
        parser.error("--batch is not a multiple of --ranks")
    return args


def main():
    args = parse()
    if args.worker:
        return worker(args)
    version = subprocess.run([args.libtorch_gpt, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with_mpi = "MPI ON" in version and shutil.which(shlex.split(args.mpirun)[0])
    ways = args.ways.split(",") if args.ways else ["zero3", "zero0", *(["zero3-mpi", "zero0-mpi"] if with_mpi else []), "fsdp2", "ddp"]
    block, root = parameters(args)
    print(f"{version}\n{args.layers * block + root:,} parameters, {args.ranks} ranks of {args.threads} threads, "
          f"{args.batch} sequences of {args.seq}; expected: {flops_of_step(args) / 1e9:.0f} GFLOP a step, a rank receives "
          + ", ".join(f"{expected_bytes(args, way) / 1e6:.1f} MB ({way})" for way in ways), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_inputs(args, folder)
        rounds = {way: [] for way in ways}
        for number in range(args.rounds):
            first = number % len(ways)
            for way in ways[first:] + ways[:first]:
                result = run(args, way, folder)
                rounds[way].append(result)
                print(f"round {number + 1}: {way:<9} {result['tokens_per_s']:8.0f} tokens/s, {result['peak'] / 2**20:6.0f} MiB, "
                      f"losses {result['losses'][0]:.6f} to {result['losses'][-1]:.6f}"
                      + (f", torch {result['torch']}" if "torch" in result and number == 0 else ""), flush=True)
            require_same_losses(rounds)
    figures = report(args, rounds)
    if args.out:
        Path(args.out).write_text(json.dumps(dict(figures, version=version, rounds=rounds), indent=1))


if __name__ == "__main__":
    main()
