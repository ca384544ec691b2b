#!/usr/bin/env python3
"""Greedy texts of one model by sherd_bench generate and by transformers.generate, side by side in one run on CPUs.

Each round runs both, batch by batch, on prompts of 32 tokens; printed are medians over rounds of tokens per second, prompts
included, and their ratio. Nothing else should run on the machine. Needs torch and transformers:

  generate_beside_transformers.py --bench build/release/bin/sherd_bench [--rounds 3] [--precision bf16]
"""

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from beside_transformers import make_folder


def transformers_rate(model, batch, prompt, tokens):
    ids = (torch.arange(prompt)[None] * 131 + 17 * torch.arange(batch)[:, None]) % model.config.vocab_size
    mask = torch.ones_like(ids)

    def seconds(count):
        start = time.perf_counter()
        model.generate(ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        return time.perf_counter() - start

    seconds(2)
    return batch * tokens / seconds(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default="build/release/bin/sherd_bench")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder))
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if args.precision == "bf16" else torch.float32).eval()
        rates = {"sherd": {b: [] for b in args.batches}, "transformers": {b: [] for b in args.batches}}
        for _ in range(args.rounds):
            out = subprocess.run([args.bench, "generate", "--model", folder, "--batches", ",".join(map(str, args.batches)), "--prompt",
                                  str(args.prompt), "--tokens", str(args.tokens), "--threads", str(args.threads), "--precision",
                                  args.precision], check=True, capture_output=True, text=True).stdout
            for batch, rate in re.findall(r"batch (\d+): ([\d.]+) tokens/s", out):
                rates["sherd"][int(batch)].append(float(rate))
            for batch in args.batches:
                rates["transformers"][batch].append(transformers_rate(model, batch, args.prompt, args.tokens))
    for batch in args.batches:
        ours, theirs = (statistics.median(rates[way][batch]) for way in ("sherd", "transformers"))
        print(f"batch {batch:2}: sherd {ours:7.1f} tokens/s, transformers {theirs:7.1f}, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
