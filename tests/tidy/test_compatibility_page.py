# SPDX-License-Identifier: Apache-2.0
"""The page of proofs lists every code and command; the tests that it names exist."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from generators import proofs
from generators.codes import receivers

from cometmq.broker.acl.check import ADMIN_CODES
from cometmq.cli.mqadmin import COMMANDS as OUR_COMMANDS
from cometmq.remoting.codes import RequestCode
from cometmq.testing.remoting.golden import load_exchanges

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "tests" / "compat"
NOT_IN_494 = {18, 225, 351, 361, 999, 9999}
"""Codes that RocketMQ 4.9.4 does not know, captured to record how it rejects them, or from 5.5."""
REFUSED = 3
ACTORS = {"broker": "broker", "namesrv": "name server", "client": "client"}


@pytest.fixture(scope="module")
def captured() -> dict[int, set[str]]:
    """Return the programs of RocketMQ 4.9.4 that served each code in the captured exchanges."""
    found: dict[int, set[str]] = defaultdict(set)
    for exchange in load_exchanges(ROOT / "tests" / "golden", "[0-9]*.jsonl"):
        number = int(exchange.name.partition("-")[0])
        if number in NOT_IN_494:
            continue
        served = found[number]
        if exchange.oneway or (exchange.response and exchange.response.code != REFUSED):
            served.add(ACTORS[exchange.receiver])
    return found


def functions(file: str) -> dict[str, str]:
    text = (COMPAT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begin = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = "\n".join(lines[begin - 1 : node.end_lineno])
    return found


def test_the_page_lists_all_codes_that_need_an_administrator() -> None:
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "need an administrator |" in line)
    assert {int(number) for number in re.findall(r"[0-9]+", row)} == ADMIN_CODES


def test_every_code_of_494_is_listed(captured: dict[int, set[str]]) -> None:
    assert {int(code) for code in proofs.CODES} == set(captured)
    assert len(captured) == 96


def test_nothing_live_is_missing(captured: dict[int, set[str]]) -> None:
    missing = {
        code: programs - set(receivers(RequestCode(code)))
        for code, programs in captured.items()
        if programs - set(receivers(RequestCode(code)))
    }
    assert missing == {}


def test_every_command_is_listed() -> None:
    listed = set(proofs.PROOFS["commands"])
    assert len(listed) == 57
    assert listed <= set(OUR_COMMANDS)


@pytest.mark.parametrize("part", ["codes", "commands", "features"])
def test_tests_that_are_named_exist(part: str) -> None:
    missing = []
    for name, text in proofs.PROOFS[part].items():
        file, _, function = proofs.test_of(text).partition("::")
        if not (COMPAT / file).exists() or function not in functions(file):
            missing.append(f"{name}: {text}")
    assert missing == []


def test_codes_that_are_compared_are_asked() -> None:
    unasked = [
        int(code)
        for code, text in proofs.CODES.items()
        if text == proofs.SAME and not proofs.PROBED[code]
    ]
    assert unasked == []


def test_commands_are_run_by_their_tests() -> None:
    unused = []
    for command, text in proofs.PROOFS["commands"].items():
        file, _, function = text.partition("::")
        known = functions(file)
        helpers = [body for name, body in known.items() if f"{name}(" in known[function]]
        if not any(f'"{command}"' in body for body in [known[function], *helpers]):
            unused.append(f"{command}: {text}")
    assert unused == []
