"""Tables of functions in functions.md, from the headers that nn/nn.h includes.

    python docs/functions.py            # writes docs/functions.md
    python docs/functions.py --check    # prints differences; exit code 1 where there are any

A row is a declaration with the first clause of its comment. Functions of namespace detail, operators and functions without
a comment are left out.
"""

import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "functions.md"
BEGIN, END = "<!-- functions: begin, made by docs/functions.py -->\n", "<!-- functions: end -->\n"
DECLARATION = re.compile(r"^(?:inline )?(?:Var|std::vector<Var>|CrossEntropy|GradientError|Tensor|void|[A-Z]\w*)&? (\w+)\(")


def headers():
    """The headers of nn/ itself, in the order of nn.h."""
    return re.findall(r"#include <sherd/(nn/\w+\.h)>", (ROOT / "nn" / "nn.h").read_text())


def arguments(text):
    """Names of the parameters between the parentheses of a declaration."""
    depth, part, parts = 0, "", []
    for c in text:
        depth += c in "(<{" and 1 or c in ")>}" and -1 or 0
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    names = [re.search(r"(\w+)\s*(?:=.*)?$", p.strip(), re.S) for p in parts + [part] if p.strip()]
    return ", ".join(n.group(1) for n in names if n)


def first_clause(comment):
    """The comment up to its first full stop, colon or semicolon, without the verb."""
    text = re.sub(r"^Returns (the )?", "", " ".join(comment))
    return re.split(r"(?<![.\s])[.;:](?: |$)", text)[0].replace("|", "\\|")


def functions(header):
    """(name with arguments, first clause) of each documented function."""
    rows, comment, hidden = [], [], False
    lines = (ROOT / header).read_text().splitlines()
    for i, line in enumerate(lines):
        if line.startswith("namespace detail"):
            hidden = True
        elif line.startswith("}  // namespace detail"):
            hidden = False
        if line.startswith("///"):
            comment.append(line[3:].strip())
            continue
        found = DECLARATION.match(line)
        if found and comment and not hidden and not found.group(1).startswith("operator"):
            rest = "\n".join(lines[i:])[found.end():]
            depth, end = 1, 0
            while depth:
                depth += (rest[end] == "(") - (rest[end] == ")")
                end += 1
            rows.append((f"{found.group(1)}({arguments(rest[:end - 1])})", first_clause(comment)))
        if line and not line.startswith(" "):
            comment = []
    return rows


def tables():
    text = BEGIN
    for header in headers():
        lines = (ROOT / header).read_text().splitlines()
        rows = functions(header)
        if not rows:
            continue
        title = first_clause([lines[0].removeprefix("// ")])
        text += f"\n### {title}\n\n`{header}`\n\n| function | computes |\n|---|---|\n"
        text += "".join(f"| `{name}` | {what} |\n" for name, what in rows)
    return text + "\n" + END


def main():
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN)], page[page.index(END) + len(END):]
    made = before + tables() + after
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made)
        return 0
    difference = list(difflib.unified_diff(page.splitlines(), made.splitlines(), "docs/functions.md", "the headers",
                                           lineterm=""))
    print("\n".join(difference))
    if difference:
        print("docs/functions.md is not what the headers say; run python docs/functions.py")
    return 1 if difference else 0


sys.exit(main())
