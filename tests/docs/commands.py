#!/usr/bin/env python3
"""Runs the commands of a page and looks for the output that the page shows: commands.py PAGE FOLDER_OF_PROGRAMS
Runs the commands of pages, if they have any, for a few steps each, whatever they print: commands.py --short FOLDER_OF_PROGRAMS PAGES...
Checks that the programs have the flags of all commands of the site's pages: commands.py --flags FOLDER_OF_PROGRAMS
Checks that each command of the site's pages is run, here or by a test that elsewhere.txt names: commands.py --covered

After a block of commands, the next indented block is the output of the last one. Each of its lines must be printed, where "..."
stands for anything. "# after one byte was changed" changes the last byte of a file of the checkpoint that the command names. Commands
run in the form of adapted.py, and are skipped, with the reason, where what they need is missing.
"""

import functools
import pathlib
import re
import subprocess
import sys
import tempfile

import adapted
import covered
from page_commands import ROOT, blocks, commands, commands_in_text, commands_of_block, pages
from workplace import prepare

# Built where their libraries are.
OPTIONAL = ("libtorch_gpt", "test_cuda_host_kernels", "train_gpt_cuda_host")


def damage(folder, command):
    run = re.search(r"out/\S+", command)[0]
    file = sorted(pathlib.Path(folder, run).glob("step_*/model/*"))[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def why_missing(output):
    """What the output says of a missing optional part, or nothing."""
    package = adapted.PYTHON_PACKAGES.search(output)
    if package:
        return f"Python has no {package[1] or package[2]}; SHERD_PYTHON names one that has"
    if re.search("ptrace: Operation not permitted|Could not trace", output):
        return "gdb may not trace here"


def run(command, before, folder, short):
    """Returns what it printed. `before`: exports. @throws Skipped; RuntimeError where the exit code is not the expected one"""
    for program in OPTIONAL:
        if f"/{program}" in command.text and not (folder / "build/release/bin" / program).exists():
            raise adapted.Skipped(f"{program} is not built")
    if "one byte was changed" in command.comment:
        damage(folder, command.text)
    length = adapted.shorter if short else str
    text, lines = adapted.adapted(length(command.text)), "\n".join(map(length, command.input.splitlines()))
    done = subprocess.run("\n".join([*before, text]), shell=True, executable="/bin/bash", cwd=folder, capture_output=True, text=True, input=lines,
                          timeout=1200, env=adapted.environment(folder, slurm="srun" in text))
    output = done.stdout + done.stderr
    reason = done.returncode and (output.strip() if done.returncode == 77 else why_missing(output))
    if reason:
        raise adapted.Skipped(reason)
    most = 2 if not short else 1 if command.comment.startswith("after") else 0
    as_expected = 0 <= done.returncode <= most
    if adapted.refused(command.text):
        as_expected = done.returncode > 0 and adapted.REFUSAL in output
    if not as_expected:
        raise RuntimeError(f"exit code {done.returncode} of {text}\n{output}")
    return output


class Page:
    """Runs a page's commands in a folder and counts."""

    def __init__(self, page, folder, short):
        self.page, self.folder, self.short = page, folder, short
        self.ran, self.failed = 0, False

    def fail(self, text):
        print(f"{self.page}: {text}")
        self.failed = True

    def run_all(self, commands):
        """Returns the output of the last one; None where not all ran."""
        exports, output = [], None
        for command in commands:
            if covered.elsewhere(command.text) or not adapted.runs(command.text):
                output = None
                continue
            if command.text.startswith("export "):
                exports.append(command.text)
                continue
            try:
                output = run(command, exports, self.folder, self.short)
                self.ran += 1
            except adapted.Skipped as reason:
                print(f"{self.page}: SKIPPED {command.text}: {reason}")
                output = None
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                self.fail(error)
        return output

    def compare(self, lines, output):
        for line in lines:
            pattern = ".*".join(map(re.escape, line.split("...")))
            if line.strip("... ") and not re.search(pattern, output):
                self.fail(f"not printed by the command before: {line}\n{output}")


def main(path, programs, short=False):
    text = pathlib.Path(path).read_text()
    with tempfile.TemporaryDirectory() as folder:
        page, output = Page(path, pathlib.Path(folder), short), None
        prepare(page.folder, programs)
        for block in blocks(text):
            of_block = commands_of_block(block)
            if of_block:
                output = page.run_all(of_block)
                output = output if len(of_block) == len(block) else None
            elif output and not short:
                page.compare(block, output)
                output = None
        page.run_all(commands_in_text(text))
    if page.ran or not short:
        print(f"{path}: {page.ran} commands")
    return page.failed or not (page.ran or short)


def calls(page):
    """Program, subcommands and arguments of each command of a page; `sherd run ... -- train_gpt ...` is two."""
    text = "\n".join(f"{command.text}\n{command.input}" for command in commands(page))
    folder = "build/(?:release|debug|cuda)/bin/"
    for call in re.finditer(rf"{folder}(.*?)(?={folder}|$)", text, flags=re.M):
        if re.search(r"--[a-z-]+ +$", text[:call.start()][-80:]):  # the value of another program's flag
            continue
        words = call[1].split()
        depth = 1 if words[0] != "sherd" else 3 if words[1:2] == ["ckpt"] else 2
        yield words[:depth], words[depth:]


def check_flags(programs):
    """Each flag of a command is in the help of its program or subcommand."""
    failed = count = 0
    help_of = functools.cache(lambda *command: subprocess.run(command, capture_output=True, text=True).stdout)
    for page in pages():
        for (program, *sub), arguments in calls((ROOT / page).read_text()):
            # Skips programs of another build, and those without --help, which would run.
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


if sys.argv[1] == "--covered":
    sys.exit(covered.check())
if sys.argv[1] == "--flags":
    sys.exit(check_flags(pathlib.Path(sys.argv[2]).resolve()))
if sys.argv[1] == "--short":
    sys.exit(any([main(page, pathlib.Path(sys.argv[2]).resolve(), short=True) for page in sys.argv[3:]]))
sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve()))
