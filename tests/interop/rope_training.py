#!/usr/bin/env python3
"""Rotary scalings and sliding windows, beside transformers: rope_training.py TRAIN_GPT

For every family with rotary positions and every scaling, with windows where the family has them, a random small model: the loss and
the gradient's norm of a batch by train_gpt on one rank and with tp 2 (experts over both ranks), longrope also with sequences within
its original length, and the same by transformers. Then text: each token with a KV cache is what transformers takes from the whole
text. Without SHERD_NIGHTLY a third of the scalings of each family, another one from family to family, and all windows.
"""

import array
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()

VOCABULARY, LONG, SHORT, BATCH = 97, 24, 12, 4
LOSS, NORM = 1e-6, 1e-4  # relative
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, head_dim=12, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None)
GROUPS = dict(moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
              num_nextn_predict_layers=0)
# Columns of a head that are rotated, and keys beside SIZES.
FAMILIES = {
    "llama": (12, {}),
    "mistral": (12, dict(sliding_window=None)),
    "qwen2": (12, {}),
    "qwen3": (12, {}),
    "qwen3_moe": (12, dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True)),
    "mixtral": (12, dict(num_local_experts=4)),
    "glm4_moe": (6, GROUPS),
    "deepseek_v3": (6, dict(GROUPS, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=6, qk_rope_head_dim=6,
                            v_head_dim=8, head_dim=6)),
    "olmo2": (8, dict(head_dim=None)),
    "olmo3": (8, dict(head_dim=None, sliding_window=7, layer_types=["full_attention", "sliding_attention", "full_attention"])),
    "gemma3_text": (12, dict(sliding_window=7, query_pre_attn_scalar=16, layer_types=["full_attention", "sliding_attention", "full_attention"])),
    "gpt_oss": (12, dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=7)),
}
BY_KIND = ("olmo3", "gemma3_text")
WINDOWS = {
    "mistral": [dict(sliding_window=7)],
    "mixtral": [dict(sliding_window=7)],
    "qwen2": [dict(use_sliding_window=True, sliding_window=7, max_window_layers=1),
              dict(use_sliding_window=True, sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"])],
    "qwen3": [dict(use_sliding_window=True, sliding_window=7, max_window_layers=2)],
    "qwen3_moe": [dict(use_sliding_window=True, sliding_window=7)],
}


def scalings(columns):
    """Objects of "rope_parameters" without "rope_type" default, by a name."""
    ramp = [1.0 + i for i in range(columns // 2)]
    return {
        "linear": dict(rope_type="linear", factor=2.5),
        "dynamic": dict(rope_type="dynamic", factor=4.0),
        "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
        "yarn": dict(rope_type="yarn", factor=4.0, beta_fast=3.0, beta_slow=0.5, original_max_position_embeddings=16),
        "yarn, mscale": dict(rope_type="yarn", factor=4.0, beta_fast=3.0, beta_slow=0.5, mscale=0.9, mscale_all_dim=0.7,
                             original_max_position_embeddings=16),
        "yarn, attention_factor": dict(rope_type="yarn", factor=4.0, attention_factor=1.2),
        "longrope": dict(rope_type="longrope", original_max_position_embeddings=16, short_factor=[1.0] + ramp[:-1], long_factor=ramp),
        "longrope, attention_factor": dict(rope_type="longrope", factor=2.0, attention_factor=1.2, original_max_position_embeddings=16,
                                           short_factor=ramp, long_factor=ramp[::-1]),
    }


def cases_of(family):
    """Names, rotary settings and further keys: every scaling, and windows of families that may be without."""
    columns, _ = FAMILIES[family]
    windows = itertools.cycle(WINDOWS.get(family, [{}]))
    cases = [("windows alone", dict(rope_type="default"), more) for more in WINDOWS.get(family, [])]
    cases += [(name, rope, {}) for name, rope in scalings(columns).items()]
    if family in WINDOWS:
        cases += [(f"{name}, windows", rope, next(windows)) for name, rope in scalings(columns).items()]
    return cases


def chosen_cases():
    """Families with an index and a case: all nightly, else a part of the scalings, another one from family to family."""
    for number, family in enumerate(FAMILIES):
        for i, case in enumerate(cases_of(family)):
            if "SHERD_NIGHTLY" in os.environ or case[0] == "windows alone" or (number + i) % 6 == 0:
                yield family, i, case


def config_of(family, rope, more, old_keys=False):
    """config.json: rotary settings as transformers 5 writes them, or by the keys of versions before."""
    _, own = FAMILIES[family]
    config = {**SIZES, **own, **more, "model_type": family}
    rope = {"rope_theta": 900.0, **rope}
    if old_keys and family not in BY_KIND:
        config["rope_theta"] = rope.pop("rope_theta")
        kind = rope.pop("rope_type")
        config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    elif old_keys:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope
        if family == "olmo3":
            config["rope_theta"] = 500000.0  # other ones are refused in this form
    else:
        config["rope_parameters"] = rope if family not in BY_KIND else {
            "full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}
    return {key: value for key, value in config.items() if key != "head_dim" or value is not None}


def make_folder(folder, config):
    """A random model in f32; the config.json stays as it is given."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    parsed = AutoConfig.from_pretrained(folder)
    moe = {} if not any("expert" in key for key in config) else {"experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager" if config["model_type"] == "gpt_oss" else "sdpa", **moe)
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Scores that differ much from key to key: a wrong angle shows in the loss.
            sharp = name.endswith(("q_proj.weight", "k_proj.weight", "q_b_proj.weight", "kv_b_proj.weight", "kv_a_proj_with_mqa.weight"))
            parameter.normal_(0, 0.1 if parameter.ndim == 1 else 0.4 if sharp else 0.2)
            if "norm" in name and config["model_type"] != "gemma3_text":
                parameter.add_(1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.05)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model.eval()


def run(program, *flags):
    done = subprocess.run([program, *map(str, flags), "--quiet", "--threads", "1"], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(f"train_gpt {' '.join(map(str, flags))}\n{done.stderr.strip()}")
    return done.stdout


def first_step(program, folder, tokens, seq, ranks):
    metrics = folder.parent / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    run(program, "--model", folder, "--tokens", tokens, "--token-format", "u16", "--order", "sequential", "--seq", seq, "--batch", BATCH,
        "--steps", 1, "--metrics", metrics, *ranks)
    lines = map(json.loads, metrics.read_text().splitlines())
    step = next(line for line in lines if "grad_norm" in line)
    return step["loss"], step["grad_norm"]


def first_step_of(model, tokens, seq):
    inputs, targets = (torch.tensor([tokens[w * seq + by:(w + 1) * seq + by] for w in range(BATCH)]) for by in (0, 1))
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs, use_cache=False).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None).sqrt().item()


def compare(program, folder, model, tokens, file, what):
    experts = ["--expert-parallel", 2] if any("expert" in key for key in model.config.to_dict()) else []
    runs = [(LONG, []), (LONG, ["--ranks", 2, "--tp", 2, *experts])] + [(SHORT, ["--ranks", 2])] * ("longrope" in what)
    for seq, ranks in runs:
        ours, theirs = first_step(program, folder, file, seq, ranks), first_step_of(model, tokens, seq)
        for name, a, b, bound in zip(("loss", "gradient norm"), ours, theirs, (LOSS, NORM)):
            if not abs(a - b) <= bound * b:
                raise AssertionError(f"{what}, {seq} tokens, {ranks}: {name} {a} here, {b} with transformers")


def compare_text(program, folder, model, what):
    """The most likely tokens, from a prompt shorter than the window to a text longer than the original length."""
    prompt, count = [5, 6, 7], 30
    out = run(program, "--model", folder, "--sample-only", "--sample", count, "--temperature", 0, "--prompt-tokens", ",".join(map(str, prompt)))
    ours = [int(word) for word in out.split() if word.isdigit()][-count:]
    text = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            text.append(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax().item())
    if ours != text[len(prompt):]:
        raise AssertionError(f"{what}: text {ours} here, {text[len(prompt):]} with transformers")


def main():
    program, count = sys.argv[1], 0
    tokens = [(i * i + 7 * (i // 5)) % VOCABULARY for i in range(1000)]
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        (work / "tokens.bin").write_bytes(array.array("H", tokens).tobytes())
        for family, i, (name, rope, more) in chosen_cases():
            folder, what = work / f"{family}{i}", f"{family}, {name}"
            model = make_folder(folder, config_of(family, rope, more, old_keys=i % 2 == 1))
            compare(program, folder, model, tokens, work / "tokens.bin", what)
            if more or name.startswith(("longrope", "yarn, mscale")):
                compare_text(program, folder, model, what)
            count += 1
    print(f"{count} models of {len(FAMILIES)} families: losses, gradients' norms and text as of transformers")


if __name__ == "__main__":
    main()
