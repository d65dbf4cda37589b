# SPDX-License-Identifier: Apache-2.0
"""A connection on which a master sends its log, as fast as its socket and the rate limit allow: the
base of RocketMQ's stream and the group's stream.

A connection sends at most one slice per turn of the loop, and all receivers of a broker share what
may be sent in one turn (`SendTurns`). Slices that are not in the page cache are read on a thread. A
slow receiver costs the memory of one slice.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.errors import Overloaded, RemoteProtocolError
from cometmq.remoting.types import Buffer
from cometmq.runtime.worker import error_of
from cometmq.store.errors import DiskError
from cometmq.store.log.commit_log import LogView

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.sending import LogSender
    from cometmq.broker.copies.streams.serving import LogServer

SLICE_BYTES: Final = 256 << 10
"""Maximum size of a slice: 0.1 ms, in RocketMQ's stream up to 4 ms, as all headers are read."""

TURN_BYTES: Final = 2 * SLICE_BYTES
"""Bytes that may be sent to all receivers in one turn; the last slice may exceed this. A piece of a
table, which takes 5 ms to encode, counts as all of them.
"""

SENT_BYTES_MIN: Final = 8 << 10
"""A smaller slice counts as this many bytes, because the call itself takes as long."""

LINGER_S: Final = 1.0

UNSENT_BYTES_MAX: Final = 1 << 20
"""Above this many bytes that its socket has not accepted yet, nothing is sent to a receiver."""

BURST_MS: Final = 100
"""After a pause, a burst of this duration at the full rate may be sent at once."""


class RateLimit:
    """A token bucket; a rate of 0 means no limit."""

    __slots__ = ("_bytes_left", "_last_ms")

    def __init__(self) -> None:
        self._bytes_left = 0.0
        self._last_ms: int | None = None

    def wait_ms(self, now_ms: int, bytes_per_s: int) -> int:
        if not bytes_per_s:
            return 0
        burst = bytes_per_s * BURST_MS / 1000
        last_ms = now_ms - BURST_MS if self._last_ms is None else self._last_ms
        self._bytes_left += bytes_per_s * (now_ms - last_ms) / 1000
        self._bytes_left = min(burst, self._bytes_left)
        self._last_ms = now_ms
        if self._bytes_left > 0:
            return 0
        return 1 + int(-self._bytes_left * 1000 / bytes_per_s)

    def spend(self, count: int) -> None:
        """Count sent bytes. They may exceed what the limit allows; the next wait is then longer."""
        self._bytes_left -= count


class SendTurns:
    """Limits what all connections together send in one turn; the others wait for a later one."""

    def __init__(self) -> None:
        self._left = TURN_BYTES
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    @property
    def is_over(self) -> bool:
        """Whether this turn's limit is reached, so that a connection must call `later` to send."""
        return self._left <= 0

    def spend(self, count: int) -> None:
        """Count bytes that a connection has read or sent in this turn."""
        self._left -= max(count, SENT_BYTES_MIN)
        self._schedule()

    def later(self, send: Callable[[], None]) -> None:
        """Call `send` at the beginning of a later turn, in order of arrival."""
        self._waiting.append(send)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._left, self._is_scheduled = TURN_BYTES, False
        try:
            for _ in range(len(self._waiting)):
                if self._left <= 0:
                    break
                self._waiting.popleft()()
        finally:  # a call that fails must not lose the calls after it
            if self._waiting:
                self._schedule()


def close_soon(transport: asyncio.Transport) -> None:
    """Close a connection once its output is sent, or after a second."""
    transport.close()
    asyncio.get_running_loop().call_later(LINGER_S, transport.abort)


