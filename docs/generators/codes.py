# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/codes.md: response codes, and request codes with their programs."""

from collections.abc import Iterable

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import Service

from .markdown import notice, table


def receivers(code: int) -> list[str]:
    """Return the programs that answer a code."""
    command = COMMANDS.get(code)
    return [] if command is None else [service.value for service in command.services]


def page() -> str:
    """Return the page with the tables of request codes and response codes."""
    counts = ", ".join(
        f"{one.value} {sum(one in command.services for command in COMMANDS.values())}"
        for one in Service
    )
    refused = _names(code for code, command in COMMANDS.items() if not command.has_second_port)
    lines = [
        "# Codes",
        "",
        notice("codes"),
        "",
        f"Request codes answered: {counts}. Every other code is answered with 3",
        "(REQUEST_CODE_NOT_SUPPORTED) and the remark ` request type N not supported`.",
        "",
        "- **yes**: the answer is the same as RocketMQ 4.9.4's, apart from the differences in",
        "  [compatibility.md](../compatibility.md);",
        "- empty: the answer is 3. RocketMQ 4.9.4 has no handler for the code either, or the code",
        "  belongs to RocketMQ 5 or to an older release.",
        "",
        f"The second port (`listenPort` - 2) refuses {refused}.",
        "",
        "## Requests",
        "",
        *table(("code", "name", *(one.value for one in Service)), map(_row, sorted(RequestCode))),
        "",
        "## Answers",
        "",
        *table(
            ("code", "name"),
            ((str(int(code)), _with_aliases(code)) for code in ResponseCode),
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(code: RequestCode) -> list[str]:
    number = str(int(code))
    link = f"[{number}](commands.md#{number}-{code.name.lower()})"
    cells = [link if code in COMMANDS else number, code.name]
    served = receivers(code)
    return cells + ["**yes**" if one.value in served else "" for one in Service]


def _with_aliases(code: ResponseCode) -> str:
    aliases = [name for name, one in ResponseCode.__members__.items() if one is code]
    return ", ".join(aliases)


def _names(codes: Iterable[int]) -> str:
    return " and ".join(f"{RequestCode(code).name} ({int(code)})" for code in sorted(codes))
