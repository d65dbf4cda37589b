# SPDX-License-Identifier: Apache-2.0
"""The follower's side of the stream between members of a broker group.

A follower connects to the master of the epoch that it has promised. After the handshake it saves to
a file the part of its log that the master lacks, truncates the log to the common point, and saves
the remaining history. Then it copies (`master_stream.py`). Readers see only what the master has
confirmed.

Whenever a connection ends, the follower reconnects, until it is stopped. A log that cannot be
followed is reported once for each reason, with the action to take.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from cometmq.broker.copies.state import Following, FollowState
from cometmq.broker.copies.streams.block_exchange import Turn
from cometmq.broker.copies.streams.epoch_log import EpochLog
from cometmq.broker.copies.streams.frames import Confirm
from cometmq.broker.copies.streams.handshake import (
    DAMAGE_COUNT_MAX,
    Hello,
    Identity,
    Welcome,
    check_digest,
    check_welcome,
)
from cometmq.broker.copies.streams.master_stream import MasterRefused, MasterStream
from cometmq.broker.copies.streams.proving import Attempts, ProofDeclined, Proving
from cometmq.broker.copies.streams.records import FollowHeaders
from cometmq.broker.copies.streams.session import RECORD_OVERHEAD_BYTES, Pace, Session
from cometmq.broker.copies.streams.tails import KeepTail
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.native import open_header_follower
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.ha.epochs import last_epoch, reached
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.worker import Worker
from cometmq.store.errors import StoreError
from cometmq.store.log.commit_log import CommitLog, LogView

CONNECT_TIMEOUT_S: Final = 2.0
HANDSHAKE_TIMEOUT_S: Final = 5.0
PACE: Final = Pace(first_ms=50, max_ms=2_000, unknown_ms=100)
TICK_INTERVAL_MS: Final = 100
FINISH_TIMEOUT_S: Final = 600.0
"""How long a stop waits for a truncation, whose syncs end even if the disk fails."""

BRIEF_MS: Final = 3_000
"""How long a master may be lost before a warning is logged. In a switchover, each follower loses
its connection, and an attempt or two to connect may fail before it knows the next master.
"""


class MasterEvents(Protocol):
    """The events that a follower reports; implemented by the broker's member."""

    def epoch_seen(self, epoch: int) -> None:
        """Handle a later epoch, named by a master or a former master."""

    def store_failed(self, error: Exception) -> None:
        """Handle a failure to write the store or a file of the broker group."""


class LogUnreadable(CometError):
    """This broker's log cannot be read during a handshake. Nothing was changed, so the follower
    retries.
    """


