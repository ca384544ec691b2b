#!/usr/bin/env python3
"""Fine-tuning on examples, beside transformers: sft_training.py TRAIN_GPT FOLDER_OF_MODELS

Trains small models for 20 steps by `train_gpt --sft`, with packing and without, on several arrangements of ranks, and the
same with transformers and torch.optim.AdamW. Every step's loss is the mean over the learned tokens of the whole step. Without
SHERD_NIGHTLY each model meets half of the arrangements, its neighbours the others.
"""

import array
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

SEQ, BATCH, STEPS, LR, TOLERANCE = 40, 8, 20, 1e-3, 1e-5
ARRANGEMENTS = {
    "1 rank": [],
    "4 ranks zero3": ["--ranks", 4, "--grad-accum", 2],
    "4 ranks, 2 replicas, zero2": ["--ranks", 4, "--replicas", 2, "--strategy", "zero2"],
    "tp 2 of 4, sequence parallel, recompute": ["--ranks", 4, "--tp", 2, "--sequence-parallel", "true", "--recompute", "blocks"],
    "context 2 of 4": ["--ranks", 4, "--context", 2],
    "context 2 of 2, 2 microbatches": ["--ranks", 2, "--context", 2, "--grad-accum", 2, "--strategy", "zero1"],
}
# Key heads that two ranks do not divide.
CONTEXT_3 = {"qwen2_yarn": ["--ranks", 6, "--context", 3]}


def arrangements(number, all_of=ARRANGEMENTS):
    """Names and flags for the model with this number."""
    return [item for i, item in enumerate(all_of.items()) if "SHERD_NIGHTLY" in os.environ or (number + i) % 2 == 0]


def make_examples(vocab):
    """(token, learned) pairs: prompts and answers in turn. Lengths and masks differ much from rank to rank."""
    rng = random.Random(5)
    examples = []
    for i in range(90):
        length = rng.randrange(2, SEQ + 2)
        cut = rng.randrange(1, length) if i % 3 else length - 1
        examples.append([(rng.randrange(vocab), cut <= t < length - (i % 4 == 1 and cut < length - 2))
                         for t in range(length)])
    return examples


def write_examples(prefix, examples):
    tokens = array.array("i", [t if learned else -1 - t for e in examples for t, learned in e])
    Path(f"{prefix}.bin").write_bytes(tokens.tobytes())
    count, begin, begins = len(examples), 0, []
    for e in examples:
        begins.append(begin)
        begin += 4 * len(e)
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, count, count + 1)
        + struct.pack(f"<{count}i", *map(len, examples)) + struct.pack(f"<{count}q", *begins)
        + struct.pack(f"<{count + 1}q", *range(count + 1)))


def rows_of(examples, packed):
    """Lists of examples, as train_gpt documents them: best fit decreasing, then in the order of the file."""
    train = examples[:len(examples) - len(examples) // 50]
    if not packed:
        return [[e] for e in train]
    rows = []  # [room, examples]
    for i in sorted(range(len(train)), key=lambda i: -len(train[i])):
        places = len(train[i]) - 1
        fit = min((r for r in rows if r[0] >= places), key=lambda r: r[0], default=None)
        if fit is None:
            rows.append(fit := [SEQ, []])
        fit[0] -= places
        fit[1].append(i)
    return [[train[i] for i in sorted(some)] for some in sorted(sorted(r[1]) for r in rows)]


def masks_of(sees, config):
    """What transformers adds to scores; of blocks with a window, too."""
    def added(some):
        return torch.zeros(len(some), 1, SEQ, SEQ).masked_fill(~some[:, None], torch.finfo(torch.float32).min)

    window = getattr(config, "sliding_window", None)
    if window is None:
        return added(sees)
    near = sees & torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1 - window)
    if getattr(config, "layer_types", None) is None:
        return added(near)
    return {"full_attention": added(sees), "sliding_attention": added(near)}


def batch_of(rows, config):
    """Tokens, targets, positions, the mask of attention and the places that are not padding; -100 where nothing is learned."""
    shape = (len(rows), SEQ)
    tokens, targets, positions, document = (torch.full(shape, v) for v in (0, -100, 0, -1))
    for r, row in enumerate(rows):
        at = 0
        for d, example in enumerate(row):
            for t in range(len(example) - 1):
                tokens[r, at], positions[r, at], document[r, at] = example[t][0], t, d
                if example[t + 1][1]:
                    targets[r, at] = example[t + 1][0]
                at += 1
    same = document[:, :, None] == document[:, None, :]
    sees = same & torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
    return tokens, targets, positions, masks_of(sees, config), document >= 0


