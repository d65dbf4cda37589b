# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/modules.md: what each module decides, from its docstring."""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from .markdown import code, notice, table

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("libs/*/src", "services/*/src", "operator/src", "spark/src")


def page() -> str:
    lines = ["# Modules", "", notice("modules"), ""]
    lines += [
        "The first paragraph of each module's docstring. [The map](../../ARCHITECTURE.md) shows",
        "how the parts fit together.",
    ]
    rows = [(source, path, _summary(path)) for source in _sources() for path in _modules(source)]
    rooms = groupby(rows, key=lambda row: (row[0], row[1].parent))
    for (source, folder), members in rooms:
        title = folder.relative_to(source).as_posix().replace("/", ".")
        lines += ["", f"## {title}", ""]
        lines += table(("module", "what it is"), ((code(p.name), text) for _, p, text in members))
    return "\n".join(lines) + "\n"


def _sources() -> Iterator[Path]:
    for pattern in SOURCES:
        yield from sorted(ROOT.glob(pattern))


def _modules(source: Path) -> list[Path]:
    found = (path for path in source.rglob("*.py") if not path.stem.endswith("_pb2"))
    return sorted(found, key=lambda path: (path.parent, path.name))


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0]
