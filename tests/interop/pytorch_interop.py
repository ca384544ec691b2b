#!/usr/bin/env python3
"""Exchanges checkpoints and weights with PyTorch, both ways, and compares bits.

    python pytorch_interop.py TRAIN_GPT

1. train_gpt trains on 4 ranks with Muon and AdamW, saves checkpoints and exports its weights.
   - Every tensor file opens with safetensors' safe_open; pieces tile every tensor exactly once.
   - torch.distributed.checkpoint (HuggingFaceStorageReader) loads `model` and `optim` into plain tensors and
     into DTensors, Shard(0) and Shard(1), on 1, 2 and 3 processes.
   - Exports in fp32, bf16 and fp16, as a file and as a Hugging Face folder, are what PyTorch rounds to.
2. HuggingFaceStorageWriter saves changed weights from 1, 2 and 3 processes in all its forms; train_gpt reads
   them and exports what it read.

Ends with exit code 0 when all bits agree, and prints what was compared. docs/interop.md has results.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import safetensors
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

# Small, and cut unevenly everywhere: 4 and 3 ranks divide neither rows nor elements of most tensors.
MODEL = ["--dim", "22", "--layers", "2", "--heads", "2", "--seq", "15"]
STEPS = 3
INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def same_bits(a, b):
    """The same dtype, shape and bytes; NaNs included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    kind = INTEGER[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def require(ok, what):
    if not ok:
        raise AssertionError(what)


def require_same(got, want, where):
    require(set(got) == set(want), f"{where}: names differ: {sorted(set(got) ^ set(want))}")
    for name, tensor in want.items():
        require(same_bits(got[name], tensor), f"{where}: {name} differs")


def run(train_gpt, *flags):
    command = [train_gpt, *MODEL, "--quiet", *map(str, flags)]  # later flags hold
    done = subprocess.run(command, capture_output=True, text=True)
    require(done.returncode == 0, f"{' '.join(command)}\n{done.stderr}")


def exported(train_gpt, folder, weights, ranks):
    """What train_gpt reads from `weights`, as it exports it."""
    out = folder / "out.safetensors"
    run(train_gpt, "--steps", 0, "--seed", 99, "--ranks", ranks, "--batch", ranks, "--init-weights", weights,
        "--export-weights", out)
    return load_file(out)


def put_together(folder):
    """The whole tensors of a folder of pieces, by safe_open and saved_offsets alone."""
    wholes, seen = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            require(set(offsets) == set(file.keys()), f"{path}: DCP_SHARDING_INFO names other tensors")
            header = header_of(path)
            for name in file.keys():
                piece, at = file.get_tensor(name), offsets[name]["saved_offsets"]
                shape = header[name]["global_shape"]
                whole = wholes.setdefault(name, torch.zeros(shape, dtype=piece.dtype))
                times = seen.setdefault(name, torch.zeros(shape, dtype=torch.int32))
                box = tuple(slice(o, o + n) for o, n in zip(at, piece.shape))
                whole[box] = piece
                times[box] += 1
    for name, times in seen.items():
        require(bool((times == 1).all()), f"{folder}: the pieces of {name} do not tile it")
    return wholes


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length])


# ---- in every process of a group


def spread(tensor, mesh, dim):
    """Cut along `dim`, as unevenly as torch cuts; what has no such dimension is replicated."""
    place = Shard(dim) if tensor.dim() > dim else Replicate()
    return distribute_tensor(tensor, mesh, [place])


def load(folder, like, **options):
    state = {name: torch.full_like(t, float("nan")) for name, t in like.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)), **options)
    return state


def check_loads(mesh, folder, want, where):
    require_same(load(folder, want), want, f"{where}, plain tensors")
    for dim in (0, 1):
        state = {name: spread(torch.full_like(t, float("nan")), mesh, dim) for name, t in want.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))
        whole = {name: t.full_tensor() for name, t in state.items()}
        require_same(whole, want, f"{where}, Shard({dim})")


def save_forms(mesh, state, out):
    """One folder for each way that PyTorch can write a state dict."""
    in_two = {"fqn_to_index_mapping": {name: 1 + i % 2 for i, name in enumerate(sorted(state))}}
    half = {name: t.to(torch.bfloat16) for name, t in state.items()}

    def save(form, tensors, **options):
        dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(str(out / form), **options))

    def cut(tensors, dim):
        return {name: spread(t, mesh, dim) for name, t in tensors.items()}

    if mesh.size() == 1:
        save("whole", state)
        save("whole in two files", state, **in_two)
        save("whole in bf16", half)
        return
    save("Shard(0)", cut(state, 0), save_distributed=True)
    save("Shard(1)", cut(state, 1), save_distributed=True)
    save("two files a rank", cut(state, 0), save_distributed=True, **in_two)
    save("Shard(0) in bf16", cut(half, 0), save_distributed=True)
    save("consolidated", cut(state, 0), save_distributed=True, enable_consolidation=True)
    save("consolidated in two files", cut(state, 0), save_distributed=True, enable_consolidation=True, **in_two)


def work(rank, processes, folder, wholes, changed):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{processes}", rank=rank,
                            world_size=processes)
    mesh = init_device_mesh("cpu", (processes,))
    for part, want in wholes.items():
        check_loads(mesh, folder / "saved" / f"step_{STEPS:08d}" / part, want, f"{part} on {processes}")
    save_forms(mesh, changed, folder / f"torch{processes}")
    dist.barrier()
    dist.destroy_process_group()


def work_in_process(rank, *args):
    """work() in a process of its own. It leaves without the interpreter's end, in which threads of gloo sometimes abort."""
    work(rank, *args)
    sys.stdout.flush()
    os._exit(0)


# ---- in this process


