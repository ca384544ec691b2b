"""Writes latent.json beside this file: multi-head latent attention of DeepSeek-V3 with its projections, by transformers in f64.

    python tests/golden/make_latent.py
"""

import numpy as np
import torch
from cases import Cases
from double_precision import in_double
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3

LATENT = Cases(20261127)
MODELING = in_double(modeling_deepseek_v3)
BATCH, SEQ, DIM = 2, 3, 7
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.75,
        "mscale_all_dim": 0.5, "original_max_position_embeddings": 16}


def small(*shape):
    """Half of what the other cases have: softmax is not one-hot."""
    return LATENT.grid(*shape) / 2


def attention(x, w, heads, q_rank, kv_rank, nope, rope, value, bias=False, interleaved=True, scaling=None):
    """w: what named_parameters() lists, in its order."""
    config = DeepseekV3Config(
        hidden_size=DIM, num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=q_rank,
        kv_lora_rank=kv_rank, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value, attention_bias=bias,
        rope_interleave=interleaved, max_position_embeddings=64,
        rope_parameters=dict(scaling or {"rope_type": "default", "rope_theta": 100.0}))
    config._attn_implementation = "eager"
    module = MODELING.DeepseekV3Attention(config, 0)
    for norm in (module.q_a_layernorm, module.kv_a_layernorm):
        if norm is not None:
            norm.variance_epsilon = float(np.float32(1e-6))
    rotary = MODELING.DeepseekV3RotaryEmbedding(config)
    # The angle is a product in single precision, as in the modelling code; its sine and cosine are in double.
    angles = torch.outer(torch.arange(SEQ, dtype=torch.float), rotary.inv_freq.float()).double()[None]
    angles = torch.cat([angles, angles], -1)
    mask = torch.full((SEQ, SEQ), -torch.inf).triu(1)[None, None]
    names = [name for name, _ in module.named_parameters()]
    assert len(names) == len(w)
    out, _ = torch.func.functional_call(module, dict(zip(names, w)), (
        x.view(BATCH, SEQ, DIM), (angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling), mask))
    return out.reshape(BATCH * SEQ, DIM)


def case(heads, q_rank, kv_rank, nope, rope, value, bias=False, **options):
    queries = heads * (nope + rope)
    w = [small(queries, DIM)]
    if q_rank:
        w = [small(q_rank, DIM)] + [small(q_rank)] * bias + [small(q_rank), small(queries, q_rank)]
    w += [small(kv_rank + rope, DIM)] + [small(kv_rank + rope)] * bias
    w += [small(kv_rank), small(heads * (nope + value), kv_rank), small(DIM, heads * value)] + [small(DIM)] * bias
    return ([LATENT.grid(BATCH * SEQ, DIM)], w, [],
            lambda x, w, n: attention(x[0], w, heads, q_rank, kv_rank, nope, rope, value, bias, **options))


LATENT.write("latent", {
    "latent_attention_yarn": case(3, 5, 4, 2, 4, 5, bias=True, scaling=YARN),
    "latent_attention_wide_values": case(2, 3, 5, 1, 2, 6),
    "latent_attention_halves": case(2, None, 3, 3, 4, 2, interleaved=False),
})
