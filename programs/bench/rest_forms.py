#!/usr/bin/env python3
"""Weights and optimizer state in 16 and 8 bits (--master, --state-dtype) beside fp32: time, bytes and quality.

  rest_forms.py speed    optimizer phase and step of each form, side by side: each round runs all forms, medians over rounds
  rest_forms.py offload  step and optimizer phase with state and masters in a file, beside a run without, 8 microbatches a step
  rest_forms.py torchao  optimizer phase of AdamW with state in 8 bits beside torchao's AdamW8bit, and fp32 beside torch.optim.AdamW, on
                         the llama's parameters in fp32; --python names one with torch and torchao, which compiles for a minute
  rest_forms.py largest  billions of parameters of the largest llama of width 128 n and n layers that fits a GPU, and the predicted
                         update of n = 32 on an H200, by sherd plan: one rank, sequences of 4096, recomputed blocks
  rest_forms.py quality  held-out loss after --steps steps of each form and seed; a run that is in --folder is not repeated

Both train on the sources of Python's standard library: the byte GPT on bytes, a llama of 42.5 million parameters on words, numbered by
frequency. Nothing else should run on the machine.
"""

import argparse
import collections
import functools
import json
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

FORMS = (("f32", "fp32"), ("bf16", "fp32"), ("split", "fp32"), ("fp32", "bf16"), ("bf16", "bf16"), ("fp32", "i8"), ("bf16", "i8"))
VOCABULARY = 16384
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536,
         "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": VOCABULARY,
         "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "hidden_act": "silu", "initializer_range": 0.02, "attention_bias": False, "mlp_bias": False}
# Flags of each model; learning rates of AdamW and Muon.
MODELS = {"byte GPT": (["--dim", 128, "--layers", 4, "--heads", 4, "--seq", 128, "--batch", 8], {"adamw": 2e-3, "muon": 1e-2}),
          "llama": (["--seq", 128, "--batch", 4], {"adamw": 5e-4, "muon": 5e-3})}


