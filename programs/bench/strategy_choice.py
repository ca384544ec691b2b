#!/usr/bin/env python3
"""The choice of `--strategy auto` beside every strategy, layout and recomputation that fits: 12 cases of 1 to 4 ranks.

  strategy_choice.py --rounds 3

A case is a model with a batch, and a limit of memory as a part of what its fastest run takes. The hardware profile is measured first,
once for each number of ranks. Reported: the time of the choice, the step of the chosen run over that of the run that was fastest (medians of
rounds in which both run again), and the largest error of the planned peak. Nothing else should run on the machine.
"""
import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = ["--dim", "256", "--layers", "6", "--heads", "4"]
CASES = [  # ranks, part of the memory, flags
    (1, 1.0, [*SMALL, "--batch", "8"]),
    (1, 0.6, [*SMALL, "--batch", "16"]),
    (2, 1.0, [*SMALL, "--batch", "8"]),
    (2, 0.8, [*SMALL, "--batch", "16"]),
    (2, 0.6, [*SMALL, "--batch", "32", "--seq", "64"]),
    (2, 1.0, [*SMALL, "--batch", "8", "--optimizer", "muon"]),
    (2, 0.7, ["--dim", "128", "--layers", "12", "--heads", "4", "--batch", "32", "--precision", "bf16"]),
    (4, 1.0, [*SMALL, "--batch", "8"]),
    (4, 0.85, [*SMALL, "--batch", "16", "--optimizer", "muon"]),
    (4, 0.6, [*SMALL, "--batch", "32"]),
    (4, 0.8, [*SMALL, "--batch", "16", "--grad-accum", "2"]),
    (4, 0.7, [*SMALL, "--batch", "16", "--replicas", "2"]),
]
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]


class Machine:
    def __init__(self, build, folder):
        self.build, self.folder, self.profiles = build, folder, {}

    def command(self, program, *words):
        return subprocess.run([self.build / "bin" / program, *map(str, words)], capture_output=True, text=True)

    def profile(self, ranks):
        if ranks not in self.profiles:
            self.profiles[ranks] = f"{self.folder}/profile{ranks}"
            self.command("sherd", "plan", "--measure", self.profiles[ranks], "--ranks", ranks, "--threads", 1).check_returncode()
        return self.profiles[ranks]

    def run(self, flags, steps):
        """Milliseconds of a step, and its peak bytes over the planned ones; None where the run does not fit."""
        metrics = f"{self.folder}/metrics"
        done = self.command("train_gpt", *flags, "--threads", 1, "--steps", steps, "--metrics", metrics, "--measure-peak", "false")
        if done.returncode == 1 and "memory" in done.stderr:
            return None
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, done.args))}\n{done.stderr}")
        rows = [json.loads(line) for line in Path(metrics).read_text().splitlines() if line.startswith('{"step"')]
        return min(r["step_ms"] for r in rows[1:]), rows[-1]["peak_bytes"], rows[-1]["planned_peak_bytes"]


def candidates(ranks, flags):
    muon = "muon" in flags
    # Strategies with other bits are not chosen.
    strategies = STRATEGIES[:1] if ranks == 1 else STRATEGIES[2:] if "--grad-accum" in flags else STRATEGIES
    for strategy, recompute in itertools.product(strategies, ["none", "blocks"]):
        for layout in ["ragged", "whole_param"] if muon and strategy != "no_shard" else ["ragged"]:
            for prefetch in ["0", "1", "2"] if strategy == STRATEGIES[3] else ["1"]:
                yield ["--strategy", strategy, "--layout", layout, "--recompute", recompute, "--prefetch", prefetch]


def measure(machine, ranks, part, flags, rounds, steps):
    flags = ["--ranks", ranks, *flags]
    auto = ["--strategy", "auto", "--hardware", machine.profile(ranks)]
    if part < 1:
        peak = machine.run([*flags, *auto], 3)[1]
        flags += ["--memory-limit", f"{int(part * peak / 2**20) + 1}M"]
    begin = time.monotonic()
    answer = machine.command("train_gpt", *flags, *auto, "--threads", 1, "--steps", 1, "--plan", "false")
    seconds = time.monotonic() - begin
    if answer.returncode != 0:
        return f"| {ranks} | {' '.join(map(str, flags[2:]))} | {seconds:.1f} | {answer.stderr.strip().splitlines()[0]} ||||"
    chosen = re.search(r"^strategy: (.*), the fastest that fits", answer.stdout, re.M)[1]
    runs = {" ".join(c): c for c in candidates(ranks, flags)}
    runs["chosen"] = chosen.split()
    first = {name: machine.run([*flags, *words], steps) for name, words in runs.items()}
    if first["chosen"] is None:
        return f"| {ranks} | `{' '.join(map(str, flags[2:]))}` | {seconds:.1f} | `{chosen}` does not fit ||||"
    best = min((name for name in runs if first[name] is not None), key=lambda name: first[name][0])
    # The least of many noisy times is too small: both run again, side by side.
    pairs = [[machine.run([*flags, *runs[name]], steps) for name in ("chosen", best)] for _ in range(rounds)]
    ratio = 1 if best == "chosen" else statistics.median(a[0] / b[0] for a, b in pairs)
    error = max(abs(a[1] / a[2] - 1) for a, _ in pairs)
    fits = sum(t is not None for t in first.values()) - 1
    best = "=" if best == "chosen" else f"`{best}`"
    return (f"| {ranks} | `{' '.join(map(str, flags[2:]))}` | {seconds:.1f} | `{chosen}` | {best} of {fits} | "
            f"{ratio:.3f} | {100 * error:.2f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cases", type=int, nargs="+", help="numbers from 1; default: all")
    args = parser.parse_args()
    print("| ranks | run | choice s | chosen | best | chosen/best | error of the peak |\n" + "|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(args.build, folder)
        for number in args.cases or range(1, len(CASES) + 1):
            print(measure(machine, *CASES[number - 1], args.rounds, args.steps), flush=True)


if __name__ == "__main__":
    main()
