"""Writes usages.json beside this file: what a small net has learned after three steps of each usage of a model, by
PyTorch in f64 and one process.

    python tests/golden/make_usages.py

Ranks are emulated: a step's gradient is the mean of what the ranks' objectives have. README.md says what the file
holds.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
WIDTH, HIDDEN, ROWS, OUT, RANK = 12, 20, 6, 4, 4
STEPS, RATE, MOMENTUM, DECAY = 3, 0.5, 0.5, 0.125
JUDGE_RATE, JUDGE_EPS = 0.0625, 0.0625  # of AdamW, with betas 0.9 and 0.95
RMS_EPS = float(torch.tensor(1e-6, dtype=torch.float32))
PRECISION = torch.float64


# ---- values that the test computes, too (tests/nn/golden_net.h)


def value(i, salt):
    return math.sin((701 * i * i + 1301 * salt) % 6283 / 1000.0)


def tensor(shape, salt, factor=1.0, offset=0.0):
    values = [offset + factor * value(i, salt) for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float32).to(PRECISION).reshape(shape)


def batch(number, rank):
    return tensor((ROWS, WIDTH), 1000 + 16 * number + rank)


def target(number, rank, width=OUT):
    return tensor((ROWS, width), 5000 + 16 * number + rank)


# ---- the net


def add_block(p, prefix, salt, tied_up=False, lora=False):
    p[prefix + "norm.weight"] = tensor((WIDTH,), salt, 0.125, 1.0)
    if not tied_up:
        p[prefix + "up.weight"] = tensor((HIDDEN, WIDTH), salt + 1, 0.25)
    p[prefix + "down.weight"] = tensor((WIDTH, HIDDEN), salt + 2, 0.25)
    if lora:
        p[prefix + "lora_a.weight"] = tensor((RANK, WIDTH), salt + 3, 0.25)
        p[prefix + "lora_b.weight"] = tensor((HIDDEN, RANK), salt + 4, 0.25)


def make_net(tied=False, lora=False, fork=False):
    p = {}
    for i in range(3):
        add_block(p, f"blocks.{i}.", 10 * i, tied_up=tied and i == 2, lora=lora and i == 1)
    if fork:
        p["fork.weight"] = tensor((3 * WIDTH, WIDTH), 91, 0.25)
    p["head.weight"] = tensor((OUT, WIDTH), 90, 0.25)
    return p


def rms_norm(x, w):
    return x * torch.rsqrt((x**2).mean(1, keepdim=True) + RMS_EPS) * w


def block(p, prefix, x, up=None):
    n = rms_norm(x, p[prefix + "norm.weight"])
    h = n @ p[up or prefix + "up.weight"].T
    if prefix + "lora_a.weight" in p:
        h = h + n @ p[prefix + "lora_a.weight"].T @ p[prefix + "lora_b.weight"].T
    return x + F.gelu(h, approximate="tanh") @ p[prefix + "down.weight"].T


def run(p, x, blocks=(0, 1, 2), tied=False):
    for i in blocks:
        x = block(p, f"blocks.{i}.", x, "blocks.0.up.weight" if tied and i == 2 else None)
    return x @ p["head.weight"].T


def mse(x, t):
    return ((x - t) ** 2).mean()


# ---- a unit in bf16


class Rounded(torch.autograd.Function):
    """To bf16 and back; the gradient alike where `both`."""

    @staticmethod
    def forward(ctx, x, value_too, gradient_too):
        ctx.gradient_too = gradient_too
        return x.to(torch.float32).to(torch.bfloat16).to(x.dtype) if value_too else x.clone()

    @staticmethod
    def backward(ctx, g):
        return (g.to(torch.float32).to(torch.bfloat16).to(g.dtype) if ctx.gradient_too else g), None, None


def bf16_block(p, prefix, x):
    """What each kernel writes is rounded, values and their gradients; gradients of weights are f32, and so is the
    norm's weight."""
    r = lambda t: Rounded.apply(t, True, True)
    w = lambda name: Rounded.apply(p[prefix + name], True, False)
    x = r(x)
    n = r(rms_norm(Rounded.apply(x, False, True), p[prefix + "norm.weight"]))
    h = r(n @ w("up.weight").T)
    return r(x + r(r(F.gelu(h, approximate="tanh")) @ w("down.weight").T))


