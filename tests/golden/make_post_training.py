"""Writes post_training.json beside this file: 20 steps of DPO and of GRPO on models/llama, by transformers and PyTorch in f64.

    python tests/golden/make_post_training.py

The losses are those of trl's DPOTrainer (sigmoid) and GRPOTrainer (loss_type "grpo", two updates for each batch), written as plain
formulas. Texts and rewards are made here; nothing is generated. Rows of prompts and padding have the target -1.
"""

import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
STEPS, SEQ, PROMPT, VOCABULARY = 20, 9, 3, 199
BETA, CLIP, KL, LR = 0.3, 0.2, 0.05, 1e-3
PAIRS, PROMPTS, GROUP = 4, 2, 4
RNG = np.random.default_rng(55)


def texts(count):
    """Tokens and targets [count, SEQ] of texts of unequal lengths, the first PROMPT tokens in common where wanted."""
    tokens = RNG.integers(0, VOCABULARY, (count, SEQ))
    lengths = RNG.integers(PROMPT + 1, SEQ + 1, count)
    targets = np.full((count, SEQ), -1)
    for i, n in enumerate(lengths):
        targets[i, PROMPT - 1:n - 1] = tokens[i, PROMPT:n]
        tokens[i, n:] = 0
    return tokens, targets


def load():
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "models/llama", dtype=torch.float64,
                                                              attn_implementation="eager")
    return model.train()


def log_probs(model, tokens, targets):
    logits = model(input_ids=torch.tensor(tokens), use_cache=False).logits.double()
    targets = torch.tensor(targets)
    rows = torch.gather(torch.log_softmax(logits, -1), 2, targets.clamp(min=0)[..., None])[..., 0]
    return rows * (targets >= 0)


def run(step_losses):
    """Trains, and returns the loss of each update."""
    model, reference = load(), load()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-4, weight_decay=0)
    losses = []
    for step in range(STEPS):
        for loss in step_losses(model, reference, step):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def dpo():
    batches = []
    for (tokens, targets), (other_tokens, other_targets) in [(texts(PAIRS), texts(PAIRS)) for _ in range(STEPS)]:
        other_tokens[:, :PROMPT] = tokens[:, :PROMPT]
        batches.append({"tokens": [tokens.tolist(), other_tokens.tolist()],
                        "targets": [targets.tolist(), other_targets.tolist()]})

    def losses(model, reference, step):
        def ratio(side):
            tokens, targets = batches[step]["tokens"][side], batches[step]["targets"][side]
            with torch.no_grad():
                fixed = log_probs(reference, tokens, targets).sum(1)
            return log_probs(model, tokens, targets).sum(1) - fixed

        yield -torch.nn.functional.logsigmoid(BETA * (ratio(0) - ratio(1))).mean()

    return {"beta": BETA, "batches": batches, "losses": run(losses)}


def grpo():
    batches = []
    for _ in range(STEPS):
        tokens, targets = texts(PROMPTS * GROUP)
        tokens[:, :PROMPT] = np.repeat(tokens[::GROUP, :PROMPT], GROUP, 0)
        batches.append({"tokens": tokens.tolist(), "targets": targets.tolist(),
                        "rewards": RNG.integers(0, 5, PROMPTS * GROUP).tolist()})

    def losses(model, reference, step):
        b = batches[step]
        rewards = torch.tensor(b["rewards"], dtype=torch.float64).reshape(PROMPTS, GROUP)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
        mask = torch.tensor(b["targets"]) >= 0
        with torch.no_grad():
            before = log_probs(model, b["tokens"], b["targets"])
            fixed = log_probs(reference, b["tokens"], b["targets"])
        for _ in range(2):
            now = log_probs(model, b["tokens"], b["targets"])
            ratio = torch.exp(now - before)
            policy = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            kl = torch.exp(fixed - now) - (fixed - now) - 1
            yield (((policy + KL * kl) * mask).sum(1) / mask.sum(1)).mean()

    return {"clip": CLIP, "kl": KL, "group": GROUP, "batches": batches, "losses": run(losses)}


text = json.dumps({"lr": LR, "beta2": 0.95, "eps": 1e-4, "dpo": dpo(), "grpo": grpo(),
                   "versions": {"torch": torch.__version__, "transformers": transformers.__version__}})
(HERE / "post_training.json").write_text(text + "\n")
