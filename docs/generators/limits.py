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
from cometmq.remoting.frame import FRAME_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.frames import FRAME_PATIENCE_MS
from cometmq.remoting.transport.peer.tls_state import (
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_TIMEOUT_MS,
    HOST_MIN,
    HOST_SHARE,
)
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.remoting.transport.tls import IDLE_RECORD_BYTES, IDLE_RECORDS_MAX
from cometmq.runtime.limits import LIMIT_TABLE_FAMILIES, Limit, Scope

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

_CLOSED: Final = "The connection is closed (`connection.refused`)."

_HANDSHAKES: Final[tuple[Limit, ...]] = (
    Limit(
        "handshakes",
        f"Incomplete TLS handshakes, in percent of the connections; at least {HOST_MIN}",
        Scope.HOST, _CLOSED, fixed=100 // HOST_SHARE,
    ),
    Limit(
        "handshake_bytes", "Bytes sent before the TLS handshake is complete", Scope.CONNECTION,
        _CLOSED, fixed=HANDSHAKE_BYTES_MAX,
    ),
    Limit(
        "handshake_ms", "Milliseconds of a TLS handshake, without those in which it waits",
        Scope.CONNECTION, _CLOSED, fixed=HANDSHAKE_TIMEOUT_MS,
    ),
    Limit(
        "idle_records",
        "TLS records without data, as changes of the key; one more per"
        f" {IDLE_RECORD_BYTES >> 20} MiB of data",
        Scope.CONNECTION, _CLOSED, fixed=IDLE_RECORDS_MAX,
    ),
)  # fmt: skip

_FRAMES: Final[tuple[Limit, ...]] = (
    Limit(
        "frame_bytes", "Bytes of a frame after its first four", Scope.CONNECTION, _CLOSED,
        fixed=FRAME_BYTES_MAX,
    ),
    Limit(
        "header_bytes", "Bytes of the header of a frame", Scope.CONNECTION, _CLOSED,
        fixed=REQUEST_HEADER_BYTES_MAX,
    ),
    Limit(
        "unfinished_frame_bytes", f"Bytes of unfinished frames above {LARGE_BYTES >> 10} KB",
        Scope.TOTAL,
        "Above a quarter of it, connections wait for their turn, by address; one that takes more"
        f" than {FRAME_PATIENCE_MS // 1000} s is closed. Above it, those with the longest are"
        " closed (`connection.overflowed`), first of those that have been served no request; these"
        " make no others wait.",
        fixed=ServerSettings().frames_bytes_max,
    ),
)  # fmt: skip

_FIXED: Final[Sequence[tuple[str, Sequence[Limit]]]] = (
    ("Frames and TLS handshakes, of any server", (*_FRAMES, *_HANDSHAKES)),
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
