"""Writes soap.json beside this file: 50 steps of KL-SOAP on small matrices, by NumPy in f64, written from the rule.

    python tests/golden/make_soap.py

Unlike kernels/soap it has eigenvectors in columns, and rotates the first moment from the old basis to the new one.
"""

import json
import pathlib

import numpy as np

BETA1, BETA2, SHAMPOO, EPS = 0.9, 0.95, 0.9, 1e-4
RATE, DECAY, STEPS = 0.05, 0.1, 50


def values(rows, cols, salt):
    """Numbers that any language can repeat: exact in single precision, between -2 and 2."""
    return np.array([((i * 73 + salt * 31) % 127 - 63) / 32 for i in range(rows * cols)]).reshape(rows, cols)


class Side:
    """One side's factor, basis and eigenvalues; without a factor the identity."""

    def __init__(self, size, kept):
        self.kept, self.factor, self.basis, self.values = kept, np.zeros((size, size)), np.eye(size), np.ones(size)

    def renew(self, first):
        """Returns the order of the new directions by descending eigenvalue."""
        if first:
            values, basis = np.linalg.eigh(self.factor)
        else:
            basis, _ = np.linalg.qr(self.factor @ self.basis)
            values = np.diag(basis.T @ self.factor @ basis)
        order = np.argsort(-values, kind="stable")
        self.basis, self.values = basis[:, order], values[order]
        return order


def run(rows, cols, max_dim):
    left, right = Side(rows, rows <= max_dim), Side(cols, cols <= max_dim)
    weight, target = values(rows, cols, 1), values(rows, cols, 2)
    moment, squares = np.zeros((rows, cols)), np.zeros((rows, cols))
    weights = []
    for t in range(1, STEPS + 1):
        gradient = weight - target + 0.5 * values(rows, cols, 3 * t)
        w = 1 - (1 - (1 - SHAMPOO) / (1 - SHAMPOO**t))
        g_right, g_left = gradient @ right.basis, left.basis.T @ gradient
        new_left = (1 - w) * left.factor + w / cols * g_right @ np.diag(1 / np.maximum(right.values, EPS)) @ g_right.T
        new_right = (1 - w) * right.factor + w / rows * g_left.T @ np.diag(1 / np.maximum(left.values, EPS)) @ g_left
        plain = left.basis @ moment @ right.basis.T
        if left.kept:
            left.factor = new_left
            squares = squares[left.renew(t == 1), :]
        if right.kept:
            right.factor = new_right
            squares = squares[:, right.renew(t == 1)]
        if t == 1:  # makes the bases alone
            weight = (1 - RATE * DECAY) * weight
            weights.append(weight.flatten().tolist())
            continue
        projected = left.basis.T @ gradient @ right.basis
        moment = BETA1 * (left.basis.T @ plain @ right.basis) + (1 - BETA1) * projected
        squares = BETA2 * squares + (1 - BETA2) * projected**2
        update = moment / (1 - BETA1**(t - 1)) / (np.sqrt(squares / (1 - BETA2**(t - 1))) + EPS)
        weight = (1 - RATE * DECAY) * weight - RATE * left.basis @ update @ right.basis.T
        if t in (1, 2, 10, STEPS):
            weights.append(weight.flatten().tolist())
    sides = {name: {"factor": side.factor.flatten().tolist(), "values": side.values.tolist()}
             for name, side in (("left", left), ("right", right)) if side.kept}
    return {"rows": rows, "cols": cols, "weights": weights, "squares": squares.flatten().tolist(),
            "moment": (left.basis @ moment @ right.basis.T).flatten().tolist(), **sides}


# With a factor on both sides of a rectangle the first factor of the longer one is singular. Its null space has no
# certain basis, so such a shape is not here.
cases = [run(6, 6, 8), run(5, 7, 6), run(7, 5, 6), run(4, 3, 2)]
text = {"numpy": np.__version__, "beta1": BETA1, "beta2": BETA2, "shampoo_beta": SHAMPOO, "eps": EPS, "rate": RATE, "decay": DECAY,
        "steps": [1, 2, 10, STEPS], "cases": cases}
(pathlib.Path(__file__).parent / "soap.json").write_text(json.dumps(text) + "\n")
