#!/usr/bin/env python3
"""One model folder trained by train_gpt and by transformers on PyTorch, side by side in one run on CPUs.

Every round trains a few steps with each way, one after the other, on the same tokens with the same model, batch and
threads; nothing else should run on the machine. Printed are medians over rounds of tokens per second and the largest
resident memory of all of a way's processes together, beside the rate of the model's own matrix products, measured in
the same run with as many threads: what no training can exceed.

  sherd         train_gpt, ranks as threads, zero3
  fsdp2         torch's fully_shard on each layer and on the root, gloo, one process for each rank
  ddp           torch's DistributedDataParallel around torch.compile, gloo

With --precision bf16, sherd gathers bf16 weights of f32 masters, fsdp2 does (MixedPrecisionPolicy), and ddp runs under
autocast; the products of the ceiling are bf16.

Needs torch, transformers and safetensors:
  beside_transformers.py --train-gpt build/release/bin/train_gpt [--folder DIR] [--rounds 5] [--out figures.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


# ---- what is trained -----------------------------------------------------------------------------------------


def make_folder(path):
    """A llama of 42.5 million parameters with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=16384, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=2048, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(path)


def make_tokens(path, vocabulary, count):
    import numpy

    numpy.random.default_rng(1).integers(0, vocabulary, count, dtype=numpy.uint16).tofile(path)


def flops_of_token(config, seq):
    """Of forward and backward, in matrix products; attention's are causal. The head counts, the embedding does not."""
    d, h = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or d // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = d * (q + 2 * kv) + q * d + 3 * d * h
    return 6 * (config["num_hidden_layers"] * (layer + q * seq) + d * config["vocab_size"])


def shapes_of(config, rows):
    """(m, n, k) of the products of a forward, with how often each comes."""
    d, h, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    return [(rows, d, d, 4 * layers), (rows, h, d, 2 * layers), (rows, d, h, layers), (rows, config["vocab_size"], d, 1)]


# ---- the ways ------------------------------------------------------------------------------------------------


def run_sherd(args, folder, tokens):
    metrics = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    command = [args.train_gpt, "--model", folder, "--tokens", tokens, "--token-format", "u16", "--order", "sequential",
               "--ranks", args.ranks, "--threads", args.threads, "--batch", args.batch * args.ranks, "--seq", args.seq,
               "--steps", args.steps, "--strategy", "zero3", "--lr", "1e-4", "--precision", args.precision, "--quiet", "--metrics", metrics, *args.sherd]
    before = time.time()
    process = subprocess.Popen([str(c) for c in command])
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"train_gpt ended with {status}")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [s for s in steps if "loss" in s]
    return {"tokens_per_s": statistics.median(s["tokens_per_s"] for s in steps[args.warmup:]),
            "rss": usage.ru_maxrss * 1024, "losses": [s["loss"] for s in steps], "seconds": time.time() - before}


def run_torch(args, way, folder, tokens):
    out = Path(tempfile.mkdtemp())
    port = 29500 + os.getpid() % 1000
    before = time.time()
    children = []
    for rank in range(args.ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), OMP_NUM_THREADS=str(args.threads))
        children.append(subprocess.Popen(
            [sys.executable, __file__, "--worker", way, "--folder", str(folder), "--tokens", str(tokens), "--out",
             str(out / f"{rank}.json"), "--steps", str(args.steps), "--batch", str(args.batch), "--seq", str(args.seq),
             "--warmup", str(args.warmup), "--threads", str(args.threads), "--precision", args.precision], env=env))
    peak = 0
    for child in children:
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            sys.exit(f"{way} ended with {status}")
        peak += usage.ru_maxrss * 1024
    results = [json.loads((out / f"{rank}.json").read_text()) for rank in range(args.ranks)]
    return {"tokens_per_s": results[0]["tokens_per_s"], "rss": peak, "losses": results[0]["losses"],
            "seconds": time.time() - before}