class ServedStream(ABC, asyncio.Protocol):
    def __init__(
        self,
        owner: "LogServer | LogSender",
        transport: asyncio.Transport,
        address: str,
        view: Callable[[], LogView],
    ) -> None:
        self.address = address
        self.transport = transport
        self._commit_log = owner.store.commit_log
        self._view = view
        self._settings = owner.settings
        self._turns = owner.send_turns
        self._worker = owner.worker
        self._now_ms = owner.now_ms
        self.heard_ms = self._now_ms()
        self.is_paused = False
        """Whether the connection accepts no more output for now."""
        self._rate = RateLimit()
        self._is_reading = self._is_scheduled = False
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Process received data; raise RemoteProtocolError or UnfitLog to refuse the peer."""

    @abstractmethod
    def _place(self) -> tuple[int, int] | None: ...

    @abstractmethod
    def _send(self, data: Buffer) -> int:
        """Send a slice; return how much of it was sent."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """Close the connection, because the log cannot be read or sent."""

    @abstractmethod
    def refuse(self, error: UnfitLog) -> None:
        """Report the reason, and close the connection."""

    @abstractmethod
    def _ended(self) -> None:
        """Forget the connection, which is closing; may be called more than once."""

    def data_received(self, data: bytes) -> None:
        self.heard_ms = self._now_ms()
        try:
            self._take(data)
        except RemoteProtocolError as error:
            self.refuse(UnfitLog(Unfit.PROTOCOL, str(error)))
        except UnfitLog as error:
            self.refuse(error)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()

    def close(self) -> None:
        self._ended()
        self.transport.abort()

    def wake(self) -> None:
        self._pump()

    def _pump(self) -> None:
        is_busy = self._is_reading or self._is_scheduled or self.is_paused
        if is_busy or self.transport.is_closing():
            return
        if self._turns.is_over and self._place() is not None:
            self._wake_later()
        else:
            self._send_next()

    def _send_next(self) -> None:
        place = self._place()
        if place is None:
            return
        bytes_per_s = self._settings().max_ha_transfer_byte_in_second
        wait_ms = self._rate.wait_ms(self._now_ms(), bytes_per_s)
        if wait_ms:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._wake_again)
        else:
            self._read(*place, self._pass_on)

    def _wake_again(self) -> None:
        self._is_scheduled = False
        self._pump()

    def _wake_later(self) -> None:
        self._is_scheduled = True
        self._turns.later(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        if not (self._is_reading or self.is_paused or self.transport.is_closing()):
            self._send_next()

    def _pass_on(self, data: Buffer) -> None:
        self._rate.spend(self._send(data))
        self._turns.spend(len(data))  # RocketMQ's stream searches all of them for records
        if not self._is_scheduled and self._place() is not None:
            # Other connections have their turn before the next slice.
            self._wake_later()

    def _read(self, offset: int, count: int, done: Callable[[Buffer], None]) -> None:
        """Call `done` with up to `count` bytes from one file of the log."""
        view = self._view()
        if offset < view.first:
            text = f"the slave has the log up to {offset}; it is deleted up to {view.first}"
            self._failed(UnfitLog(Unfit.EXPIRED, text))
            return
        count = min(count, view.file_size - offset % view.file_size, view.end - offset)
        try:
            data = view.read(offset, count, may_block=False)
            if data is not None:
                self._check(view, offset, count, done, data)
                return
            job = partial(view.read, offset, count, may_block=True)
            future = self._worker.submit(job)
        except (DiskError, Overloaded) as error:
            self._failed(error)
            return
        self._is_reading = True
        future.add_done_callback(
            partial(self._loaded, partial(self._check, view, offset, count, done))
        )

    def _loaded(
        self, take: Callable[[Buffer], None], future: asyncio.Future[Buffer | None]
    ) -> None:
        if self._turns.is_over:
            self._turns.later(partial(self._deliver, take, future))
        else:
            self._deliver(take, future)

    def _deliver(
        self, take: Callable[[Buffer], None], future: asyncio.Future[Buffer | None]
    ) -> None:
        self._is_reading = False
        error = error_of(future)
        if self.transport.is_closing():
            return
        if error is not None:
            self._failed(error)
        else:
            take(future.result() or b"")

    def _check(
        self,
        view: LogView,
        offset: int,
        count: int,
        done: Callable[[Buffer], None],
        data: Buffer,
    ) -> None:
        """Pass a complete slice to `done`; otherwise fail, because the log is damaged."""
        if len(data) == count:
            done(data)
        elif view.is_damaged(offset, count):
            text = f"this broker's log is damaged between {offset} and {offset + count}"
            self._failed(UnfitLog(Unfit.DAMAGED, text))
        else:
            self._failed(EOFError(f"the log is shorter than {count} bytes there"))
