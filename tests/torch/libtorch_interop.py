#!/usr/bin/env python3
"""Exchanges checkpoints and weights of libtorch modules with the same model in Python, both ways.

    python libtorch_interop.py LIBTORCH_GPT

1. libtorch_gpt trains on 3 ranks, with Muon and with AdamW, saves a checkpoint and exports its weights. The model below,
   which has the same modules, takes them by load_state_dict(); torch.distributed.checkpoint reads `model` and `optim` into
   plain tensors and into DTensors on 1 and 2 processes. All bits are those of the export.
2. The run goes on from its checkpoint over other numbers of ranks and under other strategies, with the same weights.
3. In Python the loaded model has the loss that libtorch_gpt has next, and torch.optim.AdamW, with the state from the
   checkpoint, takes the step that libtorch_gpt takes when it goes on: both to rounding.
4. What torch.save_file and HuggingFaceStorageWriter write is read by libtorch_gpt on 1, 3 and 4 ranks, bit for bit.

Ends with exit code 0 when all of that holds, and prints what was compared. docs/interop.md has results.
"""

import json
import pathlib
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "interop"))
from pytorch_interop import STEPS, exported, put_together, require, require_same, run, work, work_in_process  # noqa: E402

DIM, LAYERS, HEADS, SEQ, VOCAB = 22, 2, 2, 15, 256  # pytorch_interop.MODEL
TOLERANCE = 2e-6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM, eps=1e-6), nn.RMSNorm(DIM, eps=1e-6)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mid = x + self.proj(attended.transpose(1, 2).reshape(b, t, d))
        return mid + self.out(nn.functional.gelu(self.fc(self.norm2(mid)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM, eps=1e-6), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, text):
    tokens = torch.tensor(list(text), dtype=torch.long)
    return nn.functional.cross_entropy(model(tokens[None, :-1])[0], tokens[1:])


def losses_in(metrics):
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def adamw_of(model, folder):
    """torch.optim.AdamW as libtorch_gpt has it, going on from a checkpoint, as docs/interop.md says."""
    weights = list(model.parameters())
    groups = [{"params": [p for p in weights if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(model, adamw, options=options)
    tensors = {k: v.reshape(1) if k.endswith(".step") else v for k, v in state.items() if torch.is_tensor(v)}
    dcp.load({"optim": tensors}, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    state.update({k: v.reshape(()) if k.endswith(".step") else v for k, v in tensors.items()})
    set_optimizer_state_dict(model, adamw, state, options=options)
    return adamw


def check_checkpoint(program, folder, optimizer, common):
    saved, exports = folder / "saved", folder / "weights.safetensors"
    run(program, *common, "--ranks", 3, "--optimizer", optimizer, "--steps", STEPS, "--save", saved,
        "--export-weights", exports)
    weights, step = load_file(exports), saved / f"step_{STEPS:08d}"
    require_same(put_together(step / "model"), weights, f"{optimizer}: pieces of the checkpoint")
    model = Gpt()
    model.load_state_dict(weights, strict=True)
    require_same(model.state_dict(), weights, f"{optimizer}: load_state_dict()")
    state = Gpt().state_dict()
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(step / "model")), no_dist=True)
    require_same(state, weights, f"{optimizer}: a state_dict() loaded by torch.distributed.checkpoint")
    for ranks, strategy in ((1, "zero3"), (2, "zero2"), (4, "zero1"), (6, "zero3")):
        again = folder / "again.safetensors"
        run(program, *common, "--ranks", ranks, "--strategy", strategy, "--optimizer", optimizer, "--steps", STEPS,
            "--resume", saved, "--export-weights", again)
        require_same(load_file(again), weights, f"{optimizer}: resumed on {ranks} ranks under {strategy}")
    return model, step


def check_next_step(program, folder, model, step, common, text):
    """AdamW's next step, in Python and in libtorch_gpt on another number of ranks."""
    metrics, after = folder / "metrics", folder / "after.safetensors"
    run(program, *common, "--ranks", 2, "--optimizer", "adamw", "--steps", STEPS + 1, "--resume", folder / "saved",
        "--metrics", metrics, "--export-weights", after)
    adamw = adamw_of(model, step / "optim")
    loss = loss_of(model, text)
    theirs = losses_in(metrics)[STEPS + 1]
    require(abs(loss.item() - theirs) <= TOLERANCE * theirs, f"loss {loss.item()} in Python, {theirs} in libtorch_gpt")
    loss.backward()
    adamw.step()
    for name, tensor in load_file(after).items():
        far = (model.state_dict()[name] - tensor).abs().max().item()
        require(far <= TOLERANCE, f"after a step of AdamW {name} is {far} away")
    print(f"AdamW goes on in Python: loss {loss.item():.7f} and {theirs:.7f}, weights within {TOLERANCE}")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        # One window, so that every sequence is the same.
        text = b"a shard of a pot"
        require(len(text) == SEQ + 1, "the text is one window")
        (root / "text").write_bytes(text)
        common = ["--data", root / "text", "--batch", 12, "--threads", 1, "--grad-clip", 0, "--lr", 3e-3]
        for optimizer in ("muon", "adamw"):
            folder = root / optimizer
            folder.mkdir()
            model, step = check_checkpoint(program, folder, optimizer, common)
            weights, optim = dict(model.state_dict()), put_together(step / "optim")
            changed = {key: torch.sin(t * 1e3) for key, t in weights.items()}
            work(0, 1, folder, {"model": weights, "optim": optim}, changed)
            mp.spawn(work_in_process, (2, folder, {"model": weights, "optim": optim}, changed), nprocs=2)
            print(f"{optimizer}: {len(weights)} weights, {len(optim)} states: equal bits in load_state_dict(), in "
                  "torch.distributed.checkpoint on 1 and 2 processes, and resumed on 1, 2, 4 and 6 ranks")
        check_next_step(program, folder, model, step, common, text)
        save_file(changed, folder / "torch1" / "by_save_file.safetensors")
        forms = [form for form in sorted(folder.glob("torch?/*")) if "bf16" not in form.name]
        for form in forms:
            for ranks in (1, 3, 4):
                require_same(exported(program, folder, form, ranks), changed, f"{form.name} read on {ranks} ranks")
        print(f"{len(forms)} forms that Python writes, read on 1, 3 and 4 ranks: equal bits")


if __name__ == "__main__":
    main()
