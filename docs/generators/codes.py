# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/codes.md: response codes, and request codes with their programs."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from cometmq.broker.handlers import HANDLERS as BROKER_HANDLERS
from cometmq.broker.handlers import VIP_EXCLUDED
from cometmq.client.cluster.broker_requests import CALLBACKS as CLIENT_HANDLERS
from cometmq.namesrv.handlers import HANDLERS as NAMESRV_HANDLERS
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.types import Direction

from .markdown import notice, table

PROGRAMS: Final[Mapping[str, Mapping[int, Any]]] = {
    "broker": BROKER_HANDLERS,
    "name server": NAMESRV_HANDLERS,
    "client": CLIENT_HANDLERS,
}


FORWARDED: Final = frozenset(
    {RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY}
)
"""Requests from tools that the broker forwards to a client."""


def page() -> str:
    """Return the page with the tables of request codes and response codes."""
    counts = ", ".join(f"{name} {len(handlers)}" for name, handlers in PROGRAMS.items())
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
        "- *later*: the header is defined, but no handler exists yet; the answer is 3;",
        "- empty: the answer is 3. RocketMQ 4.9.4 has no handler for the code either, or the code",
        "  belongs to RocketMQ 5 or to an older release.",
        "",
        f"The second port (`listenPort` - 2) refuses {_names(VIP_EXCLUDED)}.",
        "",
        "## Requests",
        "",
        *table(("code", "name", *PROGRAMS), map(_row, RequestCode)),
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
    later = _receivers(code)
    for name, handlers in PROGRAMS.items():
        cells.append("**yes**" if code in handlers else "*later*" if name in later else "")
    return cells


def _receivers(code: RequestCode) -> set[str]:
    """Return the programs that will serve a known code."""
    if code in FORWARDED:
        return {"broker", "client"}
    is_served = any(code in handlers for handlers in PROGRAMS.values())
    command = COMMANDS.get(code)
    if command is None or is_served:
        return set()
    return {"broker" if command.direction is Direction.TO_SERVER else "client"}


def _with_aliases(code: ResponseCode) -> str:
    aliases = [name for name, one in ResponseCode.__members__.items() if one is code]
    return ", ".join(aliases)


def _names(codes: Collection[int]) -> str:
    return " and ".join(f"{RequestCode(code).name} ({int(code)})" for code in sorted(codes))
