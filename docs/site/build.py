# SPDX-License-Identifier: Apache-2.0
"""Build the documentation as a site of HTML files that can be read and searched without a network.

All Markdown files of the repository become pages. Links in them are relative to the file, so that
they also work where the repository is read. In the site, a link to a page leads to its copy; a link
to any other file leads to the repository if `--repository` is given, otherwise it becomes text.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SECTIONS: Final[Mapping[str, str]] = {
    "Guides": "docs/guides/*.md",
    "Concepts": "docs/concepts/*.md",
    "Runbooks": "docs/runbooks/*.md",
    "Reference": "docs/reference/*.md",
    "Bytes": "docs/protocol/*.md",
    "Decisions": "docs/adr/*.md",
    "Overview": "docs/*.md",
    "Project": "**/*.md",
}
"""Titles and pages of the navigation; a page is in the first section that it matches."""
FIRST: Final = "docs/README.md"
PLACES: Final = {FIRST: "index.md"}
"""Pages whose place in the site is not that in the repository."""

_LINK: Final = re.compile(
    r"`[^`\n]+`|"  # code is no link, whatever brackets it has; a link may have code in its text
    r'(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?( "[^"]*")?\)'
)
_DEFINITION: Final = re.compile(r"^(\[[^\]]+\]: )(?!\w+:|#)([^\s#]+)(#\S*)?$", re.MULTILINE)
_FENCED: Final = re.compile(r"(^ *```.*?^ *```\s*?$)", re.DOTALL | re.MULTILINE)


def pages() -> list[str]:
    """Return the paths of all pages: those in git, and the generated ones."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    generated = (ROOT / "docs" / "reference").glob("*.md")
    names = {*listed, *(str(path.relative_to(ROOT)) for path in generated)}
    return sorted(name for name in names if (ROOT / name).exists())


def moved(page: str, target: str, known: Iterable[str], repository: str) -> str | None:
    """Return a link's target as the site has it, or None if it has none."""
    path = (ROOT / page).parent.joinpath(target).resolve()
    inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if not inside or not (inside in known or path.exists()):
        raise SystemExit(f"{page}: {target} does not exist")
    if path.is_dir() and f"{inside}/README.md" in known:
        inside += "/README.md"
    if inside in known or path.suffix == ".png":
        return "../" * (page.count("/") if page != FIRST else 0) + PLACES.get(inside, inside)
    return f"{repository.rstrip('/')}/blob/main/{inside}" if repository else None


def rewritten(page: str, text: str, known: Iterable[str], repository: str) -> str:
    """Return the page with its links adapted to the site."""

    def link(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        found = moved(page, match[2], known, repository)
        rest = f"{match[3] or ''}{match[4] or ''}"
        return f"{match[1]}({found}{rest})" if found else match[1][1:-1]

    lost = set()

    def definition(match: re.Match[str]) -> str:
        found = moved(page, match[2], known, repository)
        if found is None:
            lost.add(match[1][1:-3])
            return ""
        return f"{match[1]}{found}{match[3] or ''}"

    text = _DEFINITION.sub(definition, text)
    for name in lost:
        text = re.sub(rf"\[((?:[^\[\]]|\[[^\]]*\])+)\]\[{re.escape(name)}\]", r"\1", text)
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts).replace("```mermaid", "```text")  # its renderer needs a network


def navigation(names: list[str]) -> str:
    """Return the table of contents, which the first page has."""
    left = [name for name in names if name != FIRST]
    lines = []
    for title, pattern in SECTIONS.items():
        chosen = [name for name in left if Path(name).match(pattern) or pattern == "**/*.md"]
        left = [name for name in left if name not in chosen]
        lines += ["", "```{toctree}", f":caption: {title}", ":hidden:", ":titlesonly:", ""]
        lines += [*(name.removesuffix(".md") for name in chosen), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "site")
    parser.add_argument("--repository", default="", help="address of the repository, for links")
    arguments = parser.parse_args()
    source = arguments.out.with_name(arguments.out.name + "-source")
    for folder in (source, arguments.out):
        shutil.rmtree(folder, ignore_errors=True)
    names = pages()
    known = frozenset(names)
    for name in names:
        path = source / PLACES.get(name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        text = rewritten(name, text, known, arguments.repository)
        path.write_text(text + navigation(names) * (name == FIRST), encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.png"):
        shutil.copy(picture, source / picture.relative_to(ROOT))
    shutil.copy(Path(__file__).with_name("conf.py"), source)
    options = ["-W", "--keep-going", "-q", "-j", "auto", "-b", "html", "-d", f"{source}-trees"]
    sphinx = import_module("sphinx.cmd.build")  # only `make docs` installs it
    status: int = sphinx.main([*options, str(source), str(arguments.out)])
    return status


if __name__ == "__main__":
    sys.exit(main())
