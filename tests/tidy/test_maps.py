# SPDX-License-Identifier: Apache-2.0
"""The maps of the code name modules and folders that exist."""

import graphlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
READMES: Final = [
    readme
    for pattern in ("libs/*/README.md", "services/*/README.md", "operator/README.md")
    for readme in sorted(ROOT.glob(pattern))
]
BLOCK: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NAME: Final = re.compile(r"`([a-z][a-z0-9_]*(?:/[a-z0-9_]+)*(?:\.py|\.rs)?)`")
PATH: Final = re.compile(r"`([a-z_]+/[a-z_/]+\.py)`")
PACKAGES: Final = [
    package
    for pattern in ("libs/*", "services/*", "operator", "spark", "tests/support")
    for package in ROOT.glob(f"{pattern}/src/cometmq")
]
NO_MODULES: Final = {"cargo", "cometmq", "react", "remoting/commands"}
"""Programs, functions, and modules of other members, of which READMEs speak, too."""
USED: Final = re.compile(r"^use crate::([a-z_]+(?:::[a-z_]+)*)", re.MULTILINE)
ROW: Final = re.compile(r"^\| \[[^]]+\]\(([\w/-]+)\) .* \| ([^|]+) \|$", re.MULTILINE)


def names_below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        yield path.stem
        yield path.name


def dead_names(text: str, folder: Path) -> list[str]:
    known = set(names_below(folder))
    found = NAME.findall(BLOCK.sub("", text))
    return [
        name
        for name in found
        if name not in NO_MODULES and any(part not in known for part in name.split("/"))
    ]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_readmes_name_modules_that_exist(readme: Path) -> None:
    assert dead_names(readme.read_text(), readme.parent) == []


def test_the_map_of_members_names_modules_that_exist() -> None:
    rows = ROW.findall((ROOT / "ARCHITECTURE.md").read_text())
    assert len(rows) > 15
    assert {
        folder: dead for folder, read in rows if (dead := dead_names(read, ROOT / folder))
    } == {}


def test_the_map_names_modules_by_their_path() -> None:
    named = set(PATH.findall(ROW.sub("", (ROOT / "ARCHITECTURE.md").read_text())))
    assert len(named) > 30
    missing = [name for name in named if not any((it / name).exists() for it in PACKAGES)]
    assert sorted(missing) == []


def test_a_dead_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "lanes").mkdir()
    (tmp_path / "lanes" / "lane.py").touch()
    text = "`lanes/lane.py`, `lane` and `writer`:\n```\n`other`\n```\n"
    assert dead_names(text, tmp_path) == ["writer"]


def test_the_files_of_the_native_core_form_no_circle() -> None:
    folder = ROOT / "libs" / "accel" / "rust"
    graph: dict[str, set[str]] = {}
    for path in folder.rglob("*.rs"):
        name = path.relative_to(folder).with_suffix("").as_posix().removesuffix("/mod")
        if not name.startswith("python"):
            code = path.read_text().partition("#[cfg(test)]")[0]
            graph[name] = {found.replace("::", "/") for found in USED.findall(code)}
    assert {"stage", "pull/select"} <= set(graph)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError
