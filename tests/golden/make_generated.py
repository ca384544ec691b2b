"""Writes generated.json beside this file: greedy continuations of 16 prompts by each folder of models/, by transformers in f32.

    python tests/golden/make_generated.py

A continuation ends before the first token whose logit leads the next one by less than 1e-3 of the largest: rounding may choose another.
"""

import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(16)
LENGTHS, NEW = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 1, 7, 5], 8

generated = {}
for folder in sorted((HERE / "models").iterdir()):
    if not (folder / "config.json").exists():
        continue
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    texts = []
    for length in LENGTHS:
        prompt = RNG.integers(0, model.config.vocab_size, length).tolist()
        with torch.no_grad():
            # A cache would keep keys that longrope's short factors rotated when the text grows beyond them.
            out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, length, dtype=torch.long),
                                 use_cache=folder.name != "mistral_longrope", max_new_tokens=NEW, do_sample=False,
                                 output_logits=True, return_dict_in_generate=True, pad_token_id=0)
        made = []
        for token, logits in zip(out.sequences[0][length:].tolist(), out.logits):
            first, second = torch.topk(logits[0].double(), 2).values.tolist()
            if first - second < 1e-3 * logits.abs().max().item():
                break
            made.append(token)
        texts.append({"prompt": prompt, "made": made})
    generated[folder.name] = texts
    print(folder.name, [len(t["made"]) for t in texts])

(HERE / "generated.json").write_text(json.dumps({"transformers": transformers.__version__, "families": generated}) + "\n")
