"""Programs of sherd, plans of training steps, and checkpoints as NumPy arrays (docs/install.md).

    sherd.launch(["train_gpt", "--steps", "20"])          runs a program of the wheel
    sherd.plan(preset="llama3-8b", hardware="h100")       memory and time of a step
    sherd.load_checkpoint("out/run").model["tok.weight"]  a whole tensor
"""

import json
import os
import pathlib
import subprocess

from .checkpoint import Checkpoint, load_checkpoint

__all__ = ["Checkpoint", "launch", "load_checkpoint", "plan", "program"]


def program(name):
    """Returns the path of a program, train_gpt or sherd: of the folder SHERD_BIN if it is set, else of the wheel."""
    folder = pathlib.Path(os.environ.get("SHERD_BIN") or pathlib.Path(__file__).parent / "bin")
    path = folder / name
    if not path.is_file():
        have = sorted(file.name for file in folder.glob("*")) or ["nothing"]
        raise FileNotFoundError(f"'{name}' is not a program of {folder}, which has {', '.join(have)}; choose one of "
                                "those, or set SHERD_BIN to the folder of a build's programs")
    return path


def launch(argv, **options):
    """Runs a program with its arguments and waits for it.

    argv: name and arguments, as ["train_gpt", "--ranks", "4"]. options: of subprocess.run, such as cwd or capture_output.
    Returns a CompletedProcess. Throws CalledProcessError when the exit code is not 0, unless check=False is given.
    """
    name, *arguments = map(str, argv)
    return subprocess.run([program(name), *arguments], **{"check": True, **options})


def plan(**flags):
    """Returns what `sherd plan --json` prints, as a dict. A flag --batch-size 4 is batch_size=4, a switch is compare=True."""
    arguments = []
    for flag, value in flags.items():
        arguments.append("--" + flag.replace("_", "-"))
        if value is not True:
            arguments.append(str(value).lower() if value is False else str(value))
    done = launch(["sherd", "plan", "--json", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return json.loads(done.stdout)
