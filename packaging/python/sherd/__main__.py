"""python -m sherd PROGRAM ARGUMENTS...: replaces this process by a program of the wheel."""

import os
import sys

from . import program


def run(name, arguments):
    try:
        path = program(name)
    except FileNotFoundError as error:
        sys.exit(f"sherd: {error}")
    os.execv(path, [name, *arguments])


def sherd():
    run("sherd", sys.argv[1:])


def train_gpt():
    run("train_gpt", sys.argv[1:])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("sherd: no program is named; run python -m sherd train_gpt --help, or python -m sherd sherd --help")
    run(sys.argv[1], sys.argv[2:])
