#!/usr/bin/env python3
"""Step of `--context C` beside C data-parallel ranks, at equal tokens a step: medians of rounds side by side.

  context_step.py --seq 256 1024 --contexts 2 --rounds 5

The byte GPT of 11 million parameters, sharded (zero3); ranks are threads of one process. Nothing else should run on the machine.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

MODEL = ["--dim", 384, "--layers", 6, "--heads", 6, "--strategy", "zero3"]


def step_ms(build, ranks, context, seq, batch, extra, metrics):
    command = [build / "bin/train_gpt", *MODEL, "--ranks", ranks, "--context", context, "--threads", 1, "--seq", seq, "--batch", batch,
               "--steps", 6, "--metrics", metrics, "--quiet", "--plan", "false", "--measure-peak", "false", *extra]
    subprocess.run([str(c) for c in command], check=True, capture_output=True)
    steps = [json.loads(line) for line in Path(metrics).read_text().splitlines() if line.startswith('{"step"')]
    return statistics.median(s["step_ms"] for s in steps[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--seq", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--contexts", type=int, nargs="+", default=[2])
    parser.add_argument("--tokens", type=int, default=4096, help="of a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    args = parser.parse_args()
    print("| tokens of a sequence | precision | ranks | data-parallel ms | context-parallel ms | ratio |\n" + "|---" * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for seq in args.seq:
            for precision in args.precisions:
                for ranks in args.contexts:
                    pairs = [[step_ms(args.build, ranks, c, seq, args.tokens // seq, ["--precision", precision], f"{folder}/metrics")
                              for c in (1, ranks)] for _ in range(args.rounds)]
                    data, context = (statistics.median(p[i] for p in pairs) for i in range(2))
                    ratio = statistics.median(b / a for a, b in pairs)
                    print(f"| {seq} | {precision} | {ranks} | {data:,.0f} | {context:,.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
