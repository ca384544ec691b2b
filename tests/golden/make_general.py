"""Writes general.json beside this file: objectives of the models of tests/nn/general_models.h, by PyTorch in f64.

    python tests/golden/make_general.py

Weights, inputs and the autoencoder's noise are value(), which the test repeats.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def value(name, *shape):
    """Elements by their index and the sum of the name's bytes; multiples of 1/128."""
    i = torch.arange(torch.Size(shape).numel())
    v = ((37 * i + 5 * i * i + sum(name.encode())) % 61 - 30) / 128.0
    return (v + 1 if "norm" in name and name.endswith("weight") else v).reshape(shape)


def heads(q, k, v, batch, count, mask=None):
    q, k, v = (t.reshape(batch, t.shape[0] // batch, count, -1).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(-1, count * v.shape[-1])


def encoder_block(x, name, batch, width=12):
    w = lambda part, *shape: value(f"{name}.{part}.weight", *shape)
    norm = lambda x, part: F.layer_norm(x, (width,), w(part, width), None, 1e-5)
    q, k, v = (norm(x, "norm1") @ w("qkv", 3 * width, width).T).split(width, 1)
    y = x + heads(q, k, v, batch, 3) @ w("proj", width, width).T
    hidden = F.gelu(norm(y, "norm2") @ w("up", 2 * width, width).T, approximate="tanh")
    return y + hidden @ w("down", width, 2 * width).T


def vision_transformer():
    x = value("input", 4, 3, 8, 8).reshape(4, 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).reshape(16, 48)
    x = (x @ value("patch.weight", 12, 48).T).reshape(4, 4, 12)
    x = torch.cat([value("token", 1, 1, 12).expand(4, 1, 12), x], 1) + value("positions", 5, 12)
    x = x.reshape(20, 12)
    for i in range(2):
        x = encoder_block(x, f"blocks.{i}", 4)
    return F.cross_entropy(x.reshape(4, 5, 12)[:, 0] @ value("head.weight", 5, 12).T, torch.tensor([2] * 4))


def variational_autoencoder():
    rows = torch.sigmoid(value("input", 6, 10))
    hidden = torch.tanh(F.linear(rows, value("in.weight", 16, 10), value("in.bias", 16)))
    mean, log_variance = (hidden @ value("posterior.weight", 6, 16).T).split(3, 1)
    z = mean + torch.exp(log_variance / 2) * value("noise", 6, 3)
    logits = torch.tanh(z @ value("out.weight", 16, 3).T) @ value("logits.weight", 10, 16).T
    divergence = (log_variance.exp() + mean**2 - 1 - log_variance).sum() / 2
    return (F.binary_cross_entropy_with_logits(logits, rows, reduction="sum") + divergence) / 6


def u_net():
    def block(x, name, out):
        x = F.conv2d(x, value(f"{name}.conv.weight", out, x.shape[1], 3, 3), padding=1)
        return F.silu(F.group_norm(x, 2, value(f"{name}.norm.weight", out), value(f"{name}.norm.bias", out)))

    x = value("input", 2, 1, 8, 8)
    wide = block(x, "down", 4)
    small = block(F.max_pool2d(wide, 2), "deep", 8)
    y = block(torch.cat([wide, F.interpolate(small, scale_factor=2)], 1), "up", 4)
    return F.smooth_l1_loss(F.conv2d(y, value("out.weight", 1, 4, 1, 1)), F.avg_pool2d(x, 3, 1, 1))


def encoder_decoder():
    x = value("input", 15, 12)
    k, v = (encoder_block(x, "encoder", 3) @ value("key_value.weight", 24, 12).T).split(12, 1)
    before = torch.cat([value("start", 1, 1, 12).expand(3, 1, 12), x.reshape(3, 5, 12)[:, :4]], 1).reshape(15, 12)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    causal = heads(before, before, before, 3, 2, mask)
    across = heads(causal @ value("query.weight", 12, 12).T, k, v, 3, 2)
    return F.mse_loss((causal + across) @ value("out.weight", 12, 12).T, x)


OBJECTIVES = {
    "VisionTransformer": vision_transformer,
    "VariationalAutoencoder": variational_autoencoder,
    "UNet": u_net,
    "EncoderDecoder": encoder_decoder,
}

lines = [f'"{name}": {f().item()!r}' for name, f in OBJECTIVES.items()]
text = '{"torch": "%s",\n%s}\n' % (torch.__version__, ",\n".join(lines))
json.loads(text)
pathlib.Path(__file__).with_name("general.json").write_text(text)
