"""Hooks of MkDocs: the site has the tree's pages under their paths, and its navigation is the index in docs/README.md.

Links between pages work on the site as they do in the tree. Files that pages link to, such as samples, are on the site, too.
"""

import pathlib
import re
import subprocess

from mkdocs.structure.files import File

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ROOT = pathlib.Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"


def linked(page):
    """Files of the tree that a page links to, as paths below the root."""
    for target in LINK.findall((ROOT / page).read_text()):
        path = (ROOT / page).parent / target
        if not target.startswith(("http:", "https:")) and path.exists():
            yield path.resolve().relative_to(ROOT).as_posix()


def title(page):
    return next(line[2:] for line in (ROOT / page).read_text().splitlines() if line.startswith("# "))


def on_config(config):
    nav, seen = [{"sherd": "README.md"}, {"Index": INDEX}], {"README.md", INDEX}
    section = []
    for line in (ROOT / INDEX).read_text().splitlines():
        if line.startswith("## "):
            section = []
            nav.append({line[3:]: section})
        for target in LINK.findall(line):
            page = ((ROOT / INDEX).parent / target).resolve().relative_to(ROOT).as_posix()
            if page.endswith(".md") and page not in seen:
                seen.add(page)
                section.append({title(page): page})
    config.nav = [entry for entry in nav if all(entry.values())]
    if (ROOT / "build/site-api/docs/html").is_dir():
        config.nav.append({"Headers": "api/index.html"})
    return config


def on_page_content(html, **_):
    """Names in code, such as flags, do not break at their hyphens."""
    html = re.sub(r"<code>(?=[^<\s]{1,28}</code>)", '<code class="name">', html)
    return re.sub(r"(?<=<code>)(--[\w-]+)(?=\s)", r'<span class="name">\1</span>', html)  # a flag with its value


def on_files(files, config):
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                           check=True, capture_output=True, text=True).stdout.split()
    names = {name for name in names if (ROOT / name).is_file()}
    names |= {name for page in sorted(names) for name in linked(page) if (ROOT / name).is_file()}
    for name in sorted(names | set(config.extra_css)):
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files