def check_names(model, optim):
    """Every parameter has the state of one optimizer, and each optimizer has some."""
    states = {}
    for key in optim:
        match = re.fullmatch(r"optim\.state\.(.+)\.(\w+)", key)
        require(match and match[1] in model, f"optim holds {key}")
        states.setdefault(match[1], set()).add(match[2])
        want = torch.Size([1]) if match[2] == "step" else model[match[1]].shape
        require(optim[key].shape == want, f"{key} has shape {optim[key].shape}")
    kinds = {frozenset(keys) for keys in states.values()}
    require(set(states) == set(model), "a parameter has no optimizer state")
    require(kinds == {frozenset({"momentum_buffer"}), frozenset({"exp_avg", "exp_avg_sq", "step"})},
            f"kinds of optimizer state: {kinds}")


def check_codes(train_gpt, folder):
    """State in 8 bits: PyTorch's values of codes and scales are those that train_gpt converts them to."""
    codes, wide = folder / "codes", folder / "wide"
    common = ["--data", folder / "text", "--dim", 64, "--batch", 12, "--steps", STEPS]
    for optimizer in ("adamw", "muon"):
        run(train_gpt, *common, "--ranks", 3, "--optimizer", optimizer, "--state-dtype", "i8", "--save", codes, "--overwrite")
        run(train_gpt, *common, "--ranks", 2, "--resume", codes, "--state-dtype", "fp32", "--convert-forms", "--save", wide,
            "--overwrite")
        stored, want = (put_together(place / f"step_{STEPS:08d}" / "optim") for place in (codes, wide))
        checked = 0
        for name, c in stored.items():
            for suffix, power in (("_scale", 1), ("_root_scale", 2)):
                if name + suffix not in stored:
                    continue
                scales = stored[name + suffix]
                values = (c.float().unflatten(-1, (scales.shape[-1], -1)) * scales.unsqueeze(-1)).flatten(-2) ** power
                require(c.element_size() == 1 and same_bits(values, want[name]), f"{name} in 8 bits")
                checked += 1
        require(checked > 8, f"{checked} states in 8 bits")
        print(f"{optimizer}: {checked} states in 8 bits: equal bits in PyTorch")


def check_exports(train_gpt, folder, want):
    """fp32, bf16 and fp16, as a file and as a folder: PyTorch rounds to the same bits."""
    for word, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        rounded = {name: t.to(dtype) for name, t in want.items()}
        file, out = folder / f"{word}.safetensors", folder / f"{word}_folder"
        for target in (file, f"{out}/"):
            run(train_gpt, "--steps", 0, "--ranks", 2, "--init-weights", folder / "weights.safetensors",
                "--export-weights", target, "--export-dtype", word)
        require_same(load_file(file), rounded, f"{word} file")
        require_same(load_file(out / "model.safetensors"), rounded, f"{word} folder")
        require_same(load(out, rounded, no_dist=True), rounded, f"{word} folder, read by DCP")


def check_torch_to_sherd(train_gpt, folder, changed):
    """train_gpt reads all that PyTorch wrote; the 16-bit ones as PyTorch widens them."""
    widened = {dtype: {name: t.to(dtype).float() for name, t in changed.items()}
               for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    save_file({name: t.half() for name, t in changed.items()}, folder / "fp16_by_torch.safetensors")
    places = {folder / "fp16_by_torch.safetensors": widened[torch.float16]}
    for form in sorted(folder.glob("torch?/*")):
        want = widened[torch.bfloat16 if "bf16" in form.name else torch.float32]
        places[form] = want
        if (form / "sharded").exists():  # what the consolidated files were made of
            places[form / "sharded"] = want
    for place, want in places.items():
        for ranks in (1, 3):
            require_same(exported(train_gpt, folder, place, ranks), want, f"{place} read on {ranks} ranks")
    print(f"PyTorch -> train_gpt on 1 and 3 ranks: equal bits, {len(places)} forms:")
    for place in places:
        print(f"  {place.relative_to(folder)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_gpt", type=pathlib.Path)
    train_gpt = str(parser.parse_args().train_gpt.resolve())
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, safetensors {safetensors.__version__}")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").write_text("".join(f"line {i * i % 977} of the text\n" for i in range(600)))
        run(train_gpt, "--data", folder / "text", "--ranks", 4, "--batch", 4, "--optimizer", "muon", "--steps", STEPS,
            "--save", folder / "saved", "--save-every", 2, "--export-weights", folder / "weights.safetensors")
        weights = load_file(folder / "weights.safetensors")
        step = folder / "saved" / f"step_{STEPS:08d}"
        model, optim = put_together(step / "model"), put_together(step / "optim")
        require_same(model, weights, "pieces of the checkpoint")
        check_names(model, optim)
        files = [p.name for part in ("model", "optim") for p in (step / part).iterdir()]
        require(any("model-00002-of-" in f for f in files), "no tensor is cut inside a row: the test is too easy")
        print(f"safe_open: {len(files)} files, {len(model)} weights, {len(optim)} states")

        check_codes(train_gpt, folder)
        changed = {name: torch.sin(t * 1e3) for name, t in weights.items()}
        for processes in (1, 2, 3):
            arguments = (processes, folder, {"model": model, "optim": optim}, changed)
            if processes == 1:
                work(0, *arguments)
            else:
                mp.spawn(work_in_process, arguments, nprocs=processes)
        print("torch.distributed.checkpoint -> plain tensors, Shard(0), Shard(1) on 1, 2, 3 processes: equal bits")
        check_exports(train_gpt, folder, weights)
        print("exports in fp32, bf16 and fp16, file and folder: equal bits")
        check_torch_to_sherd(train_gpt, folder, changed)


if __name__ == "__main__":
    main()