class Follower:
    """Follows one master at a time, and reconnects whenever the connection ends."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        identity: Identity,
        driver: StoreDriver,
        epochs: EpochLog,
        tables: TableFeed,
        events: MasterEvents,
        *,
        keep_tail: KeepTail,
        proving: Proving,
        worker: Worker,
        settings: Callable[[], BrokerSettings],
        now_ms: Callable[[], int],
        log: Log,
        status: Following | None = None,
    ) -> None:
        """`worker` writes files; `keep_tail` saves each tail that is cut off the log."""
        self.driver = driver
        self.epochs = epochs
        self.tables = tables
        self.now_ms = now_ms
        self.status = Following() if status is None else status
        self.confirmed = 0
        """The confirm offset that the master last reported in this epoch; 0 before that."""
        self.heard_ms = 0
        """When the master was last heard from, by `now_ms`."""
        self._identity = identity
        self._events = events
        self._keeps_tail = keep_tail
        self._attempts = Attempts(proving)
        self.worker = worker
        self._settings = settings
        self.log = log
        self.turn = Turn()
        self._following = TaskSet(log)
        self._finishing = TaskSet(log)  # work that is not cancelled
        self._stream: MasterStream | None = None
        self._is_preparing = False
        self._has_heard = False  # of a confirm offset in this epoch
        self._session = Session(self.status, PACE, now_ms=now_ms, log=log)
        self._lost_ms: int | None = None  # when the master was lost
        driver.turn.job_ended.connect(self._relieved)

    @property
    def commit_log(self) -> CommitLog:
        return self.driver.store.commit_log

    @property
    def may_read(self) -> bool:
        """Whether this slave may serve reads: all that readers could see must be confirmed."""
        is_bounded = self._has_heard and self.commit_log.confirm_offset <= self.confirmed
        return is_bounded and not self._is_preparing

    def follow(self, epoch: int, master: int, address: Callable[[], str]) -> None:
        """Follow the master of an epoch that has already been promised (R3).

        `address` returns the master's HA address, or "" while it is unknown. Call `stop` first if a
        master is already being followed.
        """
        assert not len(self._following), "a master is already being followed"
        self.confirmed = 0
        self._has_heard = False
        self.driver.store.confirm(0)  # readers see no more until the master confirms it
        self._session.forget()
        self._lost_ms = None

        def where() -> str:
            found = address()
            if not found:
                self.status.state = FollowState.CONNECTING
            return found

        run = self._session.run(where, partial(self._try, epoch, master))
        self._following.spawn(run, name="follow-master", is_endless=True)

    async def stop(self) -> None:
        """Close the connection. From then on, nothing is appended, truncated or saved."""
        await self._following.close()
        if self._stream is not None:
            self._stream.end(ConnectionLost("this broker stopped following"))
        await self._finishing.drain(FINISH_TIMEOUT_S)
        self._stream = None
        self.status.state = FollowState.IDLE

    @property
    def is_waiting_for_disk(self) -> bool:
        """Whether reading from the master is paused because checkpoints cannot keep up."""
        return self._stream is not None and self._stream.is_waiting_for_disk

    def _relieved(self) -> None:
        if self._stream is not None:
            self._stream.resume()

    async def leave(self) -> None:
        """Tell the master that this broker is stopping, so that no send waits for it; then stop."""
        if self._stream is not None and self.status.state is FollowState.FOLLOWING:
            self._stream.refuse(UnfitLog(Unfit.STOPPING, "this broker stops"))
            self._stream.end(ConnectionLost("this broker stops"))
        await self.stop()

    # Called by the stream

    def record_bytes_max(self) -> int:
        return self._settings().max_message_size + RECORD_OVERHEAD_BYTES

    def follow_headers(self) -> FollowHeaders | None:
        return open_header_follower(self._settings(), self.log)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that `stop` waits for."""
        self._finishing.spawn(work, name="save-epoch")

    def heard(self, confirm: Confirm, received_bytes: int) -> None:
        """Note the master's progress; its epoch is 0 until the master's first report."""
        self.heard_ms = self.now_ms()
        self._has_heard = confirm.epoch > 0
        self.confirmed = max(self.confirmed, confirm.confirmed)
        self.status.master_max_offset = confirm.end
        self.status.received_bytes += received_bytes
        self.driver.store.upkeep.checkpointer.note_distance(
            self.status.behind_bytes(self.commit_log.end)
        )

    def failed(self, error: Exception) -> None:
        """Handle a failure to write a file of the broker group."""
        self._events.store_failed(error)

    # Connections

    async def _try(self, epoch: int, master: int, where: str) -> None:
        """Follow until the connection ends, and report why it ended."""
        began_ms, connect_count = self.now_ms(), self.status.connect_count
        try:
            await self._follow(epoch, master, where)
        except (CometError, OSError) as error:
            has_lasted = self.now_ms() - began_ms > PACE.max_ms
            was_following = self.status.connect_count > connect_count
            is_brief = self._is_brief(has_recovered=has_lasted and was_following)
            self._note(error, where, is_brief=is_brief)
        finally:
            self._is_preparing = False

    def _is_brief(self, *, has_recovered: bool) -> bool:
        """Return whether the outage is still brief.

        A stream that lasted has ended the previous outage, so its loss begins a new one.
        """
        now_ms = self.now_ms()
        if self._lost_ms is None or has_recovered:
            self._lost_ms = now_ms
        return now_ms - self._lost_ms < BRIEF_MS

    async def _follow(self, epoch: int, master: int, where: str) -> None:
        host, port = parse_address(where)
        hello = self._hello(epoch, master)
        attempt = self._attempts.next(master)
        stream = self._stream = MasterStream(self, hello, where, attempt.opening)
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await loop.create_connection(
                    lambda: attempt.protocol(stream), host, port
                )
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                welcome = await stream.welcome
            prepared = loop.create_future()
            self.spawn(self._prepare(stream, hello, welcome, prepared))
            await prepared
            self._note_following(where, welcome)
            stream.begin(welcome)
            while not stream.ended.done():
                await asyncio.wait([stream.ended], timeout=TICK_INTERVAL_MS / 1000)
                stream.tick()
            await stream.ended
        except TimeoutError as error:
            raise ConnectionLost("the master does not answer") from error
        except ProofDeclined as error:
            raise self._attempts.declined(error) from error
        except UnfitLog as error:
            stream.refuse(error)
            raise
        finally:
            stream.end(ConnectionLost("closed"))
            if transport is not None and not transport.is_closing():
                transport.close()  # it was not proven, so the stream has not begun

    def _hello(self, epoch: int, master: int) -> Hello:
        extent, tables = self.epochs.extent(), self.tables.received(epoch)
        damage = tuple(self.commit_log.damage[-DAMAGE_COUNT_MAX:])
        return Hello(self._identity, epoch, epoch, master, extent, tables, damage)

    async def _prepare(
        self,
        stream: MasterStream,
        hello: Hello,
        welcome: Welcome,
        prepared: "asyncio.Future[None]",
    ) -> None:
        """Truncate the log to the common point and save its history; `stop` waits for it."""
        self._is_preparing = True
        try:
            await self._cut(hello, welcome, stream)
        except Exception as error:  # noqa: BLE001  # the task that waits raises it
            if isinstance(error, StoreError | OSError):
                self._events.store_failed(error)
            if not prepared.done():
                prepared.set_exception(error)
        else:
            if not prepared.done():
                prepared.set_result(None)
        finally:
            self._is_preparing = False

    async def _cut(self, hello: Hello, welcome: Welcome, stream: MasterStream) -> None:
        point = check_welcome(welcome, hello)
        log = self.commit_log
        start = welcome.digest.start
        if hello.log.end and start < point.offset:
            read = partial(_read, log.view_to_end(), start, point.offset - start)
            try:
                data = await self.worker.submit(read)
            except (StoreError, OSError) as error:
                raise LogUnreadable(f"this log cannot be read: {describe(error)}") from error
            check_digest(welcome, hello, data)
        if stream.ended.done():
            raise ConnectionLost("the master closed the connection in the handshake")
        if log.end > point.offset:
            await self._keep_tail(point.offset)
            await self.driver.truncate(point.offset)
        history = reached(point.history, welcome.log.history, point.offset)
        await self.epochs.save(history)

    async def _keep_tail(self, offset: int) -> None:
        """Save the part of the log that will be cut off; if that fails, the broker follows
        nevertheless.
        """
        view, epoch = self.commit_log.raw_view(), last_epoch(self.epochs.history)
        facts = {"offset": offset, "end": view.end, "last_epoch": epoch}
        try:
            path = await self.worker.submit(partial(self._keeps_tail, view, offset, epoch))
        except (OSError, CometError) as error:
            self.log.warning("tail.not_kept", **facts, error=describe(error))
        else:
            self.log.warning("tail.cut", **facts, file=str(path))

    # Status for operators

    def _note_following(self, where: str, welcome: Welcome) -> None:
        self._session.note_following()
        status = self.status
        status.ha_address = where
        status.connect_count += 1
        status.master_min_offset = welcome.log.first
        status.master_max_offset = welcome.log.end
        self.log.info("replica.following", master=where, epoch=welcome.epoch, offset=welcome.start)

    def _note(self, error: Exception, where: str, *, is_brief: bool) -> None:
        """Report why the connection ended."""
        status = self.status
        is_usual = isinstance(error, ConnectionLost | OSError)
        if isinstance(error, MasterRefused):
            if error.refused.epoch:
                self._events.epoch_seen(error.refused.epoch)
            reasons = {reason.value: reason for reason in Unfit}
            reason = reasons.get(error.refused.reason, Unfit.REFUSED)
            error = UnfitLog(reason, error.refused.text)
            is_usual = error.is_passing
        is_failed = isinstance(error, StoreError)
        status.state = FollowState.FAILED if is_failed else FollowState.CONNECTING
        if isinstance(error, UnfitLog) and not error.is_passing:
            self._session.note_unfit(error)
        else:
            self._session.note_lost(where, error, is_alarm=not (is_brief and is_usual))


def _read(view: LogView, offset: int, count: int) -> Buffer:
    data = view.read(offset, count, may_block=True) or b""
    if len(data) < count:
        raise LogUnreadable(f"this log is damaged between {offset} and {offset + count}")
    return data
