#!/usr/bin/env python3
"""Times of sherd_bench beside PyTorch's, from the JSON files that gpu_check.sh leaves in a folder."""
import json
import sys
from pathlib import Path


def rows(path):
    return json.loads(path.read_text())["rows"] if path.exists() else []


def line(text, mine, theirs):
    print(f"figure: {text:<58}{mine['us']:>12.1f} us{theirs['us']:>12.1f} us{theirs['us'] / mine['us']:>8.2f}x")


def main():
    folder = Path(sys.argv[1])
    print(f"figure: {'':<58}{'sherd':>15}{'PyTorch':>15}{'faster':>9}")
    theirs = {(r["name"], r["shape"]): r for r in rows(folder / "torch_device.json")}
    for r in rows(folder / "device.json"):
        if (r["name"], r["shape"]) in theirs:
            line(f"{r['name']}, {r['shape']}", r, theirs[r["name"], r["shape"]])
    # Shapes alone: PyTorch's iteration works in bf16.
    theirs = {r["shape"].rsplit(" ", 1)[0]: r for r in rows(folder / "torch_newton_schulz.json")}
    for r in rows(folder / "newton_schulz.json"):
        shape = r["shape"].rsplit(" ", 1)[0]
        if shape in theirs and r["name"] in ("standard", "gram"):
            line(f"newton_schulz {r['name']}, {r['shape']} (PyTorch: bf16)", r, theirs[shape])


if __name__ == "__main__":
    main()
