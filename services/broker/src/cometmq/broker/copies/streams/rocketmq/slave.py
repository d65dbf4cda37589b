# SPDX-License-Identifier: Apache-2.0
"""The slave's side of RocketMQ's stream: follows the master's log.

The slave connects to its master, reports the end of its log immediately, and appends what arrives:
only whole records, with one write and one acknowledgement for everything received in one turn of
the loop. As in RocketMQ, an acknowledgement means that the bytes are in the slave's page cache.

Logs that do not match are reported, once for each reason, with the action to take. Before it
connects, the slave asks the master for its name, the bounds of its log, and the message at the
offset of the slave's last one. Of all records that arrive, it reads the headers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.copies.state import FollowProgress, FollowState
from cometmq.broker.copies.streams.records import RecordStream
from cometmq.broker.copies.streams.rocketmq.frames import TransferReader, encode_report
from cometmq.broker.copies.streams.session import (
    RECORD_OVERHEAD_BYTES,
    MasterConnection,
    Pace,
    Session,
)
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.remoting.errors import CometError, ConnectionLost, SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.clock import Clock
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.writing.write_state import Refusal

CONNECT_TIMEOUT_S: Final = 5.0
PACE: Final = Pace(first_ms=200, max_ms=5_000, unknown_ms=500)
REFUSED_COUNT_MAX: Final = 2
"""If the master closes this many connections in succession without a reply, a warning is logged."""


class SlaveFollower:
    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        driver: StoreDriver,
        status: FollowProgress,
        *,
        is_slave: Callable[[], bool],
        address: Callable[[], str],
        inspect: Callable[[], Awaitable[None]],
        settings: Callable[[], BrokerSettings],
        clock: Clock,
        log: Log,
    ) -> None:
        """`address` returns "" if no master is known; `inspect` raises UnfitLog."""
        self.store = driver.store
        self.driver = driver
        self.status = status
        self.settings = settings
        self.clock = clock
        self._is_slave = is_slave
        self._address = address
        self._inspect = inspect
        self._log = log
        self._stream: _MasterStream | None = None
        self._refused_count = 0
        self._session = Session(status, PACE, now_ms=clock.monotonic_ms, log=log)

    async def run(self) -> None:
        try:
            await self._session.run(self._where, self._try)
        finally:
            self.stop()

    def _where(self) -> str:
        address = self._address() if self._may_follow() else ""
        if not address:
            self.status.state = FollowState.IDLE
        return address

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.end(ConnectionLost("this broker stops following"))

    def tick(self) -> None:
        if self._stream is None:
            return
        if self._may_follow():
            self._stream.tick()
        else:
            self.stop()

    def note_unfit(self, error: UnfitLog) -> None:
        self._session.note_unfit(error)
        if error.reason is Unfit.AHEAD:
            self.stop()  # a master may overtake this log later without having the same bytes

    def _may_follow(self) -> bool:
        state = self.store.write_state
        is_dead = state.has(Refusal.SYNC_FAILED) or state.has(Refusal.CLOSED)
        return self._is_slave() and not is_dead

    async def _try(self, address: str) -> None:
        status = self.status
        if status.unfit is None:
            status.state = FollowState.CONNECTING
        try:
            await self._inspect()
            await self._follow(address)
        except UnfitLog as error:
            self.note_unfit(error)
        except CorruptStore as error:
            self.note_unfit(UnfitLog(Unfit.FILE_SIZE, str(error)))
        except ConnectionLost as error:
            self._note_lost(address, error)
        except (CometError, OSError) as error:
            if isinstance(error, DiskError):
                status.state = FollowState.FAILED
            if self._session.is_news(f"{address} {describe(error)}"):
                self._log.warning("replica.failed", master=address, error=describe(error))
        finally:
            status.ha_address = ""

    def _note_lost(self, address: str, error: ConnectionLost) -> None:
        status, stream = self.status, self._stream
        self._stream = None
        # A Java master silently closes the connection if the report is beyond the end of its log.
        is_refused = stream is not None and not stream.has_heard
        self._refused_count = self._refused_count + 1 if is_refused else 0
        if self._refused_count >= REFUSED_COUNT_MAX:
            end = self.store.commit_log.end
            text = f"{address} closes the connection after the report of a log that ends at {end}"
            self.note_unfit(UnfitLog(Unfit.REFUSED, text))
            return
        if status.unfit is None:
            status.state = FollowState.CONNECTING
        self._session.note_lost(address, error)

    async def _follow(self, address: str) -> None:
        log = self.store.commit_log
        if log.confirm_offset != log.end:
            # The records may be whole, but not dispatched because the disk failed to read them
            # after they were appended. Raises DiskError while the disk still fails.
            self.driver.append(log.end, b"")
        if log.confirm_offset != log.end:
            text = f"this broker's log has no whole record at offset {log.confirm_offset}"
            raise UnfitLog(Unfit.NOT_A_RECORD, text)
        host, port = parse_address(address)
        stream = _MasterStream(self)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: stream, host, port)
        except TimeoutError as error:
            raise SettingsError(f"{address} does not answer") from error
        self._stream = stream
        self.status.ha_address = address
        self.status.connect_count += 1
        try:
            await stream.ended
        finally:
            stream.end(ConnectionLost("closed"))

    def note_following(self, offset: int) -> None:
        """Note that the master has accepted this slave: it continues where this log ends."""
        status = self.status
        if status.state is FollowState.FOLLOWING:
            return
        self._session.note_following()
        self._refused_count = 0
        self._log.info("replica.following", master=status.ha_address, offset=offset)


class _MasterStream(MasterConnection):
    def __init__(self, follower: SlaveFollower) -> None:
        super().__init__(follower.clock.monotonic_ms)
        self._follower = follower
        self._commit_log = follower.store.commit_log
        self._transfers = TransferReader()
        self._records = self._record_stream(self._commit_log.end)

    def _open(self, transport: asyncio.Transport) -> None:
        self._report()

    def tick(self) -> None:
        settings = self._follower.settings()
        is_silent = self._end_if_silent(settings.ha_housekeeping_interval)
        if (
            not is_silent
            and self._now_ms() - self._reported_ms >= settings.ha_send_heartbeat_interval
        ):
            self._report()

    def _report(self) -> None:
        assert self._transport is not None
        self._reported_ms = self._now_ms()
        self._transport.write(encode_report(self._commit_log.end))

    def _take(self, data: bytes) -> None:
        pieces: list[bytes] = []
        end = self._records.end
        transfers = self._transfers.feed(data)
        for transfer in transfers:
            if transfer.offset != end:
                end = self._begin_at(transfer.offset, end)
            pieces.append(transfer.data)
            end += len(transfer.data)
        records = self._records.feed(b"".join(pieces))
        if records:
            self._append(records)
        if transfers:
            self._follower.note_following(self._commit_log.end)

    def _begin_at(self, offset: int, end: int) -> int:
        """Return where bytes are appended: `end`, or `offset` if this log is empty; or raise."""
        if end or self._records.end or self._commit_log.end:
            raise UnfitLog(
                Unfit.OFFSET, f"the master sends offset {offset}, this log ends at {end}"
            )
        file_size = self._commit_log.files.file_size
        if offset % file_size:
            raise UnfitLog(
                Unfit.FILE_SIZE,
                f"the master's log begins at {offset}, which contradicts"
                f" mappedFileSizeCommitLog={file_size}",
            )
        self._records = self._record_stream(offset)
        return offset

    def _append(self, records: Buffer) -> None:
        follower, log = self._follower, self._commit_log
        start = self._records.end - self._records.held_bytes - len(records)
        follower.driver.append(start, records)
        follower.status.received_bytes += len(records)
        follower.store.upkeep.catch_up.note_distance(follower.status.behind_bytes(log.end))
        if log.confirm_offset != log.end:
            text = f"the record at offset {log.confirm_offset} of the master's log is damaged"
            raise UnfitLog(Unfit.NOT_A_RECORD, text)
        self._report()

    def _record_stream(self, end: int) -> RecordStream:
        return RecordStream(
            end,
            file_size=self._commit_log.files.file_size,
            record_bytes_max=self._follower.settings().max_message_size + RECORD_OVERHEAD_BYTES,
        )