def train_theirs(model, rows, balance=0):
    """`balance`: weight of the load-balancing loss, of rows of one example."""
    decays = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=(0.9, 0.95), eps=1e-8)
    model.train()
    losses = []
    for step in range(STEPS):
        tokens, targets, positions, mask, places = batch_of([rows[(step * BATCH + i) % len(rows)] for i in range(BATCH)], model.config)
        given = {"attention_mask": places.long(), "output_router_logits": True} if balance else {"attention_mask": mask}
        out = model(input_ids=tokens, position_ids=positions, use_cache=False, **given)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        (loss + balance * out.aux_loss if balance else loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(program, *flags):
    done = subprocess.run([program, *map(str, flags), "--quiet", "--threads", "1"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"train_gpt {' '.join(map(str, flags))} failed: {done.stderr}")


def losses_of(metrics):
    return [step["loss"] for step in map(json.loads, metrics.read_text().splitlines()) if "loss" in step]


def losses_resumed(program, flags, again, save):
    """Of a run on 4 ranks that stops and resumes on 2, with the flags `again`."""
    first, second = (Path(f"{save}-{name}.jsonl") for name in ("first", "second"))
    run(program, *flags, "--ranks", 4, "--stop-at", 7, "--save", save, "--metrics", first)
    run(program, *again, "--ranks", 2, "--resume", save, "--metrics", second)
    return losses_of(first) + losses_of(second)


def compare(what, ours, theirs):
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    print(f"{what}: losses {theirs[0]:.6f} to {theirs[-1]:.6f}, largest relative difference {worst:.1e}")
    if not worst <= TOLERANCE:
        sys.exit(f"{what}: {ours} here, {theirs} with transformers")


def flags_of(folder, data, packed):
    return ["--model", folder, "--sft", data, "--order", "sequential", "--seq", SEQ, "--batch", BATCH, "--lr", LR,
            "--steps", STEPS] + ["--packing"] * packed


def train_models(program, models, work):
    for number, family in enumerate(("llama", "qwen3", "deepseek_v3", "mistral_longrope", "qwen2_yarn")):
        vocab = json.loads((models / family / "config.json").read_text())["vocab_size"]
        examples = make_examples(vocab)
        write_examples(work / "chats", examples)
        for packed in (False, True):
            model = AutoModelForCausalLM.from_pretrained(models / family, dtype=torch.float32, attn_implementation="eager")
            theirs = train_theirs(model, rows_of(examples, packed))
            common = flags_of(models / family, work / "chats", packed)
            title = f"{family}, packing {'on' if packed else 'off'}"
            for name, ranks in arrangements(number + packed):
                if "--context" in ranks:
                    ranks = CONTEXT_3.get(family, ranks)
                run(program, *common, *ranks, "--metrics", work / "metrics.jsonl")
                compare(f"{title}, {name}", losses_of(work / "metrics.jsonl"), theirs)
            if "SHERD_NIGHTLY" not in os.environ and number % 2 != packed:
                continue
            # The next example follows on other ranks.
            save = work / f"{family}-{packed}"
            compare(f"{title}, resumed", losses_resumed(program, common, common, save), theirs)


def train_adapters(program, models, work, peft):
    for number, family in enumerate(("llama", "qwen3", "deepseek_v3")):
        vocab = json.loads((models / family / "config.json").read_text())["vocab_size"]
        examples = make_examples(vocab)
        write_examples(work / "chats", examples)
        common = flags_of(models / family, work / "chats", True)
        # PEFT adapts stacks of experts, too, where dense MLPs are targets of a model with experts.
        targets = "self_attn" if family == "deepseek_v3" else "_proj"
        common += ["--lora-rank", 4, "--lora-alpha", 8, "--lora-targets", targets]
        first, last, merged = (work / f"{family}-{name}" for name in ("first", "last", "merged"))
        run(program, *common, "--steps", 0, "--export-adapter", first)
        base = AutoModelForCausalLM.from_pretrained(models / family, dtype=torch.float32, attn_implementation="eager")
        model = peft.PeftModel.from_pretrained(base, first, is_trainable=True)
        theirs = train_theirs(model, rows_of(examples, True))
        tokens = torch.tensor([[t for t, _ in examples[0]]])
        with torch.no_grad():
            want = model.eval()(tokens, use_cache=False).logits
        model.save_pretrained(work / f"{family}-theirs")
        out = work / f"{family}-back"
        run(program, *common, "--init-weights", work / f"{family}-theirs", "--steps", 0, "--export-adapter", out)
        ours, peft_s = (load_file(folder / "adapter_model.safetensors") for folder in (out, work / f"{family}-theirs"))
        if ours.keys() != peft_s.keys() or any(not torch.equal(ours[name], peft_s[name]) for name in ours):
            sys.exit(f"{family}: adapters of PEFT come back with other values")
        for i, (name, ranks) in enumerate(arrangements(number)):
            out = [Path(f"{p}-{i}") for p in (last, merged)]
            run(program, *common, *ranks, "--metrics", work / "metrics.jsonl", "--export-adapter", out[0], "--export-hf", out[1])
            compare(f"{family}, adapters, {name}", losses_of(work / "metrics.jsonl"), theirs)
            folder = AutoModelForCausalLM.from_pretrained(out[1], dtype=torch.float32, attn_implementation="eager")
            again = peft.PeftModel.from_pretrained(
                AutoModelForCausalLM.from_pretrained(models / family, dtype=torch.float32, attn_implementation="eager"), out[0])
            for what, other in (("merged folder", folder), ("adapters read by PEFT", again)):
                with torch.no_grad():
                    error = (other.eval()(tokens, use_cache=False).logits - want).abs().max() / want.abs().max()
                if not error <= 2e-4:
                    sys.exit(f"{family}, {name}, {what}: logits differ by {error:.1e}")
            made = folder.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0)
            if made.shape[1] != tokens.shape[1] + 5:
                sys.exit(f"{family}, {name}: the merged folder does not generate")
        save = work / f"{family}-adapters"
        compare(f"{family}, adapters, resumed", losses_resumed(program, common, [], save), theirs)


def train_frozen(program, models, work):
    examples = make_examples(199)
    write_examples(work / "chats", examples)
    model = AutoModelForCausalLM.from_pretrained(models / "llama", dtype=torch.float32, attn_implementation="eager")
    for name, p in model.named_parameters():
        p.requires_grad = not any(part in name for part in ("embed_tokens", "layers.0.", "norm"))
    theirs = train_theirs(model, rows_of(examples, False))
    for name, ranks in ARRANGEMENTS.items():
        run(program, *flags_of(models / "llama", work / "chats", False), *ranks, "--freeze", r"embed_tokens|layers\.0\.|norm",
            "--metrics", work / "metrics.jsonl")
        compare(f"llama, --freeze, {name}", losses_of(work / "metrics.jsonl"), theirs)


def train_balanced(program, models, work):
    for family in ("mixtral", "qwen3_moe"):
        examples = make_examples(199)
        write_examples(work / "chats", examples)
        model = AutoModelForCausalLM.from_pretrained(models / family, dtype=torch.float32, attn_implementation="eager")
        theirs = train_theirs(model, rows_of(examples, False), balance=0.5)
        for ranks in ([], ["--ranks", 4, "--expert-parallel", 2], ["--ranks", 4, "--tp", 2, "--recompute", "blocks"], ["--ranks", 4, "--context", 2, "--expert-parallel", 2]):
            run(program, *flags_of(models / family, work / "chats", False), "--moe-aux", 0.5, *ranks,
                "--metrics", work / "metrics.jsonl")
            compare(f"{family}, --moe-aux {ranks}", losses_of(work / "metrics.jsonl"), theirs)


def evaluate_sets(program, models, work):
    sets = {"short": make_examples(199)[:20], "long": make_examples(199)[40:70]}
    for name, examples in sets.items():
        write_examples(work / name, examples)
    model = AutoModelForCausalLM.from_pretrained(models / "qwen3", dtype=torch.float32, attn_implementation="eager").eval()
    theirs = []
    for examples in sets.values():
        tokens, targets, positions, mask, _ = batch_of([[e] for e in examples], model.config)
        with torch.no_grad():
            logits = model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits
        theirs.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100).item())
    theirs.append(0.75 * theirs[0] + 0.25 * theirs[1])
    for packed in (False, True):
        metrics = work / "evaluation.jsonl"
        run(program, "--model", models / "qwen3", "--sft", work / "short", "--seq", SEQ, *["--packing"] * packed, "--ranks", 2,
            "--eval-only", "--eval-data", f"short={work / 'short'}:3,long={work / 'long'}:1", "--metrics", metrics)
        ours = json.loads(metrics.read_text().splitlines()[-1])
        compare(f"qwen3, --eval-data, packing {'on' if packed else 'off'}", [*ours["eval_sets"].values(), ours["eval_loss"]], theirs)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    program, models, work = sys.argv[1], Path(sys.argv[2]), Path(tempfile.mkdtemp())
    train_models(program, models, work)
    train_frozen(program, models, work)
    train_balanced(program, models, work)
    evaluate_sets(program, models, work)
    try:
        import peft
    except ImportError:
        return print("adapters were not compared: this Python has no peft")
    train_adapters(program, models, work, peft)


if __name__ == "__main__":
    main()
