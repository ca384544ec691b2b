#!/usr/bin/env python3
"""The Python package beside the programs: python_test.py [FOLDER_OF_PROGRAMS]; without a folder, the installed wheel.

A run saves on three ranks; load_checkpoint() gives the tensors of --export-weights, refuses a changed byte, and plan() and
launch() give what the programs print. The example of docs/install.md runs. Exit code 77 where numpy or xxhash is missing.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

if len(sys.argv) > 1:
    os.environ["SHERD_BIN"] = sys.argv[1]
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging/python"))
try:
    import numpy
    import sherd
except ModuleNotFoundError as error:
    print(f"SKIPPED: {error.name} is not installed")
    sys.exit(77)


def require(ok, what):
    if not ok:
        raise AssertionError(what)


def exported(file):
    """Tensors of a safetensors file in f32."""
    data = pathlib.Path(file).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {name: numpy.frombuffer(data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]],
                                   "<f4").reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


def main(scratch):
    run, file = f"{scratch}/run", f"{scratch}/weights.safetensors"
    sherd.launch(["train_gpt", "--ranks", 3, "--batch", 6, "--optimizer", "muon", "--steps", 4, "--save", run, "--save-every", 2, "--data", __file__,
                  "--export-weights", file], stdout=subprocess.DEVNULL)
    pathlib.Path(run, "latest").write_text("step_00000002\n")  # as a crash can leave it
    checkpoint = sherd.load_checkpoint(run)
    require(checkpoint.step == 4 and checkpoint.folder.name == "step_00000004", f"step {checkpoint.step} in {checkpoint.folder}")
    require(checkpoint.info, "no info of the run")
    expected = exported(file)
    require(set(checkpoint.model) == set(expected), "other names than the export's")
    for name, tensor in expected.items():
        require(checkpoint.model[name].tobytes() == tensor.tobytes(), f"{name} differs from the export")
    require(any(name.endswith(".momentum_buffer") for name in checkpoint.optim), "no momentum of Muon")
    require(all(numpy.isfinite(tensor).all() for tensor in checkpoint.optim.values()), "state that is not finite")
    require(sherd.load_checkpoint(checkpoint.folder, optim=False).optim == {}, "state that was not wanted")

    shard = next((checkpoint.folder / "model").iterdir())
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    try:
        sherd.load_checkpoint(run)
        require(False, "a changed byte was read")
    except ValueError as error:
        require("is damaged: the checksum of bytes" in str(error), error)

    planned = sherd.plan(preset="llama3-8b", hardware="h100", world=8, batch=16, seq=8192)
    require(planned == json.loads(sherd.launch(["sherd", "plan", "--json", "--preset", "llama3-8b", "--hardware", "h100",
                                                "--world", "8", "--batch", "16", "--seq", "8192"],
                                               capture_output=True).stdout), "plan() differs from sherd plan")
    for wrong in (lambda: sherd.plan(preset="unknown"), lambda: sherd.launch(["no_program"])):
        try:
            wrong()
            require(False, "no error")
        except (ValueError, FileNotFoundError) as error:
            require("choose" in str(error) or "unknown" in str(error), error)
    os.chdir(scratch)
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/install.md"
    exec(re.search(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)[1], {})
    print(f"python: {len(expected)} tensors, {len(checkpoint.optim)} of optimizers; plan with {len(planned)} entries")


with tempfile.TemporaryDirectory() as folder:
    main(folder)