def run_bf16(p, x):
    x = block(p, "blocks.0.", x)
    x = bf16_block(p, "blocks.1.", x)
    return block(p, "blocks.2.", x) @ p["head.weight"].T


# ---- training


class Sgd:
    """tests/support/sgd.h"""

    def __init__(self, params):
        self.m = {name: torch.zeros_like(w) for name, w in params.items()}

    def step(self, p, g):
        for name, m in self.m.items():
            m += (1 - MOMENTUM) * (g[name] - m)
            decay = DECAY if p[name].dim() >= 2 else 0
            p[name] = (1 - RATE * decay) * p[name] - RATE * m


class AdamW:
    def __init__(self, p, names):
        self.w = {n: torch.nn.Parameter(p[n].clone()) for n in names}
        groups = [{"params": [w for w in self.w.values() if (w.dim() >= 2) == decays],
                   "weight_decay": DECAY if decays else 0.0} for decays in (True, False)]
        self.adamw = torch.optim.AdamW(groups, lr=JUDGE_RATE, betas=(0.9, 0.95), eps=JUDGE_EPS)

    def step(self, p, g):
        for name, w in self.w.items():
            w.grad = g[name].clone()
        self.adamw.step()
        for name, w in self.w.items():
            p[name] = w.detach().clone()


def gradients(p, names, objectives, ranks, losses):
    """Of the named parameters: the mean over ranks of the sum of `objectives(p, rank)`; an unused one's is zero."""
    total = {n: torch.zeros_like(p[n]) for n in names}
    for r in range(ranks):
        leaves = {n: (w.detach().clone().requires_grad_() if n in names else w) for n, w in p.items()}
        all_objectives = objectives(leaves, r)
        losses[r] += [o.item() for o in all_objectives]
        wanted = [leaves[n] for n in names]
        for n, g in zip(names, torch.autograd.grad(sum(all_objectives), wanted, allow_unused=True)):
            if g is not None:
                total[n] += g / ranks
    return total


def train(ranks, objectives, frozen=(), **net):
    p, losses = make_net(**net), [[] for _ in range(ranks)]
    names = [n for n in p if not n.startswith(tuple(frozen))] if frozen else list(p)
    sgd = Sgd({n: p[n] for n in names})
    for step in range(STEPS):
        sgd.step(p, gradients(p, names, lambda q, r: objectives(q, step, r), ranks, losses))
    return p, losses


def plain(p, step, r):
    return [mse(run(p, batch(step, r)), target(step, r))]


def siamese(p, step, r):
    a, b = run(p, batch(2 * step, r)), run(p, batch(2 * step + 1, r))
    return [mse(a - b, target(step, r)) + 0.5 * mse(a, target(step + 8, r))]


def two_backwards(p, step, r):
    return [mse(run(p, batch(2 * step + k, r)), target(2 * step + k, r)) for k in range(2)]


def microbatches(p, step, r):
    return [mse(run(p, batch(3 * step + k, r)), target(3 * step + k, r)) for k in range(3)]


def with_blocks(*of_steps):
    return lambda p, step, r: [mse(run(p, batch(step, r), of_steps[step % len(of_steps)]), target(step, r))]


def tied(p, step, r):
    return [mse(run(p, batch(step, r), tied=True), target(step, r))]


def forked(p, step, r):
    x = block(p, "blocks.1.", block(p, "blocks.0.", batch(step, r)))
    parts = (x @ p["fork.weight"].T).split(WIDTH, dim=1)
    x = [parts[0], parts[0] + parts[1], parts[1]][step]
    return [mse(block(p, "blocks.2.", x) @ p["head.weight"].T, target(step, r))]


def two_dtypes(p, step, r):
    return [mse(run_bf16(p, batch(step, r)), target(step, r))]


def make_gan():
    p = {}
    add_block(p, "maker.", 0)
    add_block(p, "judge.", 10)
    p["maker_out.weight"] = tensor((WIDTH, WIDTH), 92, 0.25)
    p["judge_out.weight"] = tensor((OUT, WIDTH), 93, 0.25)
    return p


