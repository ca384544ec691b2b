"""Writes algebra.json beside this file: inputs, outputs and gradients of arithmetic, reductions and shapes, by PyTorch in f64.

    python tests/golden/make_algebra.py
"""

import torch
import torch.nn.functional as F
from cases import Cases

ALGEBRA = Cases(20261126)
grid, distinct = ALGEBRA.grid, ALGEBRA.distinct
EVEN = 1 / 64  # added to an odd multiple of it, so that operands are never equal
INDICES = torch.tensor([2, 0, 2, 1, 2])
TARGETS = torch.tensor([6, 0, -1, 3, 3])  # -1: ignored
REFERENCE = torch.arange(35.0).reshape(5, 7) / 16
WEIGHTS = torch.tensor([0.5, 2, 3, 0.25, 1])


def of(*inputs):
    """A case of a function of values alone."""
    *values, function = inputs
    return (values, [], [], lambda x, w, n: function(*x))


def numbers(x):
    return 1.5 - x / 0.75 + 2.0 / (x.abs() + 1) - -x * 3


def powers(x):
    a = x.abs() + 1
    return x**2 + a**0.5 + x**3 + a**-1.5 + 2.0**x


def losses(x, targets):
    return F.cross_entropy(x, targets, reduction="none", ignore_index=-1)


