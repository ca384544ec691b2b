#!/usr/bin/env python3
"""Multi-token prediction beside PyTorch: multi_token_training.py TRAIN_GPT FOLDER_OF_MODELS

`transformers` leaves the head out, so the head is written here, by the formula of DeepSeek-V3 (DeepSeek-AI 2024, arXiv 2412.19437,
section 2.2), around the decoder layer of `transformers`. Small models train for 20 steps by `train_gpt --mtp-weight`, on
windows and on packed examples, on several arrangements of ranks, half of them without SHERD_NIGHTLY. Both losses of every step, and the weights behind the last, agree
to 1e-5, relative. --adam-eps is above rounding, which AdamW would otherwise pass on to weights of small gradients.
"""

import copy
import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from sft_training import arrangements, batch_of, make_examples, rows_of, run, write_examples

SEQ, BATCH, STEPS, LR, EPS, WEIGHT, TOLERANCE = 40, 8, 20, 1e-3, 1e-4, 0.3, 1e-5
ARRANGEMENTS = {
    "1 rank": [],
    "4 ranks zero3": ["--ranks", 4, "--grad-accum", 2],
    "4 ranks, tp 2, ep 2": ["--ranks", 4, "--tp", 2, "--expert-parallel", 2],
    "tp 2 of 4, sequence parallel, recompute": ["--ranks", 4, "--tp", 2, "--sequence-parallel", "true", "--recompute", "blocks"],
    "4 ranks, 2 replicas, zero2": ["--ranks", 4, "--replicas", 2, "--strategy", "zero2"],
    "4 ranks, context 2, ep 2": ["--ranks", 4, "--context", 2, "--expert-parallel", 2],
}


def as_stored(state):
    """The tensors of a model or layer as folders name them: experts one by one."""
    all = {}
    for name, w in state.items():
        path, _, kind = name.partition("experts.")
        if kind == "gate_up_proj":
            for e, (gate, up) in enumerate(half.chunk(2) for half in w):
                all[f"{path}experts.{e}.gate_proj.weight"], all[f"{path}experts.{e}.up_proj.weight"] = gate, up
        elif kind == "down_proj":
            for e, down in enumerate(w):
                all[f"{path}experts.{e}.down_proj.weight"] = down
        else:
            all[name] = w
    return {name: w.detach().clone() for name, w in all.items()}


class Head(torch.nn.Module):
    """The layer behind the others. Embedding and head are the model's."""

    def __init__(self, model):
        super().__init__()
        dim = model.config.hidden_size
        self.layer = copy.deepcopy(model.model.layers[-1])
        self.enorm, self.hnorm, self.norm = (copy.deepcopy(model.model.norm) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * dim, dim, bias=False)
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for w in self.parameters():
                w.copy_(0.15 * torch.randn(w.shape, generator=generator) + (1.0 if w.ndim == 1 else 0.0))
            self.layer.mlp.gate.e_score_correction_bias.copy_(0.05 * torch.randn(self.layer.mlp.gate.e_score_correction_bias.shape, generator=generator))

    def forward(self, model, hidden, next_tokens, positions, mask):
        both = torch.cat((self.enorm(model.model.embed_tokens(next_tokens)), self.hnorm(hidden)), dim=-1)
        angles = model.model.rotary_emb(hidden, position_ids=positions)
        out = self.layer(self.eh_proj(both), attention_mask=mask, position_ids=positions, position_embeddings=angles, use_cache=False)
        return model.lm_head(self.norm(out[0] if isinstance(out, tuple) else out))

    def tensors(self, model):
        """As the makers of DeepSeek-V3 name them: experts one by one, copies of embedding and head."""
        all = {"eh_proj.weight": self.eh_proj.weight, "enorm.weight": self.enorm.weight, "hnorm.weight": self.hnorm.weight,
               "shared_head.norm.weight": self.norm.weight, "embed_tokens.weight": model.model.embed_tokens.weight,
               "shared_head.head.weight": model.lm_head.weight}
        layer = f"model.layers.{model.config.num_hidden_layers}."
        return {layer + name: w for name, w in as_stored({**all, **self.layer.state_dict()}).items()}


def write_folder(folder, source, head, model):
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    save_file({**load_file(source / "model.safetensors"), **head.tensors(model)}, folder / "model.safetensors", metadata={"format": "pt"})


def windows_of(tokens):
    """Each step's tokens, targets, positions and mask, without documents."""
    full = torch.full((1, 1, SEQ, SEQ), torch.finfo(torch.float32).min).triu(1)
    for step in range(STEPS):
        begins = [(step * BATCH + i) * SEQ for i in range(BATCH)]
        row = lambda shift: torch.tensor([tokens[b + shift:b + shift + SEQ] for b in begins])
        yield row(0), row(1), torch.arange(SEQ).expand(BATCH, SEQ), full.expand(BATCH, 1, SEQ, SEQ)


