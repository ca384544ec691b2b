#!/usr/bin/env python3
"""Draws group_buffer.svg: one unit's parameters (group_buffer.json) over four ranks under each layout policy.

Usage: docs/group_buffer.py build/release/bin/sherd > docs/group_buffer.svg

Where things lie is what `sherd layout --json` says; nothing is placed by hand.
"""
import json
import os
import subprocess
import sys

WORLD = 4
LEFT, WIDTH, BAR = 150, 900, 34
COLOURS = {"norm1": "#bbbbbb", "qkv": "#4477aa", "proj": "#66ccee", "norm2": "#bbbbbb", "fc": "#228833", "out": "#ccbb44"}
DARK = {"qkv", "fc"}  # white text reads better on these
out = []


def layout(tool, policy):
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "group_buffer.json")
    command = [tool, "layout", "--params", model, "--world", str(WORLD), "--policy", policy, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def text(x, y, words, size=13, anchor="start", colour="#333333", weight="normal"):
    out.append(f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
               f'font-weight="{weight}">{words}</text>')


def box(x, y, width, height, fill, opacity=1.0, stroke="none"):
    out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{fill}" '
               f'fill-opacity="{opacity}" stroke="{stroke}"/>')


def piece(name, x, y, width, label=None):
    box(x, y, max(width, 2), BAR, COLOURS[name], stroke="white" if width > 4 else "none")
    label = name if label is None else label
    if label and width > 7.5 * len(label):
        middle = x + width / 2
        if abs((middle - LEFT) % (WIDTH / WORLD)) < 10:  # a boundary would run through the word
            middle -= width / 4
        text(middle, y + 22, label, anchor="middle", colour="white" if name in DARK else "#222222")


def frame(y, label=None):
    box(LEFT, y, WIDTH, BAR, "#f3f3f3")
    if label:
        text(LEFT - 10, y + 22, label, anchor="end")


def boundaries(y, height):
    for r in range(1, WORLD):
        x = LEFT + WIDTH * r / WORLD
        out.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + height}" stroke="black" stroke-width="2" '
                   f'stroke-dasharray="5 3"/>')


def whole(buffer, y, label):
    """The full buffer: every parameter contiguous."""
    frame(y, label=label)
    scale = WIDTH / buffer["elements"]
    for p in buffer["params"]:
        piece(p["name"], LEFT + p["start"] * scale, y, (p["end"] - p["start"]) * scale)


def own_slice(buffer, rank, y, label):
    """What one rank keeps: its slice of the same buffer."""
    frame(y, label=label)
    scale = WIDTH / buffer["elements"]
    slice_ = buffer["buckets"][0]["slice"]
    for p in buffer["ranks"][rank]["pieces"]:
        start = next(q["start"] for q in buffer["params"] if q["name"] == p["name"])
        begin, end = (start + e for e in p["elements"])
        first, count = p["rows"]
        rows = f'{p["name"]} rows {first}-{first + count - 1}' if count > 1 else p["name"]
        piece(p["name"], LEFT + begin * scale, y, (end - begin) * scale, rows if (end - begin) * scale > 110 else p["name"])
    box(LEFT + rank * slice_ * scale, y, slice_ * scale, BAR, "none", stroke="black")


def by_rank(buffer, y, label):
    """A communication buffer that is not the full buffer: each rank's chunks one behind the other."""
    frame(y, label=label)
    scale = WIDTH / buffer["elements"]
    slice_ = buffer["buckets"][0]["slice"]
    for r in buffer["ranks"]:
        at = r["rank"] * slice_
        for p in r["pieces"]:
            n = p["elements"][1] - p["elements"][0]
            piece(p["name"], LEFT + at * scale, y, n * scale)
            at += n
    boundaries(y - 4, BAR + 8)


tool = sys.argv[1]
ragged = layout(tool, "ragged")["buffers"][0]
even = layout(tool, "even_rows")["buffers"][0]
dealt = next(b for b in layout(tool, "whole_param")["buffers"] if any(p["name"] == "qkv" for p in b["params"]))

y = 26
text(LEFT, y, "One unit on four ranks: a block with qkv [192, 64], proj [64, 64], fc [256, 64], out [64, 256] and two norms [64]",
     size=15, weight="bold")
y += 40
text(LEFT, y - 12, "ragged: the buffer is cut into four equal slices; every parameter is contiguous in it", weight="bold")
for r in range(WORLD):
    text(LEFT + WIDTH * (r + 0.5) / WORLD, y + 3, f"slice of rank {r}", size=11, anchor="middle", colour="#777777")
y += 10
whole(ragged, y, "in use")
boundaries(y - 4, BAR + 8)
text(LEFT + WIDTH + 8, y + 15, "parameters are", size=11)
text(LEFT + WIDTH + 8, y + 29, "views of it", size=11)
y += BAR + 8
for x, verb in ((0.16, "unshard: all-gather, in place &#8593;"), (0.62, "&#8595; reshard: the buffer goes to another unit")):
    text(LEFT + WIDTH * x, y + 12, verb, size=12, colour="#aa3377")
y += 22
for r in range(WORLD):
    own_slice(ragged, r, y, f"rank {r} at rest")
    y += BAR + 4
text(LEFT, y + 12, "Gradients are a second buffer of the same shape: reduce is a reduce-scatter of it, which leaves each rank "
     "the slice of its own rows.", size=12)
y += 56
text(LEFT, y - 12, "even_rows: ceil(rows / 4) rows of every parameter on each rank, as DTensor and FSDP2 have it; a copy makes "
     "parameters contiguous", weight="bold")
by_rank(even, y, "on the wire")
y += BAR + 44
text(LEFT, y - 12, "whole_param: Muon's matrices lie whole on one rank each (the norms have a small buffer of their own); grey is padding",
     weight="bold")
whole(dealt, y, "in use")
boundaries(y - 4, BAR + 8)
y += BAR + 16
full = LEFT + WIDTH + 110
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full} {y}" width="{full}" height="{y}" '
      f'font-family="sans-serif">\n<rect width="{full}" height="{y}" fill="white"/>')
print("\n".join(out))
print("</svg>")
