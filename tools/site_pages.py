"""Makes the pages of the site from the README files: links into docs/ become links to pages, links to sources
become links to the repository's files as copied pages.

usage: python tools/site_pages.py FOLDER
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def source_page(folder, path):
    """A source file as a page of its own, so that a link to it leads somewhere."""
    target = folder / "sources" / (str(path.relative_to(ROOT)).replace("/", ".") + ".md")
    target.parent.mkdir(exist_ok=True)
    fence = "````" if "```" in path.read_text(errors="replace") else "```"
    target.write_text(f"# {path.relative_to(ROOT)}\n\n{fence}{path.suffix[1:] or 'text'}\n{path.read_text(errors='replace')}\n{fence}\n")
    return f"sources/{target.name}"


def relink(folder, text, here):
    """The links of a page that lay in `here` (a folder of the repository) and lies at the top of the site
    now."""

    def new(m):
        link, _, anchor = m[1].partition("#")
        path = (here / link).resolve()
        tail = f"#{anchor}" if anchor else ""
        if path.parent == ROOT / "docs":
            return f"]({path.name}{tail})"
        if path == ROOT / "README.md":
            return f"](index.md{tail})"
        if path == ROOT / "README.zh.md":
            return f"](index.zh.md{tail})"
        if path.is_file() and path.suffix not in (".svg", ".png"):
            return f"]({source_page(folder, path)}{tail})"
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
            return f"]({path.name})"
        return m[0]  # MkDocs says that it leads nowhere

    return LINK.sub(new, text)


def main(folder):
    folder = Path(folder)
    for page in sorted(folder.glob("*.md")):
        page.write_text(relink(folder, page.read_text(), ROOT / "docs"))
    for name, page in (("README.md", "index.md"), ("README.zh.md", "index.zh.md")):
        (folder / page).write_text(relink(folder, (ROOT / name).read_text(), ROOT))


if __name__ == "__main__":
    main(sys.argv[1])
