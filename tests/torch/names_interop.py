#!/usr/bin/env python3
"""Names and shapes in files of a libtorch model are those of the same model in Python, both ways.

    python names_interop.py NAMES_NET

The model has BatchNorm (num_batches_tracked has no dimensions), a scalar parameter, a tied head and a module registered twice.
Its export is taken by a strict load_state_dict(), its checkpoint by torch.distributed.checkpoint; what save_file() and
save_model() of Python's safetensors write (all names; one name of each tied tensor) is imported. All bits are equal.
"""

import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file, save_model
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv, self.norm2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.again = self.norm2
        self.tok, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.tok.weight
        self.scale = nn.Parameter(torch.tensor(0.0))


def require_same(have, want, what):
    wrong = sorted(have.keys() ^ want.keys())
    wrong += [k for k in have.keys() & want.keys() if have[k].shape != want[k].shape or not torch.equal(have[k], want[k])]
    if wrong:
        sys.exit(f"{what}: not the same: {wrong}")
    print(f"{what}: {len(want)} tensors, equal shapes and bits")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([program, name], check=True)
        weights = load_file(folder / "weights.safetensors")
        model = Net()
        model.load_state_dict(weights, strict=True)
        require_same(model.state_dict(), weights, "strict load_state_dict()")
        assert model.norm.num_batches_tracked == 2 and model.norm.num_batches_tracked.shape == ()
        state = Net().state_dict()
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder / "run/step_00000002/model")), no_dist=True)
        require_same(state, weights, "torch.distributed.checkpoint")

        changed = {k: t + 1 for k, t in model.state_dict().items()}
        model.load_state_dict(changed)
        save_file({k: t.clone() for k, t in changed.items()}, folder / "all.safetensors")
        save_model(model, str(folder / "one.safetensors"))
        dcp.save({k: t.clone() for k, t in changed.items()}, storage_writer=HuggingFaceStorageWriter(str(folder / "dcp")),
                 no_dist=True)
        forms = [folder / "all.safetensors", folder / "one.safetensors", folder / "dcp"]
        subprocess.run([program, name, *map(str, forms)], check=True)
        for form in forms:
            require_same(load_file(f"{form}.again"), changed, f"{form.name} imported and exported")


if __name__ == "__main__":
    main()
