"""Commands of the site's pages: lines of indented blocks, and code in the text that names a program by its path and gives arguments."""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = r"(?:/|(?:DIR/)?(?:\.ci|build|docs|programs|scripts|tests)/)[\w./-]+"
KNOWN = r"apt|c\+\+|cd|cmake|conan|ctest|docker|export|gdb|kubectl|mpirun|openssl|pip|python3?|sbatch|srun|torchrun|vcpkg"
# Any other word is a program where an option follows.
COMMAND = re.compile(rf"\(?(?:[A-Z_]+=\S* +)*(?:{PROGRAMS}(?=\s|$)|(?:{KNOWN})\s|[a-z][\w.+-]*\s(?:.*\s)?--?[a-z])")
IN_TEXT = re.compile(r"`((?:build/release/bin/\w+(?= [^`]*-)|(?:docs|programs/bench|scripts|tests)/[\w./]+) [^`]+|programs/bench/\w+\.py)`")


class Command(NamedTuple):
    text: str
    comment: str = ""
    input: str = ""


def blocks(page):
    """Indented blocks, as lists of lines; lines that end with a backslash are joined."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    text = re.sub(r"\\\n +", " ", text)
    return [[line[4:] for line in block.splitlines()] for block in re.findall(r"(?:^    .*\n)+", text, flags=re.M)]


def commands_of_block(block):
    """Empty for a block of another kind. Lines that are indented further are the input of the command above."""
    found = []
    for line in block:
        text, comment = re.fullmatch(r"(.*?)(?:\s+# (.*))?", line).groups()
        if found and line.startswith("  "):
            found[-1] = found[-1]._replace(input=found[-1].input + text + "\n")
        elif COMMAND.match(text) and not text.endswith((";", "{", ",")):
            found.append(Command(text, comment or ""))
    return found


def commands_in_text(page):
    prose = re.sub(r"^(?:    |```).*$", "", page, flags=re.M)
    return [Command(" ".join(text.split())) for text in dict.fromkeys(IN_TEXT.findall(prose))]


def commands(page):
    return [command for block in blocks(page) for command in commands_of_block(block)] + commands_in_text(page)


def pages():
    """The pages of the site (packaging/site/pages.py), below ROOT, but for records of measurements: their commands are those of their commits."""
    tops = [top for top in ROOT.iterdir() if not top.name.startswith((".", "build")) and top.name not in ("out", "shared")]
    found = [page for top in tops for page in ([top] if top.suffix == ".md" else top.rglob("*.md"))]
    return sorted(page.relative_to(ROOT).as_posix() for page in found if page.parent != ROOT / "docs/measurements")
