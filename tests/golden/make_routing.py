"""Writes routing.json beside this file: experts and gates of DeepSeek-V3's router, and the gradient of its logits, by
transformers in f64.

    python tests/golden/make_routing.py
"""

import json
import pathlib

import torch
import transformers
from double_precision import in_double
from make_attention import values
from transformers.models.deepseek_v3 import modeling_deepseek_v3

torch.set_default_dtype(torch.float64)
ROWS = 9
CASES = [
    {"experts": 12, "k": 3, "groups": 4, "top_groups": 2, "normalised": True, "scaling": 2.5, "biased": True},
    {"experts": 12, "k": 3, "groups": 4, "top_groups": 2, "normalised": False, "scaling": 1.25, "biased": True},
    {"experts": 10, "k": 4, "groups": 2, "top_groups": 1, "normalised": True, "scaling": 1.0, "biased": False},
    {"experts": 7, "k": 2, "groups": 1, "top_groups": 1, "normalised": True, "scaling": 2.0, "biased": True},
]


def run(case):
    experts = case["experts"]
    config = transformers.DeepseekV3Config(
        hidden_size=experts, n_routed_experts=experts, num_local_experts=experts, num_experts_per_tok=case["k"],
        n_group=case["groups"], topk_group=case["top_groups"], norm_topk_prob=case["normalised"],
        routed_scaling_factor=case["scaling"])
    router = in_double(modeling_deepseek_v3).DeepseekV3TopkRouter(config)
    router.weight.data = torch.eye(experts)  # what comes in are the logits
    if case["biased"]:
        router.e_score_correction_bias = values(experts, 3) / 8
    logits = values(ROWS * experts, 5).view(ROWS, experts).requires_grad_()
    _, gates, indices = router(logits)
    weights = values(ROWS * experts, 7).view(ROWS, experts)
    (gates * weights.gather(1, indices)).sum().backward()
    of_experts = torch.zeros(ROWS, experts).scatter(1, indices, gates.detach())
    return dict(case, gates=of_experts.flatten().tolist(), gradient=logits.grad.flatten().tolist())


text = {"transformers": transformers.__version__, "torch": torch.__version__, "rows": ROWS}
lines = [f'"{key}": {json.dumps(x)}' for key, x in text.items()]
lines.append('"cases": [\n' + ",\n".join(json.dumps(run(case)) for case in CASES) + "\n]")
(pathlib.Path(__file__).parent / "routing.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
