#!/usr/bin/env python3
"""Steps of Muon beside those of AdamW, on a DeepSeek-V3 with small dimensions and the structure kept: latent attention, a dense
first layer, routed and shared experts.

Every round trains a few steps under each strategy with AdamW, then with Muon; nothing else should run on the machine. Printed are
medians over rounds of the step, the optimizer's part of it, the highest peak of a rank's memory and the bytes that rank 0 receives in
a step. With --plan also what `sherd plan` says of proxies of 1 and 8 billion parameters on H100s.

  muon_beside_adamw.py --build build/release [--rounds 3] [--precision bf16] [--plan]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

COMMON = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu", "attention_bias": False,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "max_position_embeddings": 4096, "initializer_range": 0.02}
# hidden, layers, dense and expert's width, experts, of a token, groups, used groups, heads, ranks of q and kv, widths of a head, vocabulary
KEYS = ("hidden_size", "num_hidden_layers", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok",
        "n_group", "topk_group", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "vocab_size")
HERE = (256, 4, 768, 96, 16, 4, 4, 2, 4, 96, 64, 32, 16, 32, 4096)
PROXIES = {"1B": (1024, 17, 4096, 256, 64, 8, 8, 4, 16, 512, 256, 64, 32, 64, 32768),
           "8B": (2048, 27, 8192, 704, 64, 8, 8, 4, 16, 1024, 512, 128, 64, 128, 32768)}
STRATEGIES = ("zero1", "zero2", "zero3")
OPTIMIZERS = ("adamw", "muon")


def folder_of(shape, parent, name):
    folder = Path(parent) / name
    folder.mkdir()
    config = dict(COMMON, **dict(zip(KEYS, shape)))
    config["num_key_value_heads"] = config["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(args, folder, tokens, strategy, optimizer):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    working = ["--muon-working", args.precision] if optimizer == "muon" else []
    run([args.build / "bin/train_gpt", "--model", folder, "--from-scratch", "--tokens", tokens, "--token-format", "u16",
         "--ranks", args.ranks, "--threads", 1, "--strategy", strategy, "--optimizer", optimizer, *working, "--seq", args.seq,
         "--batch", args.tokens // args.seq, "--steps", args.steps, "--precision", args.precision, "--metrics", metrics, "--quiet",
         "--measure-peak", "false", "--plan", "false"])
    steps = [json.loads(line) for line in metrics.read_text().splitlines()][args.warmup:]
    median = lambda key: statistics.median(s[key] for s in steps)
    return {"step": median("step_ms"), "optimizer": median("optim_ms"), "peak": steps[-1]["peak_bytes"],
            "bytes": sum(c["bytes"] for c in steps[-1]["comm"].values())}


def measure(args, parent):
    folder = folder_of(HERE, parent, "here")
    tokens = Path(parent) / "tokens"
    state, words = 1, bytearray()
    for _ in range(4 * args.tokens):
        state = (1103515245 * state + 12345) % 2**31
        words += (state // 65536 % HERE[-1]).to_bytes(2, "little")
    tokens.write_bytes(words)
    found = {}
    for _ in range(args.rounds):
        for strategy in STRATEGIES:
            for optimizer in OPTIMIZERS:
                found.setdefault((strategy, optimizer), []).append(train(args, folder, tokens, strategy, optimizer))
    print(f"{args.ranks} ranks of one thread, {args.tokens} tokens a step, {args.precision}, medians of {args.rounds} rounds\n")
    print("| strategy | optimizer | step ms | optimizer ms | beside AdamW | peak MiB | beside AdamW | received MB |\n" + "|---" * 8 + "|")
    for strategy in STRATEGIES:
        middle = {o: {k: statistics.median(f[k] for f in found[strategy, o]) for k in found[strategy, o][0]} for o in OPTIMIZERS}
        for o in OPTIMIZERS:
            m, a = middle[o], middle["adamw"]
            print(f"| {strategy} | {o} | {m['step']:,.0f} | {m['optimizer']:.0f} | {m['step'] / a['step']:.3f} | {m['peak'] / 2**20:.1f} | "
                  f"{m['peak'] / a['peak']:.3f} | {m['bytes'] / 1e6:.1f} |")


def plans(args, parent):
    print("\n| proxy | H100s | AdamW ms | Muon ms | beside AdamW | peak GiB, AdamW and Muon | ratio |\n" + "|---" * 7 + "|")
    for name, shape in PROXIES.items():
        folder = folder_of(shape, parent, name)
        for world in (8, 64, 256):
            p = [json.loads(run([args.build / "bin/sherd", "plan", "--json", "--model", folder, "--hardware", "h100", "--world", world,
                                 "--seq", 4096, "--batch", 2 * world, "--strategy", "zero3", "--optimizer", o, "--recompute", "blocks",
                                 *(["--muon-working", "bf16"] if o == "muon" else [])]))
                 for o in OPTIMIZERS]
            times, peaks = [x["step_ms"]["total"] for x in p], [x["ranks"][0]["peak_bytes"] / 2**30 for x in p]
            print(f"| {name} | {world} | {times[0]:,.1f} | {times[1]:,.1f} | {times[1] / times[0]:.3f} | {peaks[0]:.1f}, {peaks[1]:.1f} | "
                  f"{peaks[1] / peaks[0]:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16384, help="of a step, of all ranks")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2, help="first steps of each run that are not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plan", action="store_true", help="print the plans, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        if args.rounds:
            measure(args, parent)
        if args.plan:
            plans(args, parent)


main()