def attention(q, k, v, mask):
    q, k, v = (t.reshape(2, t.shape[0] // 2, 2, -1).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(6, 6)


CASES = {
    "add_broadcast": of(grid(4, 1, 3), grid(2, 1), lambda a, b: a + b),
    "subtract_broadcast": of(grid(5, 3), grid(3), lambda a, b: a - b),
    "multiply_broadcast": of(grid(4, 1, 3), grid(2, 3), lambda a, b: a * b),
    "divide_broadcast": of(grid(2, 3), grid(4, 1, 1), lambda a, b: a / (b.abs() + 0.5)),
    "numbers": of(grid(5, 3), numbers),
    "power": of(grid(5, 3), grid(3), lambda a, b: (a.abs() + 1) ** b),
    "power_of_numbers": of(grid(5, 3), powers),
    "maximum": of(grid(5, 3), grid(3), lambda a, b: torch.maximum(a, b + EVEN)),
    "minimum": of(grid(5, 3), grid(5, 1), lambda a, b: torch.minimum(a, b + EVEN)),
    "where_less": of(grid(5, 3), grid(5, 1), lambda a, b: torch.where(a < b + EVEN, a * b, b)),
    "where_less_equal": of(grid(5, 3), grid(3), lambda a, b: torch.where(a <= 0.25, a, b) + torch.eq(a, a) * b),
    "exp": of(grid(5, 3), torch.exp),
    "log": of(grid(5, 3), lambda x: torch.log(x.abs() + 0.5)),
    "sqrt": of(grid(5, 3), lambda x: torch.sqrt(x.abs() + 0.5)),
    "tanh": of(grid(5, 3), torch.tanh),
    "sigmoid": of(grid(5, 3), torch.sigmoid),
    "abs": of(grid(5, 3), torch.abs),
    "sum_dims": of(grid(2, 3, 4), lambda x: x.sum((0, 2))),
    "sum_all_dims": of(grid(2, 3), lambda x: x.sum((0, 1))),
    "mean_dims": of(grid(2, 3, 4), lambda x: x.mean((1, 2), keepdim=True)),
    "max_dims": of(distinct(2, 3, 4), lambda x: x.amax((0, 2))),
    "logsumexp": of(grid(2, 3, 4), lambda x: torch.logsumexp(x, (0, 2), keepdim=True)),
    "variance": of(grid(3, 5), lambda x: x.var(1, correction=0)),
    "reshape": of(grid(4, 6), lambda x: x.reshape(3, -1, 2)),
    "permute": of(grid(2, 3, 4), lambda x: x.permute(2, 0, 1)),
    "transpose": of(grid(2, 3, 4), lambda x: x.transpose(-2, -1)),
    "broadcast_to": of(grid(3, 1), lambda x: x.expand(2, 3, 4)),
    "slice": of(grid(4, 7), lambda x: x[:, 1:6:2]),
    "concat": of(grid(2, 3), grid(2, 1), grid(2, 4), lambda *x: torch.cat(x, -1)),
    "stack": of(grid(2, 3), grid(2, 3), lambda *x: torch.stack(x, 1)),
    "index_select": ([grid(3, 4)], [], [INDICES], lambda x, w, n: x[0][n[0]]),
    "index_select_columns": ([grid(2, 3, 2)], [], [INDICES], lambda x, w, n: x[0][:, n[0]]),
    "matmul": of(grid(5, 3), grid(3, 4), lambda a, b: a @ b),
    "matmul_one_right": of(grid(2, 5, 3), grid(4, 3), lambda a, b: a @ b.T),
    "matmul_batches": of(grid(2, 1, 4, 3), grid(3, 3, 5), lambda a, b: a @ b),
    "matmul_transposed": of(grid(2, 3, 4), grid(2, 5, 3), lambda a, b: a.mT @ b.mT),
    "matmul_one_left": of(grid(3, 4), grid(2, 3, 5), lambda a, b: a.T @ b),
    "softplus": of(grid(5, 3), F.softplus),
    "leaky_relu": of(grid(5, 3), lambda x: F.leaky_relu(x, 0.2)),
    "elu": of(grid(5, 3), F.elu),
    "quick_gelu": of(grid(5, 3), lambda x: x * torch.sigmoid(1.702 * x)),
    "geglu": of(grid(5, 6), lambda x: F.gelu(x[:, :3], approximate="tanh") * x[:, 3:]),
    "clamped_swiglu": of(grid(5, 3), grid(5, 3), lambda g, u: (u.clamp(-0.7, 0.7) + 1) * g.clamp(max=0.7) *
                         torch.sigmoid(1.702 * g.clamp(max=0.7))),
    "log_softmax": of(grid(5, 3), lambda x: F.log_softmax(x, 0)),
    "smooth_l1": of(grid(5, 3), grid(5, 3),
                    lambda x, t: F.smooth_l1_loss(x, t + EVEN, reduction="none", beta=0.5)),
    "binary_cross_entropy": of(grid(5, 3), grid(5, 3), lambda x, t: F.binary_cross_entropy_with_logits(
        x, torch.sigmoid(t), reduction="none")),
    "kl_divergence": of(grid(5, 3), grid(5, 3), lambda q, p: F.kl_div(
        F.log_softmax(q, -1), F.softmax(p, -1), reduction="none")),
    "windows": of(grid(2, 2, 3, 4), lambda x: x.unfold(2, 2, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5)),
    "conv2d": of(grid(2, 2, 5, 4), grid(3, 2, 3, 2), grid(3),
                 lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 0))),
    "conv1d": of(grid(2, 3, 6), grid(2, 3, 3), lambda x, w: F.conv1d(x, w, padding=1, stride=2)),
    "average_pool2d": of(grid(1, 2, 4, 5), lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 0))),
    "max_pool2d": of(distinct(1, 2, 4, 5), lambda x: F.max_pool2d(x, (2, 2), (2, 1))),
    "batch_norm": of(grid(4, 2, 3), grid(2), grid(2), lambda x, w, b: F.batch_norm(x, None, None, w, b, True)),
    "group_norm": of(grid(2, 4, 3), grid(4), grid(4), lambda x, w, b: F.group_norm(x, 2, w, b)),
    "dot_product_attention": of(grid(2 * 3, 2 * 4), grid(2 * 5, 2 * 4), grid(2 * 5, 2 * 3), grid(3, 5), attention),
    "parameter_values": ([grid(5, 3)], [grid(3), grid(5, 1)], [],
                         lambda x, w, n: torch.tanh(x[0] * w[0] + w[1]) * w[0] - w[1]),
    "token_losses": ([grid(5, 7)], [], [TARGETS], lambda x, w, n: losses(x[0], n[0])),
    "log_probs": ([grid(5, 7)], [], [TARGETS], lambda x, w, n: -losses(x[0], n[0])),
    "weighted_cross_entropy": ([grid(5, 7)], [], [TARGETS], lambda x, w, n: (losses(x[0], n[0]) * WEIGHTS).sum().reshape(1)),
    "entropy": of(grid(5, 7), lambda x: torch.distributions.Categorical(logits=x).entropy()),
    "z_loss": of(grid(5, 7), lambda x: torch.logsumexp(x, -1)**2),
    "divergence": of(grid(5, 7), lambda x: F.kl_div(F.log_softmax(REFERENCE, -1), F.log_softmax(x, -1), reduction="none",
                                                    log_target=True).sum(-1)),
    "of_logits": ([grid(5, 3)], [grid(7, 3)], [TARGETS], lambda x, w, n: torch.stack(
        (losses(x[0] @ w[0].T, n[0]), torch.logsumexp(x[0] @ w[0].T, -1)**2), 1)),
}

ALGEBRA.write("algebra", CASES)
