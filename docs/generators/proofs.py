# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/proofs.md: RocketMQ 4.9.4's features and the tests of each.

The tests are named in tests/compat/proofs.toml.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cometmq.peers.probes import PROBES
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import COMMANDS

from .codes import receivers
from .markdown import code, notice, table

ROOT: Final = Path(__file__).resolve().parents[2]
PROOFS: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(
    (ROOT / "tests" / "compat" / "proofs.toml").read_text(encoding="utf-8")
)
CODES: Final = {RequestCode(int(number)): text for number, text in PROOFS["codes"].items()}
SAME: Final = "same"
SAME_ANSWERS: Final = "test_same_answers.py::test_both_answer_alike"
PROBED: Final = Counter(probe.code for probe in PROBES)
"""Number of requests with each code that the tests send to both implementations."""
DEAD: Final = "3, as in 4.9.4: no handler"


def page() -> str:
    lines = [
        "# RocketMQ's features and their tests",
        "",
        notice("proofs"),
        "",
        "[What bites when you migrate](../compatibility.md) lists the differences.",
        "",
        *_parts(),
    ]
    return "\n".join(lines) + "\n"


def test_of(text: str) -> str:
    """Return the test that an entry of proofs.toml names, as `file::function`."""
    return SAME_ANSWERS if text == SAME else text


def _parts() -> list[str]:
    return [
        "## Request codes",
        "",
        f"All {len(CODES)} codes of RocketMQ 4.9.4. *Compared* is the number of requests with that",
        "code that are sent to both CometMQ and a Java node; the two answers must have the same",
        "response code, remark, fields and body.",
        "",
        *table(("code", "name", "answered by", "compared", "proved by"), map(_code_row, CODES)),
        "",
        "## Commands of mqadmin",
        "",
        f"All {len(PROOFS['commands'])}, run by RocketMQ's own tool on CometMQ and on Java.",
        "",
        *table(("command", "proved by"), _rows("commands", code)),
        "",
        "## Features of the Java client",
        "",
        "The same programs, with the client 4.9.4, get the same results from CometMQ and Java.",
        "",
        *table(("feature", "proved by"), _rows("features", str)),
    ]


def _code_row(number: RequestCode) -> list[str]:
    link = f"[{int(number)}](commands.md#{int(number)}-{number.name.lower()})"
    return [
        link if number in COMMANDS else str(int(number)),
        number.name,
        ", ".join(receivers(number)) or DEAD,
        str(PROBED[number] or ""),
        _link(test_of(CODES[number])),
    ]


def _rows(part: str, cell: Callable[[str], str]) -> list[list[str]]:
    return [[cell(name), _link(text)] for name, text in PROOFS[part].items()]


def _link(test: str) -> str:
    file, _, function = test.partition("::")
    return f"[{file.removesuffix('.py')}](../../tests/compat/{file}) `{function}`"
