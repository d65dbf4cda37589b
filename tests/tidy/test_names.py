# SPDX-License-Identifier: Apache-2.0
"""The topics, groups and prefixes of RocketMQ are spelled in only one module of the sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "libs/remoting/src/cometmq/remoting/names.py"
SOURCES = [
    path
    for members in ("libs/*", "services/*", "operator", "spark")
    for path in ROOT.glob(f"{members}/src/**/*.py")
    if path != PLACE
]
PREFIXES = ("%RETRY%", "%DLQ%", "CID_", "RMQ_SYS_", "rmq_sys_")
SUFFIX = "_REPLY_TOPIC"
FORM = re.compile(rf"(?:{'|'.join(PREFIXES)})\S*|\S*{SUFFIX}")


def literals(text: str) -> Iterator[str]:
    """Yield a module's string literals, including parts of f-strings, without its docstrings."""
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


DEFINED = {text for text in literals(PLACE.read_text(encoding="utf-8")) if len(text) > 1}
PARTS = {*DEFINED, *PREFIXES, SUFFIX}


def names_in(text: str) -> set[str]:
    if not may_name(text):
        return set()
    return {word for word in literals(text) if word in DEFINED or FORM.fullmatch(word)}


# A literal may be spelled with escapes, or in parts that are joined.
ESCAPE = re.compile(r"\\[0-7xuUN\n]")
JOINT = re.compile(r"""["']+\s*(?:#[^\n]*\s*)*\\?\s*[bBfFrRuU]*["']+""")


def may_name(text: str) -> bool:
    """Return False if no literal of a module can be a name, so that it need not be parsed."""
    joined = JOINT.sub("", text)
    return bool(ESCAPE.search(text)) or any(part in joined for part in PARTS)


def test_rocketmqs_names_are_defined_in_one_module() -> None:
    assert len(SOURCES) > 300
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in names_in(path.read_text(encoding="utf-8"))
    }
    assert found == set(), "import these from cometmq.remoting.names"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('TOPIC = "TBW102"', {"TBW102"}),
        ('groups = {"FILTERSRV_CONSUMER"}', {"FILTERSRV_CONSUMER"}),
        ('topic = f"%RETRY%{group}"', {"%RETRY%"}),
        ('topic = f"{cluster}_REPLY_TOPIC"', {"_REPLY_TOPIC"}),
        ('GROUP = "CID_RMQ_SYS_NEW"', {"CID_RMQ_SYS_NEW"}),
        ('"""Reads TBW102."""\nhelp = "The topic TBW102."', set()),
        ('GROUP = "CID_" "X"', {"CID_X"}),
        ('GROUP = (\n    "CI"  # a comment\n    "D_X"\n)', {"CID_X"}),
        ('GROUP = "\\x43ID_X"', {"CID_X"}),
        ('separator = "%"', set()),
    ],
)
def test_the_search_finds_names_but_no_prose(source: str, names: set[str]) -> None:
    assert names_in(source) == names
