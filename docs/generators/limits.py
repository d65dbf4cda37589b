# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/limits.md: every limit on what peers may fill."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from cometmq.broker.limits import LIMITS as BROKER_LIMITS
from cometmq.broker.settings import BrokerSettings
from cometmq.namesrv.limits import LIMITS as NAMESRV_LIMITS
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.codes import ResponseCode
from cometmq.runtime.limits import FRAME_LIMITS, HANDSHAKE_LIMITS, LIMIT_TABLE_FAMILIES, Limit

from .markdown import code, notice, table

INTRODUCTION: Final = """\
Every table of a server that its peers can fill has a limit, so that no peer can exhaust its memory
or disk. An entry above a limit gets an answer whose remark begins with `limit reached`, and names
the limit and its setting; the event `limit.reached` names the peer. All these settings can be
changed at run time.

A limit of *all peers together* is also a limit per peer: `peerShareMax` (50 by default) is the
percentage of it that one peer may fill, so that others can still add entries. A peer is an account
or, without access control, an address (of IPv6, a network of 64 bits). What a peer has added is
counted since the start of the program, and it is refused only if the whole table is that full.
Entries that exist are never refused: a client whose group or offset is known goes on at every
limit.
"""

CONNECTIONS: Final = """\
Connections, unanswered requests and unread answers have limits of their own:
[settings of the broker](settings-broker.md), [of the name server](settings-namesrv.md).
"""

_SECTIONS: Final[Sequence[tuple[str, Sequence[Limit], type[msgspec.Struct]]]] = (
    ("Broker", BROKER_LIMITS, BrokerSettings),
    ("Name server", NAMESRV_LIMITS, NamesrvSettings),
)

_FIXED: Final[Sequence[tuple[str, Sequence[Limit]]]] = (
    ("Frames and TLS handshakes, of any server", (*FRAME_LIMITS, *HANDSHAKE_LIMITS)),
)


def page() -> str:
    """Return the page with all limits."""
    lines = ["# Limits", "", notice("limits"), "", *INTRODUCTION.split("\n")]
    names = [family.name for family in LIMIT_TABLE_FAMILIES]
    metrics = ", ".join(map(code, names))
    lines += [f"The metrics {metrics} show each limit under the label `limit`.", ""]
    lines += CONNECTIONS.split("\n")
    for title, limits, settings in _SECTIONS:
        head = ("limit", "what is counted", "of", "default", "setting", "code", "above it")
        lines += [f"## {title}", "", *table(head, _rows(limits, settings)), ""]
    columns = ("limit", "what is counted", "of", "bound", "above it")
    for title, limits in _FIXED:
        rows = (
            (code(it.name), it.counts, it.scope.value, str(it.fixed), it.above) for it in limits
        )
        lines += [f"## {title}", "", *table(columns, rows), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _rows(limits: Sequence[Limit], settings: type[msgspec.Struct]) -> Iterable[tuple[str, ...]]:
    defaults = _defaults(settings)
    for limit in limits:
        bound = defaults[limit.setting] if limit.setting else limit.fixed
        yield (
            code(limit.name),
            limit.counts,
            limit.scope.value,
            str(bound),
            code(limit.setting) if limit.setting else "",
            "" if limit.answer is None else f"{limit.answer:d} {ResponseCode(limit.answer).name}",
            limit.above,
        )


@cache
def _defaults(settings: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.encode_name: field.default for field in msgspec.structs.fields(settings)}