def gan(ranks, alternating):
    """The judge learns by AdamW, the maker by SGD; one after the other, or both of one backward."""
    p, losses = make_gan(), [[] for _ in range(ranks)]
    makers = [n for n in p if n.startswith("maker")]
    judges = [n for n in p if n.startswith("judge")]
    maker, judge = Sgd({n: p[n] for n in makers}), AdamW(p, judges)

    def made(p, step, r):
        return block(p, "maker.", batch(step, r)) @ p["maker_out.weight"].T

    def judged(p, x):
        return block(p, "judge.", x) @ p["judge_out.weight"].T

    def of_judge(p, step, r):
        fake = made(p, step, r).detach()
        return [mse(judged(p, batch(step + 8, r)), 1.0) + mse(judged(p, fake), 0.0)]

    def of_maker(p, step, r):
        return [mse(judged(p, made(p, step, r)), 1.0)]

    for step in range(STEPS):
        if alternating:
            judge.step(p, gradients(p, judges, lambda q, r: of_judge(q, step, r), ranks, losses))
            maker.step(p, gradients(p, makers, lambda q, r: of_maker(q, step, r), ranks, losses))
        else:
            g = gradients(p, makers + judges, lambda q, r: of_maker(q, step, r), ranks, losses)
            maker.step(p, g)
            judge.step(p, g)
    return p, losses


USAGES = {
    "plain": lambda n: train(n, plain),
    "siamese": lambda n: train(n, siamese),
    "two_backwards": lambda n: train(n, two_backwards),
    "called_three_times": lambda n: train(n, with_blocks((0, 1, 0, 1, 0, 1, 2))),
    "tied": lambda n: train(n, tied, tied=True),
    "unused_in_some_steps": lambda n: train(n, with_blocks((0, 1, 2), (0, 2), (2, 1))),
    "unused_outputs": lambda n: train(n, forked, fork=True),
    "frozen_tower": lambda n: train(n, plain, frozen=("blocks.0.",)),
    "frozen_in_the_middle": lambda n: train(n, plain, frozen=("blocks.1.",)),
    "lora": lambda n: train(n, plain, frozen=("blocks.1.up",), lora=True),
    "two_dtypes": lambda n: train(n, two_dtypes),
    "microbatches": lambda n: train(n, microbatches),
    "gan_alternating": lambda n: gan(n, True),
    "gan_one_backward": lambda n: gan(n, False),
}


def digest(w):
    """What is stored of a parameter: see the README."""
    flat = w.flatten().tolist()
    probe = sum(x * value(i, 7) for i, x in enumerate(flat))
    return {"squares": sum(x * x for x in flat), "probe": probe, "some": flat[:: max(1, len(flat) // 12 - 1)]}


def short(x):
    if isinstance(x, float):
        return float("%.9g" % x)
    return [short(y) for y in x] if isinstance(x, list) else {k: short(y) for k, y in x.items()}


def distance(a, b):
    return max(((a[n] - b[n].double()).abs().max() / (1 + a[n].abs().max())).item() for n in a)


if __name__ == "__main__":
    lines = []
    for name, usage in USAGES.items():
        results, rounding = {}, 0.0
        for ranks in (1, 3, 4):
            PRECISION = torch.float64
            p, losses = usage(ranks)
            PRECISION = torch.float32
            rounding = max(rounding, distance(p, usage(ranks)[0]))
            results[str(ranks)] = {"losses": losses, "weights": {n: digest(w) for n, w in p.items()}}
        start = make_gan() if name.startswith("gan") else make_net(**{k: k == {"unused_outputs": "fork"}.get(name, name)
                                                                       for k in ("tied", "lora", "fork")})
        learned = distance({n: w.double() for n, w in start.items()}, p)
        print(f"{name:24} f32 differs by {rounding:.1e}, learned {learned:.2f}")
        lines.append(f'"{name}": {{"rounding": {rounding:.1e}, "ranks": {json.dumps(short(results))}}}')
    text = '{"torch": "%s",\n"usages": {\n%s\n}}\n' % (torch.__version__, ",\n".join(lines))
    json.loads(text)
    pathlib.Path(__file__).with_name("usages.json").write_text(text)