def worker(args):
    import numpy
    import torch
    import torch.distributed as dist
    from transformers import LlamaForCausalLM

    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.worker == "gemm":
        return gemm_worker(args, rank)
    model = LlamaForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    model.config.use_cache = False
    half = args.precision == "bf16"
    if args.worker == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (world,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        step_model = model
    else:
        from torch.nn.parallel import DistributedDataParallel

        step_model = torch.compile(DistributedDataParallel(model))
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    data = numpy.memmap(args.tokens, dtype=numpy.uint16, mode="r")
    windows = (len(data) - 1) // args.seq
    windows -= windows // 50
    times, losses = [], []
    for step in range(args.steps):
        first = step * args.batch * world + rank * args.batch
        rows = [data[w * args.seq:w * args.seq + args.seq + 1] for w in
                ((first + i) % windows for i in range(args.batch))]
        batch = torch.from_numpy(numpy.stack(rows).astype(numpy.int64))
        dist.barrier()
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=half and args.worker == "ddp"):
            logits = step_model(input_ids=batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        all_loss = loss.detach().clone()
        dist.all_reduce(all_loss)
        times.append(time.perf_counter() - begin)
        losses.append(all_loss.item() / world)
    tokens = args.batch * world * args.seq
    Path(args.out).write_text(json.dumps(
        {"tokens_per_s": tokens / statistics.median(times[args.warmup:]), "losses": losses}))
    # PyTorch 2.11 can hang at the exit of a process with a compiled DistributedDataParallel. The result is written.
    dist.barrier()
    os._exit(0)


def gemm_worker(args, rank):
    """The model's products, weighted as often as they come, on all ranks at once."""
    import torch
    import torch.distributed as dist

    config = json.loads((Path(args.folder) / "config.json").read_text())
    flops = seconds = 0.0
    for m, n, k, count in shapes_of(config, args.batch * args.seq):
        dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
        a, b = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
        a @ b.T
        best = []
        dist.barrier()
        for _ in range(5):
            begin = time.perf_counter()
            a @ b.T
            best.append(time.perf_counter() - begin)
        flops += 2.0 * m * n * k * count
        seconds += statistics.median(best) * count
    Path(args.out).write_text(json.dumps({"tokens_per_s": flops / seconds, "losses": []}))
    dist.destroy_process_group()


# ---- side by side --------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train-gpt", default="build/release/bin/train_gpt")
    parser.add_argument("--folder", help="a llama folder; without it one of 42.5 million parameters is made")
    parser.add_argument("--tokens", help="raw uint16 tokens; without it random ones are made")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--batch", type=int, default=2, help="sequences of each rank")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3, help="first steps of each run that are not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--ways", default="sherd,fsdp2,ddp")
    parser.add_argument("--sherd", nargs=argparse.REMAINDER, default=[], help="further flags of train_gpt; the last")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    scratch = Path(tempfile.mkdtemp())
    folder = Path(args.folder) if args.folder else scratch / "llama"
    if not args.folder:
        make_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    tokens = Path(args.tokens) if args.tokens else scratch / "tokens.u16"
    if not args.tokens:
        make_tokens(tokens, config["vocab_size"], 4_000_000)
    ways = args.ways.split(",")
    rounds = {way: [] for way in ways}
    ceilings = []
    for number in range(args.rounds):
        ceilings.append(run_torch(args, "gemm", folder, tokens)["tokens_per_s"] * args.ranks)
        for way in ways:
            result = run_sherd(args, folder, tokens) if way == "sherd" else run_torch(args, way, folder, tokens)
            rounds[way].append(result)
            print(f"round {number + 1}: {way:<6} {result['tokens_per_s']:8.0f} tokens/s, {result['rss'] / 2**20:7.0f} MiB, "
                  f"losses {result['losses'][0]:.4f} to {result['losses'][-1]:.4f}", flush=True)
    ceiling = statistics.median(ceilings)
    flops = flops_of_token(config, args.seq)
    print(f"\nproducts of the model: {ceiling / 1e9:.1f} GFLOP/s on {args.ranks} x {args.threads} threads; "
          f"{flops / 1e6:.1f} MFLOP a token: at most {ceiling / flops:.0f} tokens/s")
    figures = {"ceiling_flops_per_s": ceiling, "flops_per_token": flops}
    for way in ways:
        speed = statistics.median(r["tokens_per_s"] for r in rounds[way])
        rss = statistics.median(r["rss"] for r in rounds[way])
        figures[way] = {"tokens_per_s": speed, "rss": rss, "share_of_ceiling": speed * flops / ceiling}
        print(f"{way:<6} {speed:8.0f} tokens/s, {100 * speed * flops / ceiling:5.1f} % of the products, {rss / 2**20:7.0f} MiB")
    others = [figures[way] for way in ways if way != "sherd"]
    if "sherd" in figures and others:
        fastest, smallest = max(o["tokens_per_s"] for o in others), min(o["rss"] for o in others)
        print(f"sherd: {figures['sherd']['tokens_per_s'] / fastest:.2f} times the fastest of the others, "
              f"{figures['sherd']['rss'] / smallest:.2f} times the memory of the smallest")
    if args.out:
        Path(args.out).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
