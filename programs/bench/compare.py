#!/usr/bin/env python3
"""Times of sherd_bench beside PyTorch's, from the JSON files that gpu_check.sh leaves in a folder."""
import json
import sys
from pathlib import Path


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def rows(path):
    return read(path).get("rows", [])


def line(text, mine, theirs):
    print(f"figure: {text:<58}{mine['us']:>12.1f} us{theirs['us']:>12.1f} us{theirs['us'] / mine['us']:>8.2f}x")


def main():
    folder = Path(sys.argv[1])
    print(f"figure: {'':<58}{'sherd':>15}{'PyTorch':>15}{'faster':>9}")
    # PyTorch's rows "attention [flash]" stand beside sherd's "attention".
    theirs = rows(folder / "torch_device.json")
    for r in rows(folder / "device.json"):
        for t in theirs:
            if t["shape"] == r["shape"] and t["name"].split(" [")[0] == r["name"]:
                line(f"{t['name']}, {r['shape']}", r, t)
    for note in read(folder / "torch_device.json").get("notes", []):
        print(f"figure: {note}")
    # Shapes alone: PyTorch's iteration works in bf16.
    theirs = {r["shape"].rsplit(" ", 1)[0]: r for r in rows(folder / "torch_newton_schulz.json")}
    for file, way in (("newton_schulz", ""), ("newton_schulz_hopper", " (hopper)")):
        for r in rows(folder / f"{file}.json"):
            shape = r["shape"].rsplit(" ", 1)[0]
            if shape in theirs and r["name"] in ("standard", "gram"):
                line(f"{r['name']}{way}, {r['shape']} (PyTorch: bf16)", r, theirs[shape])


if __name__ == "__main__":
    main()