def packed_of(rows, config):
    for step in range(STEPS):
        yield batch_of([rows[(step * BATCH + i) % len(rows)] for i in range(BATCH)], config)[:4]


def next_of(tokens, targets, positions):
    """t[i + 1] and t[i + 2]: none behind the last place of a row, nor in another document, whose positions begin again."""
    following = torch.where(targets >= 0, targets, torch.cat((tokens[:, 1:], tokens[:, -1:]), 1))
    goes_on = torch.zeros_like(tokens, dtype=torch.bool)
    goes_on[:, :-1] = positions[:, 1:] == positions[:, :-1] + 1
    later = torch.cat((targets[:, 1:], targets[:, -1:]), 1)
    return following, torch.where(goes_on, later, -100)


def train_theirs(model, head, batches):
    parameters = list(model.parameters()) + list(head.parameters())
    decays, others = ([p for p in parameters if (p.dim() >= 2) == matrix] for matrix in (True, False))
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=(0.9, 0.95), eps=EPS)
    model.train(), head.train()
    losses = []
    for tokens, targets, positions, mask in batches:
        hidden = model.model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state
        following, later = next_of(tokens, targets, positions)
        predicted = head(model, hidden, following, positions, mask)
        learned = (targets >= 0).sum()
        entropy = lambda logits, wanted: torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum") / learned
        main, mtp = entropy(model.lm_head(hidden), targets), entropy(predicted, later)
        optimizer.zero_grad()
        (main + WEIGHT * mtp).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append((main.item(), mtp.item()))
    return losses


def compare(what, metrics, out, theirs, model, head):
    steps = [step for step in map(json.loads, metrics.read_text().splitlines()) if "loss" in step]
    ours = [(step["loss"], step["mtp_loss"]) for step in steps]
    loss = max(abs(a - b) / b for pair in zip(ours, theirs, strict=True) for a, b in zip(*pair))
    stored, worst = load_file(out / "model.safetensors"), (0, "")
    wanted = head.tensors(model) | as_stored(model.state_dict())
    if set(wanted) != set(stored):
        sys.exit(f"{what}: the folder differs in {set(wanted) ^ set(stored)}")
    for name, w in wanted.items():
        worst = max(worst, (((stored[name].double() - w.double()).norm() / w.double().norm()).item(), name))
    print(f"{what}: losses {theirs[0][0]:.5f}, {theirs[0][1]:.5f} to {theirs[-1][0]:.5f}, {theirs[-1][1]:.5f}; "
          f"largest relative difference {loss:.1e}, of weights {worst[0]:.1e} ({worst[1]})")
    if not (loss <= TOLERANCE and worst[0] <= TOLERANCE):
        sys.exit(f"{what}: {ours} here, {theirs} with PyTorch")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    program, models, work = sys.argv[1], Path(sys.argv[2]), Path(tempfile.mkdtemp())
    rng = random.Random(3)
    tokens = [rng.randrange(199) for _ in range(STEPS * BATCH * SEQ + 4000)]
    (work / "tokens.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in tokens))
    examples = make_examples(199)
    write_examples(work / "chats", examples)
    data = {"windows": (["--tokens", work / "tokens.bin", "--token-format", "u16"], lambda config: windows_of(tokens)),
            "packed examples": (["--sft", work / "chats", "--packing"], lambda config: packed_of(rows_of(examples, True), config))}
    for number, family in enumerate(("deepseek_v3", "glm4_moe")):
        for turn, (kind, (flags, batches)) in enumerate(data.items()):
            model = AutoModelForCausalLM.from_pretrained(models / family, dtype=torch.float32, attn_implementation="eager",
                                                         experts_implementation="eager")
            head = Head(model)
            folder = work / f"{family}-{kind.split()[0]}"
            write_folder(folder, models / family, head, model)
            theirs = train_theirs(model, head, batches(model.config))
            for i, (name, ranks) in enumerate(arrangements(number + turn, ARRANGEMENTS)):
                metrics, out = work / "metrics.jsonl", Path(f"{folder}-out-{i}")
                run(program, "--model", folder, *flags, "--order", "sequential", "--seq", SEQ, "--batch", BATCH, "--lr", LR,
                    "--adam-eps", EPS, "--steps", STEPS, "--mtp-weight", WEIGHT, *ranks, "--metrics", metrics, "--export-hf", out)
                compare(f"{family}, {kind}, {name}", metrics, out, theirs, model, head)


if __name__ == "__main__":
    main()
