# SPDX-License-Identifier: Apache-2.0
"""Limits the open calls of each caller of the control API (pure).

A caller that proves that it belongs to the group, by the group's key or by a certificate, has a
reserved share.

A new stream is always accepted. If it exceeds a limit, another stream is ended: the oldest one of
the connection with the most. So a stranger that opens many streams loses its own, and an elector,
which has one, keeps it or opens a new one.

Orders cannot be interrupted, so an order above a limit is refused.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote

CALLS_MAX: Final = 32
"""Maximum number of streams, and also of unfinished orders, of all callers without
a proof together.
"""
PROVEN_CALLS_MAX: Final = 32
"""Maximum number of streams, and also of unfinished orders, of all callers with a proof
together.
"""
CONNECTION_CALLS_MAX: Final = 8
"""Maximum number of streams, and of unfinished orders, on one connection. An elector has one stream
and one order for each member.
"""


class Caller(NamedTuple):
    """The other end of a call."""

    connection: str
    """Its address and port."""
    is_proven: bool = False

    @property
    def address(self) -> str:
        """The address without the port."""
        return self.connection.rpartition(":")[0]


def address_of(peer: str) -> str:
    """Return HOST:PORT of a caller, from the name that gRPC gives it: `ipv6:%5B::1%5D:4000`."""
    return unquote(peer).partition(":")[2]


class TooManyCalls(Exception):
    """The caller has as many unfinished orders as it may have."""


class Stream:
    """An open stream; ended early if `is_evicted` is set."""

    __slots__ = ("caller", "is_evicted")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.is_evicted = asyncio.Event()


class Streams:
    """The open streams of a server."""

    def __init__(self) -> None:
        self._open: dict[Stream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, caller: Caller) -> Stream:
        """Count a new stream, and end others if it exceeds a limit."""
        stream = Stream(caller)
        self._open[stream] = None
        for limit, is_meant in _limits(caller):
            meant = [one for one in self._open if is_meant(one.caller)]
            if len(meant) > limit:
                victim = _victim(meant, stream)
                victim.is_evicted.set()
                del self._open[victim]
        return stream

    def leave(self, stream: Stream) -> None:
        """Stop counting a stream, which has ended."""
        self._open.pop(stream, None)


class UnfinishedOrders:
    """The unfinished orders of a server."""

    def __init__(self) -> None:
        self._open: Counter[Caller] = Counter()

    def enter(self, caller: Caller) -> None:
        """Count a new order; raise TooManyCalls if it exceeds a limit."""
        for limit, is_meant in _limits(caller):
            if sum(count for one, count in self._open.items() if is_meant(one)) >= limit:
                raise TooManyCalls(f"{caller.connection} has {limit} unfinished orders")
        self._open[caller] += 1

    def leave(self, caller: Caller) -> None:
        """Stop counting an order, which has ended."""
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]


def _limits(caller: Caller) -> Iterable[tuple[int, Callable[[Caller], bool]]]:
    """Return the limits that apply to a caller, each with the callers that share it."""
    yield CONNECTION_CALLS_MAX, lambda one: one.connection == caller.connection
    if caller.is_proven:
        yield PROVEN_CALLS_MAX, lambda one: one.is_proven
    else:
        yield CALLS_MAX, lambda one: not one.is_proven


def _victim(streams: list[Stream], new: Stream) -> Stream:
    """Return the stream to end, as the module says; it is never the new one."""
    counts = Counter(one.caller.connection for one in streams)
    old = (one for one in streams if one is not new)
    return max(old, key=lambda one: counts[one.caller.connection])  # of equals, the oldest
