#!/usr/bin/env python3
"""Regenerates adamw.json and muon.json beside this file; see README.md.

  make_golden.py build/release/bin/train_gpt     writes both from that program's initial weights
  make_golden.py --write-data FILE               writes the training text only
  make_golden.py --weights FILE --into FOLDER    trial run on given weights, e.g. of train_gpt_reference.py
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile

import torch

import train_gpt_reference as reference

# Keys are train_gpt's flags; "optimizer" is added for each run.
CONFIG = {
    "ranks": 1, "dim": 48, "layers": 2, "heads": 3, "seq": 32, "batch": 6, "steps": 10, "seed": 7,
    "lr": 5e-3, "lr-schedule": "constant", "warmup": 0, "weight-decay": 1.0, "grad-clip": 1.0,
    "precision": "fp32",
}
DATA_BYTES = 65536
WORDS = [
    "the", "of", "and", "to", "in", "is", "it", "that", "\n", "was", "for", "on", "are", "as", "with", "his",
    "they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were",
]


def golden_data():
    """Text-like bytes that any language can repeat. With x = 1 at the start and draw() =
    (x = (1664525 * x + 1013904223) mod 2^32) >> 27, write word number (draw() * draw()) >> 5, which is 0..30,
    then a space, until there are at least 65536 bytes; cut there."""
    text, x = bytearray(), 1
    while len(text) < DATA_BYTES:
        product = 1
        for _ in range(2):
            x = (1664525 * x + 1013904223) % 2**32
            product *= x >> 27
        text += WORDS[product >> 5].encode() + b" "
    return bytes(text[:DATA_BYTES])


def fnv1a64(data):
    """64-bit FNV-1a: three lines in any language, which is all that detecting a change needs."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def describe_weights(weights):
    """Name -> what a test needs to tell that initial weights are not (even roughly) the ones trained here."""
    return {
        name: {
            "shape": list(w.shape),
            "fnv1a64": fnv1a64(w.numpy().astype("<f4").tobytes()),
            "first": w.flatten()[:4].tolist(),
            "l2": w.double().norm().item(),
        }
        for name, w in weights.items()
    }


def export_weights(train_gpt, data, path):
    """The initial weights of sherd itself: what --seed means is the one thing the reference cannot know."""
    command = [train_gpt, "--data", data, "--export-weights", path, "--steps", "0", "--quiet"]
    for key in ("ranks", "dim", "layers", "heads", "seq", "batch", "seed"):
        command += ["--" + key, str(CONFIG[key])]
    if subprocess.run(command).returncode != 0:
        raise SystemExit("this did not write the initial weights: " + " ".join(command))


def train(optimizer, weights, data_path):
    return reference.train(
        weights, reference.Windows(data_path, CONFIG["seq"]), layers=CONFIG["layers"], heads=CONFIG["heads"],
        batch=CONFIG["batch"], steps=CONFIG["steps"], lr=CONFIG["lr"], weight_decay=CONFIG["weight-decay"],
        grad_clip=CONFIG["grad-clip"], optimizer=optimizer)


def rounding(run, double_run):
    """Largest relative distance of the fp32 run from the same run in fp64: what a tolerance must allow."""
    steps = list(zip(run["steps"], double_run["steps"]))
    return {key: max(abs(a[key] / b[key] - 1) for a, b in steps) for key in ("loss", "grad_norm")}


def golden_run(optimizer, weights, data_path):
    run = train(optimizer, {n: w.clone() for n, w in weights.items()}, data_path)
    double_run = train(optimizer, {n: w.double() for n, w in weights.items()}, data_path)
    return {
        "config": {**CONFIG, "optimizer": optimizer},
        "data": {"bytes": DATA_BYTES, "fnv1a64": fnv1a64(golden_data())},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "rounding": rounding(run, double_run),
        **run,
        "weights": describe_weights(weights),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("train_gpt", nargs="?", help="path of the train_gpt program")
    source.add_argument("--weights", help="initial weights from a file instead")
    source.add_argument("--write-data", metavar="FILE")
    parser.add_argument("--into", default=os.path.dirname(os.path.abspath(__file__)), metavar="FOLDER")
    args = parser.parse_args()
    if args.write_data:
        with open(args.write_data, "wb") as f:
            f.write(golden_data())
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data_path = os.path.join(folder, "text.bin")
        with open(data_path, "wb") as f:
            f.write(golden_data())
        weights_path = args.weights
        if not weights_path:
            weights_path = os.path.join(folder, "weights.safetensors")
            export_weights(args.train_gpt, data_path, weights_path)
        weights = reference.load_weights(weights_path, CONFIG["dim"], CONFIG["layers"], CONFIG["seq"])
        for optimizer in ("adamw", "muon"):
            document = golden_run(optimizer, weights, data_path)
            with open(os.path.join(args.into, optimizer + ".json"), "w") as f:
                json.dump(document, f, indent=1)
                f.write("\n")
            losses = [record["loss"] for record in document["steps"]]
            print(f"{optimizer}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, "
                  f"held out {document['eval_loss']:.6f}, rounding {document['rounding']}")


if __name__ == "__main__":
    main()
