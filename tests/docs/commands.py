#!/usr/bin/env python3
"""Runs the commands of a page and looks for the output that the page shows: commands.py PAGE FOLDER_OF_PROGRAMS
Checks that the programs have the flags of all commands of pages: commands.py --flags FOLDER_OF_PROGRAMS PAGES...

Commands are indented lines that begin with build/release/bin/; the next indented block without one is their output. Each of its
lines must be printed, where "..." stands for anything. "# after one byte was changed" changes the last byte of a file of the
checkpoint that the command names. Commands with words in capitals, such as FOLDER, are examples to fill in.
"""

import functools
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = "build/release/bin/"


def blocks(page):
    text = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    return [[line[4:] for line in block.splitlines()] for block in re.findall(r"(?:^    .*\n)+", text, flags=re.M)]


def damage(folder, command):
    run = re.search(r"out/\S+", command)[0]
    file = sorted(pathlib.Path(folder, run).glob("step_*/model/*"))[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def main(page, programs):
    failed = ran = 0
    with tempfile.TemporaryDirectory() as folder:
        link = pathlib.Path(folder) / PROGRAM
        link.parent.mkdir(parents=True)
        link.symlink_to(programs)
        output, shown = "", True
        for block in blocks(pathlib.Path(page).read_text()):
            if block[0].startswith(PROGRAM):
                commands = [line for line in block if not re.search(r"\b[A-Z]{4,}\b", line.split("#")[0])]
                shown = len(commands) == len(block)
                output = "" if shown else None
                for command in commands:
                    if "# after one byte was changed" in command:
                        damage(folder, command)
                    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=600)
                    output, ran = done.stdout + done.stderr, ran + 1
                    if done.returncode < 0 or done.returncode > 2:  # 1 and 2: failures that a page may show
                        print(f"{page}: exit code {done.returncode} of {command}\n{output}")
                        failed = 1
            elif output:
                for line in block:
                    pattern = ".*".join(map(re.escape, line.split("...")))
                    if line.strip("... ") and not re.search(pattern, output):
                        print(f"{page}: not printed by the command before: {line}\n{output}")
                        failed = 1
                output = None
    print(f"{page}: {ran} commands")
    return failed or not ran


def calls(page):
    """Program, subcommands and arguments of each command of a page; `sherd run ... -- train_gpt ...` is two."""
    text = "\n".join("\n".join(block) for block in blocks(page)).replace("\\\n", " ")
    for call in re.finditer(PROGRAM + rf"(.*?)(?={PROGRAM}|#|$)", text, flags=re.M):
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
            # Of another build; and GoogleTest's, which would run all tests.
            if not (programs / program).exists() or program.startswith("test_"):
                continue
            ask = "--help" if sub else "--help-all"
            known = help_of(programs / program, *sub, ask)
            count += 1
            for flag in arguments:
                if re.fullmatch("--[a-z-]+", flag) and not re.search(flag + "(?![a-z-])", known):
                    print(f"{page}: '{' '.join([program, *sub])}' has no flag {flag}")
                    failed = 1
    print(f"flags of {count} commands")
    return failed or not count


if sys.argv[1] == "--flags":
    sys.exit(check_flags(pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]))
sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve()))
