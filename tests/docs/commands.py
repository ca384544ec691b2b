#!/usr/bin/env python3
"""Runs the commands of a page and looks for the output that the page shows: commands.py PAGE FOLDER_OF_PROGRAMS
Runs the commands of pages, if they have any, for a few steps each, whatever they print: commands.py --short FOLDER_OF_PROGRAMS PAGES...
Checks that the programs have the flags of all commands of pages: commands.py --flags FOLDER_OF_PROGRAMS PAGES...

Commands are indented lines that begin with build/release/bin/, mpirun on one host, or a script of docs/; the next indented block
without one is their output. Each of its lines must be printed, where "..." stands for anything. "# after one byte was changed"
changes the last byte of a file of the checkpoint that the command names. Commands with words in capitals, such as FOLDER, are
examples to fill in. Flags are also checked of build/cuda/bin/.
"""

import functools
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

PROGRAM = "build/release/bin/"
COMMAND = re.compile(rf"(?:mpirun -n \d+ (?:--bind-to none )?)?{PROGRAM}|docs/\w+\.py ")
# As root, and more ranks than cores.
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(page):
    text = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    text = re.sub(r"\\\n +", " ", text)
    return [[line[4:] for line in block.splitlines()] for block in re.findall(r"(?:^    .*\n)+", text, flags=re.M)]


def damage(folder, command):
    run = re.search(r"out/\S+", command)[0]
    file = sorted(pathlib.Path(folder, run).glob("step_*/model/*"))[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def shorter(command):
    """Ends after 8 steps, and does every 2 steps what it does now and then."""
    least = lambda steps: lambda flag: f"{flag[1]} {min(int(flag[2]), steps)}"
    command = re.sub(r"(--steps) (\d+)", least(8), command)
    command = re.sub(r"(--comm \w+)(?!.*--steps)", r"\1 --steps 8", command)
    command = command.replace("--from-scratch", "--from-scratch --seq 32 --batch 2")
    return re.sub(r"(--(?:save-every|eval-every|check-replicas|verify-step)) (\d+)", least(2), command)


def prepare(folder):
    """What commands read: the pages' own files, a small llama, and tokens."""
    (folder / "docs").symlink_to(ROOT / "docs")
    shutil.copytree(ROOT / "tests/golden/models/llama", folder / "llama")
    config = folder / "llama/config.json"
    config.write_text(re.sub(r'("max_position_embeddings": )\d+', r"\g<1>1024", config.read_text()))
    count = 4000
    header = struct.pack("<3i", 20240520, 1, count) + bytes(1012)
    (folder / "corpus.bin").write_bytes(header + struct.pack(f"<{count}H", *(7 * i % 61 for i in range(count))))


def main(page, programs, short=False):
    failed = ran = 0
    with tempfile.TemporaryDirectory() as folder:
        link = pathlib.Path(folder) / PROGRAM
        link.parent.mkdir(parents=True)
        link.symlink_to(programs)
        prepare(pathlib.Path(folder))
        output, shown = "", True
        for block in blocks(pathlib.Path(page).read_text()):
            if any(map(COMMAND.match, block)):
                commands = [line for line in block if COMMAND.match(line) and not re.search(r"\b[A-Z]{4,}\b", line.split("#")[0])]
                shown = len(commands) == len(block)
                output = "" if shown else None
                for command in commands:
                    if "# after one byte was changed" in command:
                        damage(folder, command)
                    if command.startswith("mpirun") and not shutil.which("mpirun"):
                        continue
                    command = shorter(command) if short else command
                    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=600, env=os.environ | OPEN_MPI)
                    output, ran = done.stdout + done.stderr, ran + 1
                    if done.returncode < 0 or done.returncode > 2 or (short and done.returncode > ("# after" in command)):
                        print(f"{page}: exit code {done.returncode} of {command}\n{output}")
                        failed = 1
            elif output and not short:
                for line in block:
                    pattern = ".*".join(map(re.escape, line.split("...")))
                    if line.strip("... ") and not re.search(pattern, output):
                        print(f"{page}: not printed by the command before: {line}\n{output}")
                        failed = 1
                output = None
    if ran or not short:
        print(f"{page}: {ran} commands")
    return failed or not (ran or short)


def calls(page):
    """Program, subcommands and arguments of each command of a page; `sherd run ... -- train_gpt ...` is two."""
    text = "\n".join("\n".join(block) for block in blocks(page))
    folder = "build/(?:release|cuda)/bin/"
    for call in re.finditer(rf"{folder}(.*?)(?={folder}|#|$)", text, flags=re.M):
        if re.search(r"--[a-z-]+ +$", text[:call.start()][-80:]):  # the value of another program's flag
            continue
        words = call[1].split()
        depth = 1 if words[0] != "sherd" else 3 if words[1:2] == ["ckpt"] else 2
        yield words[:depth], words[depth:]


def check_flags(programs, pages):
    """Each flag of a command is in the help of its program or subcommand."""
    failed = count = 0
    help_of = functools.cache(lambda *command: subprocess.run(command, capture_output=True, text=True).stdout)
    for page in pages:
        for (program, *sub), arguments in calls(pathlib.Path(page).read_text()):
            # Of another build; and those without --help, which would run.
            if not (programs / program).exists() or program.startswith(("test_", "sample_")):
                continue
            ask = "--help" if sub else "--help-all"
            known = help_of(programs / program, *sub, ask)
            if sub == ["plan"]:  # takes those of train_gpt, too
                known += help_of(programs / "train_gpt", "--help-all")
            count += 1
            for flag in arguments:
                if re.fullmatch("--[a-z-]+", flag) and not re.search(flag + "(?![a-z-])", known):
                    print(f"{page}: '{' '.join([program, *sub])}' has no flag {flag}")
                    failed = 1
    print(f"flags of {count} commands")
    return failed or not count


if sys.argv[1] == "--flags":
    sys.exit(check_flags(pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]))
if sys.argv[1] == "--short":
    sys.exit(any([main(page, pathlib.Path(sys.argv[2]).resolve(), short=True) for page in sys.argv[3:]]))
sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve()))
