# SPDX-License-Identifier: Apache-2.0
"""Limits on the tables that peers fill: what is counted, the bounds, and the refusals.

A service declares its limits in one table of `Limit`s. Its handlers ask `Limits` before they add an
entry; metrics, the reference page and the tests are derived from the same table.

A limit on all peers together (a limit in total) is also a limit per peer: no peer may fill more
than `peerShareMax` percent of it, so that others can still add entries. A peer is an account, or,
without an account, an address (for IPv6, a network of 64 bits).

The entries of most tables do not say which peer added them. So the entries that a peer adds are
counted from the start of the program, and the count is capped by the number of entries in the
table. A peer is therefore refused only while the table has at least as many entries as one peer may
fill.
"""

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CommandError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.runtime.metrics import Family, Row, labelled_counter, labelled_gauge

PEERS_MAX: Final = 10_000
"""Number of peers per limit whose entries are counted; above it, those with the fewest entries are
forgotten.
"""
SHARE_SETTING: Final = "peerShareMax"
LOG_INTERVAL_MS: Final = 10_000
"""Minimum time between two events about refusals by one limit."""


class Scope(StrEnum):
    """What a limit applies to."""

    TOTAL = "all peers together"
    CONNECTION = "a connection"
    HOST = "an address"
    GROUP = "a consumer group"
    BROKER = "a broker"
    REQUEST = "a request"


class Limit(NamedTuple):
    """One limit; `name` is its label in metrics and events."""

    name: str
    counts: str
    """What is counted, as the subject of a sentence: `Topics`."""
    scope: Scope
    above: str
    """What happens to an entry above the limit, as a sentence for the documentation."""
    setting: str = ""
    """The setting with the bound; if empty, the bound is `fixed`."""
    bound: Callable[[Any], int] | None = None
    """Returns the value of the setting, given the settings."""
    fixed: int = 0
    answer: ResponseCode | None = None
    """The code that refuses an entry; None if no request is refused."""


class ShareSettings(Protocol):
    """The part of a service's settings that all its limits use."""

    @property
    def peer_share_max(self) -> int:
        """The percentage of a limit that one peer may fill."""


class LimitReached(CommandError):
    """A peer asked for more than a limit allows."""

    def __init__(self, limit: Limit, remark: str) -> None:
        super().__init__(limit.answer or ResponseCode.SYSTEM_ERROR, remark)
        self.limit = limit


class Limits:
    """The current bounds of a table of limits, and the counts for its metrics."""

    def __init__(
        self,
        table: Sequence[Limit],
        settings: Callable[[], ShareSettings],
        *,
        clock_ms: Callable[[], int],
        log: Log = NO_LOG,
    ) -> None:
        """`settings` returns the current settings, which may change at run time."""
        self.table = table
        self.refused: dict[str, int] = {limit.name: 0 for limit in table}
        self.used: dict[str, Callable[[], int]] = {}
        """For each limit in total, the function that returns the current number of entries."""
        self._settings = settings
        self._clock_ms = clock_ms
        self._log = log
        self._logged_ms: dict[str, int] = {}
        self._added: dict[str, dict[str, int]] = {}  # limit -> peer -> entries

    def maximum(self, limit: Limit) -> int:
        """Return the current bound: that of the setting, or `fixed`."""
        return limit.fixed if limit.bound is None else limit.bound(self._settings())

    def check(self, limit: Limit, wanted: int, subject: str = "", *, peer: str = "") -> None:
        """Raise LimitReached if `wanted` exceeds a limit whose scope is not TOTAL.

        `subject` names the connection, group or broker in the refusal.
        """
        bound = self.maximum(limit)
        if wanted > bound:
            raise self.refusal(limit, f"{subject or limit.scope} may have {bound}", peer)

    def admit(self, limit: Limit, used: int, peer: str, count: int = 1) -> None:
        """Count entries that a peer is about to add; raise LimitReached if they exceed a limit.

        `used` is the current number of entries. Entries of the program itself (`peer` is empty)
        are bounded by other limits, and always admitted.
        """
        if not peer:
            return
        bound = self.maximum(limit)
        if used + count > bound:
            raise self.refusal(limit, f"there are {used} of at most {bound}", peer)
        mine = self.check_share(limit, used, peer, count)
        added = self._added.setdefault(limit.name, {})
        added[peer] = mine + count
        if len(added) > PEERS_MAX:
            self._added[limit.name] = dict(
                sorted(added.items(), key=lambda item: -item[1])[: PEERS_MAX // 2]
            )

    def check_share(self, limit: Limit, used: int, peer: str, count: int) -> int:
        """Return how many entries a peer has; raise LimitReached if `count` more exceed its
        share.
        """
        bound, percent = self.maximum(limit), self._settings().peer_share_max
        share = bound * percent // 100
        mine = min(self._added.get(limit.name, {}).get(peer, 0), used)
        if mine + count > share:
            raise self.refusal(
                limit, f"one peer may have {share}, {percent} percent of"
                f" {bound} ({SHARE_SETTING}), and {peer} has {mine}", peer,
            )  # fmt: skip
        return mine

    def release(self, limit: Limit, peer: str, count: int = 1) -> None:
        """Subtract entries that a peer added and that are gone."""
        added = self._added.get(limit.name, {})
        left = added.get(peer, 0) - count
        if left > 0:
            added[peer] = left
        else:
            added.pop(peer, None)

    def refusal(self, limit: Limit, detail: str, peer: str = "") -> LimitReached:
        """Count and log a refusal; return the error, which names the limit and its setting."""
        self.refused[limit.name] += 1
        now_ms = self._clock_ms()
        if now_ms >= self._logged_ms.get(limit.name, now_ms):
            self._logged_ms[limit.name] = now_ms + LOG_INTERVAL_MS
            self._log.warning("limit.reached", limit=limit.name, setting=limit.setting or None,
                              detail=detail, peer=peer)  # fmt: skip
        remedy = f"raise {limit.setting}" if limit.setting else "the limit is fixed"
        return LimitReached(limit, f"limit reached: {limit.counts}: {detail}; {remedy}")

    def rows_used(self) -> Iterable[Row]:
        """Return the number of entries of each limit in total."""
        return [((name,), used()) for name, used in self.used.items()]

    def rows_maximum(self) -> Iterable[Row]:
        """Return the bound of each limit."""
        return [((limit.name,), self.maximum(limit)) for limit in self.table]

    def rows_refused(self) -> Iterable[Row]:
        """Return the number of refusals by each limit."""
        return [((name,), count) for name, count in self.refused.items()]


def address_peer(address: str) -> str:
    """Return the name under which a peer without an account is counted, given `ip:port`."""
    host = address.rpartition(":")[0].strip("[]")
    if ":" in host:
        try:
            network = ipaddress.IPv6Network((host.partition("%")[0], 64), strict=False)
        except ValueError:
            return f"the address {host}"
        return f"the network {network}"
    return f"the address {host}"


LIMIT_TABLE_FAMILIES: Final[tuple[Family[Limits], ...]] = (
    labelled_gauge(
        "cometmq_limit_entries", "Entries that count towards a limit of all peers together.",
        ("limit",), Limits.rows_used,
    ),
    labelled_gauge(
        "cometmq_limit_entries_max", "Bound of a limit on what peers may fill.", ("limit",),
        Limits.rows_maximum,
    ),
    labelled_counter(
        "cometmq_limit_refused_total", "Entries of peers refused by a limit.", ("limit",),
        Limits.rows_refused,
    ),
)  # fmt: skip
