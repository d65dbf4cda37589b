# SPDX-License-Identifier: Apache-2.0
"""References in comments and docstrings, written `Class.member`, lead to a member that exists."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from tests.tidy.syntax import statements

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = [
    path
    for folder in ("libs", "operator", "services", "tests/support")
    for path in (ROOT / folder).glob("**/src/**/*.py")
]
REFERENCE: Final = re.compile(r"`(?:\w+\.)*([A-Z]\w+)\.([A-Za-z_]\w*)(?:\(\))?`")
EMPTY: Final = {
    "Protocol",
    "Generic",
    "ABC",
    "Struct",
    "StrEnum",
    "IntFlag",
    "IntEnum",
    "NamedTuple",
}
"""Bases from elsewhere that add no member to which a reference leads."""

Known = tuple[set[str], set[str]]
"""The members of a class, and the names of its bases."""


def name_of(node: ast.expr) -> str:
    """Return the last part of a base class's name, without its parameters."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def members_of(node: ast.ClassDef) -> Iterator[str]:
    for it in node.body:
        if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef):
            yield it.name
            yield from (
                one.attr
                for one in ast.walk(it)
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
            )
        elif isinstance(it, ast.ClassDef):
            yield it.name
        elif isinstance(it, ast.Assign | ast.AnnAssign):
            targets = it.targets if isinstance(it, ast.Assign) else [it.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def classes_in(texts: Mapping[Path, str]) -> dict[str, list[Known]]:
    """Return what each class name stands for; several modules may define it."""
    known: defaultdict[str, list[Known]] = defaultdict(list)
    for text in texts.values():
        for node in statements(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                known[node.name].append((set(members_of(node)), set(map(name_of, node.bases))))
    return known


def has_member(known: Mapping[str, list[Known]], name: str, member: str) -> bool:
    """Return whether a class of this name has, or may have inherited, a member."""
    if name not in known:
        return name not in EMPTY
    return any(
        member in members or any(has_member(known, base, member) for base in bases)
        for members, bases in known[name]
    )


def dead_references(texts: Mapping[Path, str]) -> list[str]:
    known = classes_in(texts)
    return [
        f"{path.name}: {name}.{member}"
        for path, text in texts.items()
        for name, member in REFERENCE.findall(text)
        if name in known and not has_member(known, name, member)
    ]


def test_references_to_members_lead_somewhere() -> None:
    assert dead_references({path: path.read_text(encoding="utf-8") for path in SOURCES}) == []


@pytest.mark.parametrize(
    ("reference", "is_dead"),
    [
        ("`Base.run`", False),
        ("`Derived.run()`", False),
        ("`Derived.count`", False),
        ("`Derived.stop`", True),
        ("`Odd.anything`", False),
        ("`Other.stop`", False),
    ],
)
def test_inherited_and_foreign_members_are_known(reference: str, *, is_dead: bool) -> None:
    text = f'''
"""See {reference}."""
class Base(Protocol):
    def run(self): self.count = 1
class Derived(Base): pass
class Odd(Foreign): pass
'''
    assert bool(dead_references({Path("a.py"): text})) == is_dead
