#!/usr/bin/env python3
"""Small random models of the families in nn/models, and what PyTorch makes of them (README.md beside this file).

  make_models.py [FOLDER ...]     all without arguments; writes models/<folder>/ beside this file; a folder is named by its
                                  family, or by the family and what is special

A folder holds config.json and model.safetensors as `transformers` saves them, and
  expected.json         tokens, losses of 20 steps of AdamW and of 10 of Muon, versions
  expected.safetensors  the logits of `tokens` before and after the steps of AdamW, computed in f64
"""

import json
import math
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent / "models"
VOCABULARY, SEQ, BATCH = 199, 12, 4
ADAMW_STEPS, MUON_STEPS = 20, 10
LR, DECAY, BETAS, EPS = 3e-3, 0.1, (0.9, 0.95), 1e-8

COMMON = dict(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=None)
DECODER = dict(COMMON, num_hidden_layers=2, max_position_embeddings=64, attention_dropout=0.0)


def rope(theta, **scaling):
    return {"rope_type": "default", "rope_theta": theta, **scaling}


# Whatever can differ from a default does, so that a key that is not read shows.
CONFIGS = {
    "gpt2": dict(COMMON, n_embd=32, n_head=4, n_layer=2, n_positions=24, n_inner=80, layer_norm_epsilon=1e-3,
                 resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": dict(DECODER, hidden_size=32, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2,
                  head_dim=12, rms_norm_eps=1e-3, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                  rope_parameters=rope(5000.0, rope_type="llama3", factor=4.0, low_freq_factor=1.0,
                                       high_freq_factor=4.0, original_max_position_embeddings=16)),
    "mistral": dict(DECODER, hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=1,
                    head_dim=10, rms_norm_eps=1e-2, sliding_window=None, tie_word_embeddings=False,
                    rope_parameters=rope(3000.0)),
    # Rows of twelve are longer than the original length, and than the window.
    "mistral_longrope": dict(DECODER, hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2,
                             head_dim=10, rms_norm_eps=1e-2, sliding_window=5, tie_word_embeddings=False,
                             rope_parameters=rope(900.0, rope_type="longrope", factor=8.0, original_max_position_embeddings=8,
                                                  short_factor=[1.0, 1.1, 1.2, 1.5, 2.0], long_factor=[1.0, 1.5, 2.5, 4.0, 8.0])),
    # Windows from the second block on.
    "qwen2_yarn": dict(DECODER, num_hidden_layers=3, hidden_size=24, intermediate_size=42, num_attention_heads=6,
                       num_key_value_heads=3, rms_norm_eps=1e-3, use_sliding_window=True, sliding_window=4, max_window_layers=1,
                       tie_word_embeddings=False,
                       rope_parameters=rope(900.0, rope_type="yarn", factor=4.0, beta_fast=3.0, beta_slow=0.5, mscale=0.9,
                                            mscale_all_dim=0.7, original_max_position_embeddings=16)),
    # Three key heads of two queries each: tp 2 gives a rank one and a half.
    "qwen2": dict(DECODER, hidden_size=48, intermediate_size=40, num_attention_heads=6, num_key_value_heads=3,
                  rms_norm_eps=1e-3, tie_word_embeddings=True, rope_parameters=rope(2000.0)),
    "qwen3": dict(DECODER, hidden_size=32, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2,
                  head_dim=14, rms_norm_eps=1e-3, tie_word_embeddings=True, rope_parameters=rope(4000.0)),
    "qwen3_moe": dict(DECODER, hidden_size=24, intermediate_size=40, moe_intermediate_size=12, num_experts=8,
                      num_experts_per_tok=4, norm_topk_prob=True, num_attention_heads=4, num_key_value_heads=2,
                      head_dim=8, rms_norm_eps=1e-3, tie_word_embeddings=False, rope_parameters=rope(6000.0),
                      mlp_only_layers=[], decoder_sparse_step=1),
    "mixtral": dict(DECODER, hidden_size=24, intermediate_size=20, num_local_experts=6, num_experts_per_tok=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-3, sliding_window=None,
                    tie_word_embeddings=False, rope_parameters=rope(7000.0)),
    "olmo2": dict(DECODER, hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2,
                  rms_norm_eps=1e-3, attention_bias=True, tie_word_embeddings=False, rope_parameters=rope(3500.0)),
    # Four layers, three of them with a window of five of the twelve positions; yarn in the fourth.
    "olmo3": dict(DECODER, num_hidden_layers=4, hidden_size=24, intermediate_size=40, num_attention_heads=4,
                  num_key_value_heads=2, rms_norm_eps=1e-3, attention_bias=True, tie_word_embeddings=False, sliding_window=5,
                  rope_parameters={"sliding_attention": rope(800.0),
                                   "full_attention": rope(900.0, rope_type="yarn", factor=4.0, beta_fast=3.0, beta_slow=0.5,
                                                          attention_factor=1.3, original_max_position_embeddings=16)}),
    # Scores are divided by the root of another number than the head's width.
    "gemma3_text": dict(DECODER, num_hidden_layers=3, hidden_size=32, intermediate_size=56, num_attention_heads=4,
                        num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-3, query_pre_attn_scalar=16, sliding_window=4,
                        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                        rope_parameters={"sliding_attention": rope(800.0),
                                         "full_attention": rope(5000.0, rope_type="linear", factor=2.5)}),
    # Windows in every other layer; yarn with bounds that are not rounded.
    "gpt_oss": dict(DECODER, num_hidden_layers=2, hidden_size=24, intermediate_size=14, num_local_experts=6, num_experts_per_tok=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-3, sliding_window=5,
                    tie_word_embeddings=False,
                    rope_parameters=rope(900.0, rope_type="yarn", factor=4.0, beta_fast=3.0, beta_slow=0.5, truncate=False,
                                         original_max_position_embeddings=16)),
    "glm4_moe": dict(DECODER, hidden_size=24, intermediate_size=36, moe_intermediate_size=12, n_routed_experts=8,
                     n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, norm_topk_prob=True,
                     routed_scaling_factor=1.3, first_k_dense_replace=1, num_attention_heads=4, num_key_value_heads=2,
                     head_dim=10, use_qk_norm=True, rms_norm_eps=1e-3, tie_word_embeddings=False, attention_bias=True,
                     num_nextn_predict_layers=0, rope_parameters=rope(2500.0, partial_rotary_factor=0.6)),
    # Values are narrower than keys; a dense block, groups of three experts, yarn that scales scores and rotations.
    "deepseek_v3": dict(DECODER, num_hidden_layers=3, hidden_size=28, intermediate_size=36, moe_intermediate_size=12,
                        n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2,
                        norm_topk_prob=True, routed_scaling_factor=1.7, first_k_dense_replace=1, num_attention_heads=4,
                        num_key_value_heads=4, q_lora_rank=18, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4,
                        v_head_dim=5, rms_norm_eps=1e-3, tie_word_embeddings=False, attention_bias=True,
                        num_nextn_predict_layers=0,
                        rope_parameters=rope(900.0, rope_type="yarn", factor=4.0, beta_fast=3.0, beta_slow=0.5, mscale=0.9,
                                             mscale_all_dim=0.7, original_max_position_embeddings=16)),
}
FAMILIES = {"mistral_longrope": "mistral", "qwen2_yarn": "qwen2"}  # of other names
# With 7 a row of the second step chooses between experts that are a tie in f32: transformers in f32 is 1e-4 from itself in f64.
SEEDS = {"glm4_moe": 8}


def random_model(family, seed):
    config = transformers.AutoConfig.for_model(FAMILIES.get(family, family), **CONFIGS[family])
    options = {"experts_implementation": "eager"} if "moe" in family or family in ("mixtral", "deepseek_v3", "glm4_moe", "gpt_oss") else {}
    attention = "eager" if family == "gpt_oss" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, w in sorted(model.named_parameters()):
            spread = 0.15 if w.ndim >= 2 else 0.2
            w.copy_(spread * torch.randn(w.shape, generator=generator) + (1.0 if is_norm(name) and not family.startswith("gemma") else 0.0))
        for name, bias in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                bias.copy_(0.05 * torch.randn(bias.shape, generator=generator))
    return model.eval()


def is_norm(name):
    return name.endswith("weight") and any(part in name for part in ("norm", "ln_"))


def tokens(seed, rows, columns):
    return torch.randint(VOCABULARY, (rows, columns), generator=torch.Generator().manual_seed(seed))


def windows(step):
    """[BATCH, SEQ + 1]: inputs are all but the last column, targets all but the first."""
    return tokens(1000 + step, BATCH, SEQ + 1)


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


# ---- steps -----------------------------------------------------------------------------------------------


def orthogonalize(u):
    """Five quintic Newton-Schulz steps on the wide orientation of u."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / (torch.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def matrices_of(family, name, w):
    """The logical matrices of a parameter as transformers holds it: q, k and v of gpt2, gate and up of experts, heads of
    latent attention."""
    if "c_attn" in name:
        return w.chunk(3, dim=1)
    if "q_b_proj" in name:
        return w.chunk(CONFIGS["deepseek_v3"]["num_attention_heads"])
    if "kv_a_proj" in name:
        return w.split([CONFIGS["deepseek_v3"]["kv_lora_rank"], CONFIGS["deepseek_v3"]["qk_rope_head_dim"]])
    if "kv_b_proj" in name:
        config = CONFIGS["deepseek_v3"]
        widths = [config["qk_nope_head_dim"], config["v_head_dim"]]
        return w.split(widths * config["num_attention_heads"])
    if w.ndim == 3 and family == "gpt_oss":
        return [m for e in w for m in ((e[:, ::2], e[:, 1::2]) if "gate_up" in name else [e])]
    if w.ndim == 3:
        return [m for e in w for m in (e.chunk(2) if "gate_up" in name else [e])]
    return [w]


class Muon:
    """Plain, on whole matrices: EMA momentum, Nesterov, decoupled decay, scale 0.2 sqrt(max(rows, columns))."""

    def __init__(self, family, named):
        self.family = family
        self.weights = dict(named)
        self.buffers = {name: torch.zeros_like(w) for name, w in self.weights.items()}

    @torch.no_grad()
    def step(self):
        for name, w in self.weights.items():
            buffer = self.buffers[name].lerp_(w.grad, 0.05)
            update = w.grad.lerp(buffer, 0.95)
            w.mul_(1 - LR * DECAY)
            for block, u in zip(matrices_of(self.family, name, w), matrices_of(self.family, name, update)):
                block.sub_(LR * 0.2 * math.sqrt(max(u.shape)) * orthogonalize(u))


def is_hidden(name, w):
    """What Muon takes: matrices of the layers but routers."""
    layered = ".layers." in name or ".h." in name
    return layered and w.ndim >= 2 and not name.endswith(("gate.weight", "router.weight", "bias"))


def decays(name, w):
    """Stacks of biases are matrices that do not."""
    return w.ndim >= 2 and not name.endswith("bias")


def train(model, steps, muon):
    named = list(model.named_parameters())
    to_muon = [(n, w) for n, w in named if muon and is_hidden(n, w)]
    taken = {n for n, _ in to_muon}
    rest = [(n, w) for n, w in named if n not in taken]
    groups = [{"params": [w for n, w in rest if decays(n, w)], "weight_decay": DECAY},
              {"params": [w for n, w in rest if not decays(n, w)], "weight_decay": 0.0}]
    optimizers = [torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)] + ([Muon(model.config.model_type, to_muon)] if muon else [])
    losses = []
    for step in range(steps):
        ids = windows(step)
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        losses.append(loss.item())
    return losses


def make(family):
    folder = HERE / family
    model = random_model(family, SEEDS.get(family, 7))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    start = {name: w.clone() for name, w in model.state_dict().items()}
    model = model.double()
    ids = tokens(1, 2, SEQ)
    before = logits_of(model, ids)
    adamw = train(model, ADAMW_STEPS, muon=False)
    after = logits_of(model, ids)
    model.load_state_dict(start)
    muon = train(model, MUON_STEPS, muon=True)
    save_file({"logits": before.float().contiguous(), "logits_after_adamw": after.float().contiguous()},
              folder / "expected.safetensors")
    expected = {
        "tokens": ids.tolist(),
        "windows": [windows(step).tolist() for step in range(ADAMW_STEPS)],
        "lr": LR, "weight_decay": DECAY, "betas": BETAS, "eps": EPS,
        "adamw_losses": adamw,
        "muon_losses": muon,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{family}: {adamw[0]:.4f} -> {adamw[-1]:.4f} (AdamW), {muon[-1]:.4f} (Muon)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    for family in sys.argv[1:] or CONFIGS:
        make(family)
