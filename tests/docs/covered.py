"""The rule that a test runs each command of the site's pages: commands.py, or the test that elsewhere.txt names for it."""

import functools
import pathlib
import re

import adapted
from page_commands import ROOT, commands, pages

LIST = pathlib.Path(__file__).with_name("elsewhere.txt")
KINDS = {
    "ctest": lambda: "\n".join(p.read_text() for p in ROOT.glob("tests/**/CMakeLists.txt")),
    "nightly": (ROOT / "scripts/nightly.sh").read_text,
    "ci": (ROOT / ".ci/run").read_text,
}
NAMED = {"ctest": r"(?:add_test\(NAME |sherd_test\(|sherd_interop\(){}\s", "nightly": r'^ *stage "{}"', "ci": r'^echo "== {}"$'}


@functools.cache
def entries():
    """Pattern of a command's beginning, and the test that runs it."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [re.fullmatch(r"(.*?) +-> (.*)", line).groups() for line in lines]


def elsewhere(command):
    """Patterns of the list that the command matches."""
    return [pattern for pattern, _ in entries() if re.match(rf"\(?(?:[A-Z_]+=\S+ )*(?:{pattern})(?=\s|$)", command)]


def exists(test):
    kind, name = test.split(" ", 1)
    return kind in KINDS and re.search(NAMED[kind].format(re.escape(name)), KINDS[kind](), flags=re.M)


def check():
    problems, used, count = [], set(), 0
    for page in pages():
        text = (ROOT / page).read_text()
        for language in re.findall(r"^ *```(?=\w)(?!(?:cpp|c[+][+]|cmake|python|text)$)(.*)", text, flags=re.M):
            problems.append(f"{page}: code marked '{language}' is not checked; write commands as indented lines")
        for command in commands(text):
            patterns = elsewhere(command.text)
            used.update(patterns)
            count += 1
            if not patterns and not adapted.runs(command.text):
                problems.append(f"{page}: no test runs '{command.text}'; give it a form that tests/docs/commands.py runs, or name the test in {LIST.name}")
    for pattern, test in entries():
        if not exists(test):
            problems.append(f"{LIST.name}: the test '{test}' does not exist")
        if pattern not in used:
            problems.append(f"{LIST.name}: no page has a command '{pattern}'")
    print("\n".join([*problems, f"{count} commands of pages, {len(entries())} patterns of those run elsewhere"]))
    return bool(problems)