def prepare(folder):
    """Makes text, tokens and the llama's folder. Returns the flags of each model's data."""
    (folder / "llama").mkdir(parents=True, exist_ok=True)
    sources = sorted(p for p in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "\n".join(p.read_text(errors="ignore") for p in sources)[:8_000_000]
    (folder / "text").write_text(text)
    (folder / "llama/config.json").write_text(json.dumps(LLAMA))
    words = re.findall(r"\w+|[^\w\s]|\s+", text)
    ids = {w: i + 1 for i, (w, _) in enumerate(collections.Counter(words).most_common(VOCABULARY - 1))}
    (folder / "tokens").write_bytes(b"".join(ids.get(w, 0).to_bytes(2, "little") for w in words))
    return {"byte GPT": ["--data", folder / "text"],
            "llama": ["--model", folder / "llama", "--from-scratch", "--tokens", folder / "tokens", "--token-format", "u16"]}


def train(args, data, model, optimizer, form, seed, steps, metrics, extra):
    flags, rates = MODELS[model]
    command = [args.build / "bin/train_gpt", *data[model], *flags, "--optimizer", optimizer, "--lr", rates[optimizer], "--precision", "bf16",
               "--master", form[0], "--state-dtype", form[1], "--seed", seed, "--steps", steps, "--ranks", args.ranks, "--threads",
               args.threads, "--metrics", metrics, "--quiet", "--plan", "false", "--measure-peak", "false", *extra]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return [json.loads(line) for line in Path(metrics).read_text().splitlines() if line.startswith('{"step"')]


def name_of(form):
    return f"master {form[0].replace('fp32', 'f32')}, state {form[1].replace('fp32', 'f32')}"


def speed(args, folder):
    data = prepare(folder)
    for model in args.models:
        for optimizer in args.optimizers:
            found = collections.defaultdict(list)
            for _ in range(args.rounds):
                for form in FORMS:
                    steps = train(args, data, model, optimizer, form, 0, 8, folder / "metrics", [])[3:]
                    found[form].append([statistics.median(s[k] for s in steps) for k in ("optim_ms", "step_ms", "peak_bytes")])
            print(f"\n{model}, {optimizer}, {args.ranks} ranks of {args.threads} threads, medians of {args.rounds} rounds\n\n"
                  "| form | optimizer ms | beside fp32 | step ms | beside fp32 | peak MiB |\n" + "|---" * 6 + "|")
            ratio = lambda form, i: statistics.median(a[i] / b[i] for a, b in zip(found[form], found[FORMS[0]]))
            for form in FORMS:
                optim, step, peak = (statistics.median(f[i] for f in found[form]) for i in range(3))
                print(f"| {name_of(form)} | {optim:.1f} | {ratio(form, 0):.3f} | {step:,.0f} | {ratio(form, 1):.3f} | {peak / 2**20:,.0f} |",
                      flush=True)


def offload(args, folder):
    data = prepare(folder)
    ways = {"resident": [], "in a file": ["--offload", "state,master", "--offload-folder", folder]}
    for model in args.models:
        for optimizer in args.optimizers:
            found = collections.defaultdict(list)
            for _ in range(args.rounds):
                for way, flags in ways.items():
                    extra = ["--grad-accum", 8, "--batch", 8 * (MODELS[model][0][-1]), *flags]
                    steps = train(args, data, model, optimizer, FORMS[0], 0, 5, folder / "metrics", extra)[2:]
                    found[way].append([statistics.median(s[k] for s in steps) for k in ("step_ms", "optim_ms", "peak_bytes")])
            ratio = statistics.median(b[0] / a[0] for a, b in zip(*found.values()))
            for way, rounds in found.items():
                step, optim, peak = (statistics.median(r[i] for r in rounds) for i in range(3))
                print(f"{model}, {optimizer}, {way}: step {step:,.0f} ms, optimizer {optim:,.0f} ms, peak {peak / 2**20:,.0f} MiB")
            print(f"step beside resident: {ratio:.3f}", flush=True)


# Run by --python: prints the milliseconds of a step of torch.optim.AdamW and torchao's AdamW8bit on the llama's shapes.
TORCHAO = """
import json, statistics, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from torchao.optim import AdamW8bit
c, threads = json.loads(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
h, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
shapes = [(v, h), (v, h), (h,)] + c["num_hidden_layers"] * ([(h, h)] * 4 + [(f, h)] * 2 + [(h, f), (h,), (h,)])
weights = [torch.randn(s).requires_grad_() for s in shapes]
for w in weights:
    w.grad = torch.randn_like(w)
for rule in (torch.optim.AdamW(weights, lr=1e-3), AdamW8bit(weights, lr=1e-3)):
    times = []
    for _ in range(8):
        start = time.perf_counter()
        rule.step()
        times.append(1e3 * (time.perf_counter() - start))
    print(statistics.median(times[3:]))
"""


def torchao(args, folder):
    data = prepare(folder)
    found = collections.defaultdict(list)
    for _ in range(args.rounds):
        for name, state in (("sherd, fp32 state", "fp32"), ("sherd, i8 state", "i8")):
            steps = train(args, data, "llama", "adamw", ("f32", state), 0, 8, folder / "metrics", ["--precision", "fp32"])[3:]
            found[name].append(statistics.median(s["optim_ms"] for s in steps))
        done = subprocess.run([args.python, "-c", TORCHAO, json.dumps(LLAMA), str(args.threads)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        for name, line in zip(("torch.optim.AdamW", "torchao AdamW8bit"), done.stdout.split()):
            found[name].append(float(line))
    for name, times in found.items():
        print(f"{name}: {statistics.median(times):.1f} ms", flush=True)


SHRINKS = {"fp32 masters and state": [], "bf16 weights": ["--master", "bf16"],
           "bf16 weights and state": ["--master", "bf16", "--state-dtype", "bf16"],
           "bf16 weights, state and gradients": ["--master", "bf16", "--state-dtype", "bf16", "--grad-dtype", "bf16"],
           "bf16 weights and gradients, i8 state": ["--master", "bf16", "--state-dtype", "i8", "--grad-dtype", "bf16"],
           "masters and state on the host": ["--offload", "state,master"],
           "the same, bf16 gradients": ["--offload", "state,master", "--grad-dtype", "bf16"]}
GPUS = (24, 80, 141, 180)  # GB, of which 1 is left to the driver


def largest(args, folder):
    def planned(n, flags):
        llama = folder / f"llama{n}"
        llama.mkdir(exist_ok=True)
        (llama / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": 128 * n, "intermediate_size": 344 * n // 64 * 64,
                                                       "num_hidden_layers": n, "num_attention_heads": n, "num_key_value_heads": n,
                                                       "vocab_size": 32768, "max_position_embeddings": 4096}))
        command = [args.build / "bin/sherd", "plan", "--model", llama, "--world", 1, "--hardware", "h200", "--seq", 4096, "--batch", 1,
                   "--precision", "bf16", "--recompute", "blocks", "--json", *flags]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
        plan = json.loads(done.stdout)
        return plan["parameters"], plan["ranks"][0]["peak_bytes"], plan["step_ms"]["optimizer"]

    for optimizer in args.optimizers:
        print(f"\n| {optimizer} |" + "".join(f" {gpu} GB |" for gpu in GPUS) + " update |\n" + "|---" * (len(GPUS) + 2) + "|")
        for name, flags in SHRINKS.items():
            plan, row = functools.cache(lambda n: planned(n, ["--optimizer", optimizer, *flags])), []
            for gpu in GPUS:
                fits, too_large = 4, 160
                while too_large - fits > 1:
                    n = (fits + too_large) // 2
                    fits, too_large = (n, too_large) if plan(n)[1] <= (gpu - 1) * 1e9 else (fits, n)
                row.append(f"{plan(fits)[0] / 1e9:.1f}")
            print(f"| {name} | " + " | ".join(row) + f" | {plan(32)[2]:.0f} ms |", flush=True)


def quality(args, folder):
    data = prepare(folder)
    for model in args.models:
        for optimizer in args.optimizers:
            print(f"\n{model}, {optimizer}, {args.steps} steps, seeds {args.seeds}\n\n| form |" +
                  "".join(f" seed {s} |" for s in args.seeds) + " mean | beside fp32 |\n" + "|---" * (len(args.seeds) + 3) + "|")
            base = None
            for form in [f for f in FORMS if name_of(f) in args.forms]:
                losses = []
                for seed in args.seeds:
                    metrics = folder / f"{model} {optimizer} {form[0]} {form[1]} {seed} {args.steps}.jsonl".replace(" ", "_")
                    done = folder / f"{metrics.name}.done"
                    if not done.exists():
                        steps = train(args, data, model, optimizer, form, seed, args.steps, metrics,
                                      ["--lr-schedule", "cosine", "--warmup", args.steps // 20, "--eval-every", args.steps,
                                       "--eval-windows", 128] + (["--batch", args.batch] if args.batch else []))
                        done.write_text(str(steps[-1]["eval_loss"]))
                    losses.append(float(done.read_text()))
                mean = statistics.mean(losses)
                base = base or mean
                print(f"| {name_of(form)} |" + "".join(f" {x:.4f} |" for x in losses) + f" {mean:.4f} | {100 * (mean / base - 1):+.2f} % |",
                      flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "offload", "torchao", "largest", "quality"))
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--folder", type=Path, help="keep data and results here")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--forms", nargs="+", default=[name_of(f) for f in FORMS], help="quality: of these, such as 'master f32, state f32'")
    parser.add_argument("--python", type=Path, default=Path("build/venv/bin/python"), help="torchao: a Python with torch and torchao")
    parser.add_argument("--batch", type=int, help="quality: another batch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        {"speed": speed, "offload": offload, "torchao": torchao, "largest": largest, "quality": quality}[args.what](args, args.folder or Path(temporary))


main()
