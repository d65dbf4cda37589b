# SPDX-License-Identifier: Apache-2.0
"""What followers share in both streams, RocketMQ's and the broker group's: reconnecting, and a base
for connections to a master.

A session reconnects whenever its connection ends, with a growing delay, and reports each reason
once. A connection ends if the master is silent or its data cannot be processed.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from cometmq.broker.copies.state import FollowProgress, FollowState
from cometmq.broker.copies.unfit import UnfitLog
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

RECORD_OVERHEAD_BYTES: Final = 256 << 10
"""Upper bound for the size of a record without its body."""


class Pace(NamedTuple):
    first_ms: int
    max_ms: int
    unknown_ms: int
    """Interval at which an unknown address of the master is looked up again."""


class Session:
    """Keeps one connection to a master, and the status that operators see."""

    def __init__(
        self, status: FollowProgress, pace: Pace, *, now_ms: Callable[[], int], log: Log
    ) -> None:
        self.status = status
        self._pace = pace
        self._now_ms = now_ms
        self._log = log
        self._last_error = self._last_unfit = ""

    async def run(
        self, address: Callable[[], str], follow: Callable[[str], Awaitable[None]]
    ) -> None:
        """Call `follow` with the master's HA address again and again, if `address` has one."""
        failed_count = 0
        while True:
            where = address()
            if not where:
                await asyncio.sleep(self._pace.unknown_ms / 1000)
                continue
            began_ms, before = self._now_ms(), self.status.received_bytes
            await follow(where)
            has_lasted = self._now_ms() - began_ms > self._pace.max_ms
            has_progress = has_lasted or self.status.received_bytes > before
            failed_count = 0 if has_progress else failed_count + 1
            wait_ms = min(self._pace.max_ms, self._pace.first_ms << min(failed_count, 6))
            await asyncio.sleep(wait_ms / 1000)

    def forget(self) -> None:
        self._last_error = self._last_unfit = ""

    def is_news(self, text: str) -> bool:
        is_news, self._last_error = text != self._last_error, text
        return is_news

    def note_following(self) -> None:
        status = self.status
        status.state, status.unfit, status.unfit_detail = FollowState.FOLLOWING, None, ""
        self.forget()

    def note_unfit(self, error: UnfitLog) -> None:
        status, reason, detail = self.status, error.reason, str(error)
        status.state, status.unfit, status.unfit_detail = FollowState.UNFIT, reason, detail
        text = f"{reason} {detail}"
        if text != self._last_unfit:
            self._last_unfit = text
            self._log.error("replica.unfit", reason=reason.value, error=detail, action=error.action)

    def note_lost(self, where: str, error: Exception, *, is_alarm: bool = True) -> None:
        if not self.is_news(f"{where} {describe(error)} {is_alarm}"):
            return
        if is_alarm:
            self._log.warning("replica.lost", master=where, error=describe(error))
        else:
            self._log.info("replica.disconnected", master=where, error=describe(error))


class MasterConnection(ABC, asyncio.Protocol):
    """A connection to a master: the base of RocketMQ's stream and the group's stream."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._transport: asyncio.Transport | None = None
        self._heard_ms = self._reported_ms = now_ms()
        self.has_heard = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @abstractmethod
    def _open(self, transport: asyncio.Transport) -> None:
        """Send the first bytes."""

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Process received data; raise CometError or OSError to end the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no common base
        self._open(self._transport)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._heard_ms = self._now_ms()
        self.has_heard = True
        try:
            self._take(data)
        except (CometError, OSError) as error:
            self._break_off(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(ConnectionLost(str(exc) if exc else "the master closed the connection"))

    def end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # mark it as retrieved: perhaps no task waits for it
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    def _break_off(self, error: Exception) -> None:
        self.end(error)

    def _end_if_silent(self, silent_ms_max: int) -> bool:
        silent_ms = self._now_ms() - self._heard_ms
        if silent_ms > silent_ms_max:
            self.end(ConnectionLost(f"the master has been silent for {silent_ms} ms"))
        return silent_ms > silent_ms_max
