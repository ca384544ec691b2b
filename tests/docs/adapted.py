"""Commands of pages in the form that runs in seconds on one machine without GPUs: few steps and small shapes, network namespaces for
hosts, a stand-in for Slurm, imitated GPUs (tests/cuda_host). Several processes with GPUs end with the refusal that docs/gpu.md shows."""

import os
import re
import shutil

from page_commands import ROOT

RUN = re.compile(r"(?:[A-Z_]+=\S+ )*(?:(?:mpirun|srun|torchrun) .*)?build/(?:release|debug|cuda)/bin/|gdb -batch|\(umask |export |"
                 r"(?:docs|programs/bench)/\w+\.py|python tests/golden/|scripts/(?:hosts|mpi_overlap)\.sh|scripts/tokenize\.py")
# Words to fill in; the runner has folders of models.
FOLDER = re.compile(r"(--(?:folder|model|tokenizer)) FOLDER")
PLACEHOLDER = re.compile(r"(?:^|[\s/])[A-Z]+(?=[\s/]|$)|\.\.\.")
REFUSAL = "no CUDA device on this machine"
HAS_GPU = os.path.exists("/dev/nvidiactl")
SMALL = "--dim 32 --layers 2 --heads 2 --seq 16 --batch 8"
# Further flags of short runs; the last of equal flags counts.
FURTHER = {
    r".*build/cuda/bin/train_gpt|.*train_gpt_cuda_host": SMALL,
    r".*train_gpt.* --sft ": "--seq 64 --batch 4",
    r".*--from-scratch": "--seq 32 --batch 2",
    r".*--mtp-weight": "--from-scratch --seq 32 --batch 4",
    r"programs/bench/beside_transformers": "--train-gpt build/release/bin/train_gpt --folder llama --rounds 1 --steps 2 --warmup 1 --batch 2 --seq 32",
    r"programs/bench/beside_fsdp2": "--libtorch-gpt build/release/bin/libtorch_gpt --smoke",
    r"programs/bench/muon_beside_adamw": "--rounds 1 --steps 2 --warmup 1 --tokens 512 --seq 64",
    r"programs/bench/soap_beside_heavyball": f"--build build/release --steps 2 {SMALL.replace('--dim 32', '--dim 16')}",
    r"docs/planning.py --time": "--one-round",
    r"programs/bench/torch_(?:ops|muon)": "--device cpu --small --rounds 1",
}
SLURM_JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1"}
PYTHON_PACKAGES = re.compile(r"No module named '(\w+)|needs the Python package `(\w+)`")


class Skipped(Exception):
    """A command that this machine cannot run, with the reason."""


def runs(command):
    """Whether commands.py runs it."""
    return bool(RUN.match(command)) and not PLACEHOLDER.search(FOLDER.sub(r"\1 llama", command))


def shorter(command):
    """Ends after 8 steps, and does every 2 steps what it does now and then."""
    least = lambda most: lambda flag: f"{flag[1]} {min(int(flag[2]), most)}"
    command = re.sub(r"(--steps) (\d+)", least(8), command)
    command = re.sub(r"(--comm \w+)(?!.*--steps)", r"\1 --steps 8", command)
    command = re.sub(r"(build/cuda/bin/train_gpt)(?!.*--steps)", r"\1 --steps 8", command)
    command = re.sub(r"(--(?:save-every|eval-every|check-replicas|verify-step)) (\d+)", least(2), command)
    command = re.sub(r"scripts/mpi_overlap\.sh \d+", "DIM=64 LAYERS=2 scripts/mpi_overlap.sh 1", command)
    return " ".join([command, *(flags for program, flags in FURTHER.items() if re.match(program, command))])


def refused(command):
    """Whether it needs a GPU that no imitation is."""
    return "--device cuda" in command and (bool(re.match(r"(?:\w+=\S+ )*(?:mpirun|srun|torchrun) ", command)) or "libtorch_gpt" in command)


def adapted(command):
    """The command for this machine. @throws Skipped"""
    if refused(command):
        if HAS_GPU:
            raise Skipped("needs more GPUs than there are, perhaps")
        command = re.sub(r"(-np|--nproc-per-node|--ranks) \d+", r"\1 2", command).replace("build/cuda", "build/release")
        command = command.replace("--nnodes 2", "--nnodes 1").replace("host0:29400", "localhost:0").replace("host0", "localhost")
    if command.startswith("mpirun --hostfile"):
        command = f"scripts/hosts.sh 2 scripts/hosts.sh launcher {command}"
    if command.startswith("scripts/hosts.sh") and os.geteuid() != 0:
        raise Skipped("network namespaces need root")
    words = [word for word in command.split() if "=" not in word]
    if words[0].isalpha() and words[0] not in ("export", "umask") and not shutil.which(words[0], path=environment(".")["PATH"]):
        raise Skipped(f"{words[0]} is missing")
    model = "deepseek" if "--mtp-weight" in command else "llama"
    return FOLDER.sub(rf"\1 {model}", command).replace("/shared/", "shared/")


def environment(folder, slurm=False):
    """Of a command in `folder`: Python is that of SHERD_PYTHON, and Slurm's programs are in tests/scripts/slurm. `slurm`: in a job of two tasks."""
    python = os.path.dirname(os.environ.get("SHERD_PYTHON", ""))
    return os.environ | {
        "HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "PATH": ":".join(filter(None, [python, str(ROOT / "tests/scripts/slurm"), os.environ["PATH"]])),
        # Runs as root, with more ranks than cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "SHERD_HOST_CUDA_DEVICES": os.environ.get("SHERD_HOST_CUDA_DEVICES", "8"),
        **(SLURM_JOB if slurm else {})}
