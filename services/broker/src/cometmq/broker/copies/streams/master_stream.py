# SPDX-License-Identifier: Apache-2.0
"""The connection to the master, at the follower.

During the handshake it only passes on the master's answer. `begin` starts the stream: all data that
arrives in one turn of the loop is appended with one write and acknowledged with one report. Before
bytes of a new epoch are appended or acknowledged, the history with the new epoch is saved; until
then nothing is read from the connection. Only whole records are appended.

To show records is to make their entries visible in the consume queues of a slave. Producers wait
for its report, but not for this, so it is done after the report of a turn, or a little later.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.block_exchange import BlockExchange
from cometmq.broker.copies.streams.frames import Frame, FrameReader, Kind, Records, Report
from cometmq.broker.copies.streams.handshake import Hello, Refused, Welcome, decode_handshake
from cometmq.broker.copies.streams.records import RecordStream
from cometmq.broker.copies.streams.replica import MemberReplica
from cometmq.broker.copies.streams.served import close_soon
from cometmq.broker.copies.streams.session import MasterConnection
from cometmq.broker.copies.tables.feed import WholeTables
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.turn import OncePerTurn
from cometmq.ha.epochs import History, epoch_of, last_epoch, reached
from cometmq.remoting.errors import CometError, RemoteProtocolError
from cometmq.remoting.types import Buffer

REPORT_MS: Final = 150
"""Minimum interval of reports while nothing changes: every second tick, even if it is early."""

REPORT_BEHIND_MS: Final = 10
"""The same while catching up: no send waits, and each report costs the master a turn."""

SILENT_MS: Final = 5_000

SHOW_DELAY_MS: Final = 5
"""How long confirmed records wait for further ones: showing few costs as much as a hundred."""

SHOW_BYTES: Final = 32 << 10
"""Confirmed records of this total size do not wait: showing more at once would take too long."""


class ReceivedLog:
    def __init__(self, replica: MemberReplica, welcome: Welcome) -> None:
        self._replica = replica
        self._records = RecordStream(
            welcome.start,
            file_size=welcome.log.file_size,
            record_bytes_max=replica.record_bytes_max(),
            follow=replica.follow_headers(),
        )
        self._pieces: list[Buffer] = []  # not appended yet
        self._master_history = welcome.log.history
        self._next_start: int | None = None  # of the next epoch in the master's log
        self.find_next_start()

    @property
    def end(self) -> int:
        """The end of the last whole record that was received."""
        return self._records.end - self._records.held_bytes

    def find_next_start(self) -> None:
        """Look up where the next epoch of the master begins; call this when an epoch was saved."""
        newest = last_epoch(self._replica.epochs.history)
        history = self._master_history
        count = bisect_right(history, newest, key=epoch_of)
        self._next_start = history[count].start if count < len(history) else None

    def take(self, records: Records) -> bool:
        """Keep records for `append`; return whether the next epoch begins at their end."""
        start = self._records.end + sum(map(len, self._pieces))
        end = records.offset + len(records.data)
        epoch = last_epoch(self._replica.epochs.history)
        if records.offset != start or records.epoch != epoch:
            raise UnfitLog(
                Unfit.OFFSET,
                f"the master sends offset {records.offset} of epoch {records.epoch}; this log ends"
                f" at {start} in epoch {epoch}",
            )
        if self._next_start is not None and end > self._next_start:
            raise RemoteProtocolError(f"bytes {start} to {end} span {self._next_start}, an epoch")
        self._pieces.append(records.data)
        return end == self._next_start

    def append(self) -> int:
        if not self._pieces:
            return 0
        pieces, self._pieces = self._pieces, []
        whole = self._records.feed(*pieces)
        if whole:
            self._replica.driver.append(self.end - len(whole), whole)
        return len(whole)

    def next_history(self) -> History:
        end = self._records.end
        if self._records.held_bytes:
            raise UnfitLog(Unfit.NOT_A_RECORD, f"epoch begins at {end}, inside a record")
        return reached(self._replica.epochs.history, self._master_history, end)


class Showing:
    """Shows the records below the confirm offset of one connection."""

    def __init__(self, driver: StoreDriver, failed: Callable[[Exception], None]) -> None:
        self._driver = driver
        self._failed = failed
        self._confirmed = 0
        self._soon = OncePerTurn(self._show)
        self._later: asyncio.TimerHandle | None = None
        self._is_ended = False

    def confirm(self, offset: int) -> None:
        self._confirmed = offset
        if offset - self._driver.store.commit_log.confirm_offset >= SHOW_BYTES:
            self._soon()
        elif self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(SHOW_DELAY_MS / 1000, self._show)

    def end(self) -> None:
        self._is_ended = True

    def _show(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._is_ended:
            return
        try:
            self._driver.confirm(self._confirmed)
        except (CometError, OSError) as error:
            self._failed(error)


class MasterStream(MasterConnection):
    def __init__(
        self, replica: MemberReplica, hello: Hello, peer: str, opening: bytes = b""
    ) -> None:
        """`opening` precedes HELLO; it is empty on a connection that has been proven."""
        super().__init__(replica.now_ms)
        self._replica = replica
        self._opening = opening
        self._hello = hello
        self._frames = FrameReader(
            Kind.WELCOME, Kind.REFUSED, Kind.RECORDS, Kind.CONFIRM, Kind.CHANGES, Kind.TABLES,
            Kind.TABLES_END, Kind.WANT_BLOCK, Kind.BLOCK,
        )  # fmt: skip
        self._blocks = BlockExchange(
            replica.driver.store, replica.turn, worker=replica.worker, now_ms=replica.now_ms,
            peer=peer, log=replica.log,
        )  # fmt: skip
        self._waiting: deque[Frame] = deque()  # while an epoch's entry is being saved
        self._log: ReceivedLog | None = None  # None in the handshake
        self._whole = WholeTables()
        self._is_saving = False
        self.is_waiting_for_disk = False
        self._confirm = frames.Confirm(0, 0, 0, 0)
        self._showing = Showing(replica.driver, self._break_off)
        self._reported = Report(0, 0, -1, 0)
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    # Events of the connection

    def _open(self, transport: asyncio.Transport) -> None:
        transport.write(self._opening + frames.encode_json(Kind.HELLO, self._hello))

    def _take(self, data: bytes) -> None:
        self._waiting += self._frames.feed(data)
        self._work()
        self._pause_if_crowded()

    def end(self, error: Exception) -> None:
        super().end(error)
        if not self.welcome.done():
            self.welcome.set_exception(error)
            self.welcome.exception()
        self._waiting.clear()
        self._showing.end()
        self._blocks.close()

    def _break_off(self, error: Exception) -> None:
        if isinstance(error, UnfitLog):
            self.refuse(error)
        self.end(error)

    def refuse(self, error: UnfitLog) -> None:
        refused = Refused(error.reason.value, str(error), self._hello.promised)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.encode_json(Kind.REFUSED, refused))
            close_soon(self._transport)

    def tick(self) -> None:
        if self.ended.done():
            return
        now_ms = self._now_ms()
        self.resume()
        if self._is_saving or self.is_waiting_for_disk:
            self._heard_ms = now_ms  # it is not read
            # a slow disk may take long to save thousands of epochs, and the master must hear of it
            if self._log is not None and now_ms - self._reported_ms >= REPORT_MS:
                self._send_report(self._reported)
        elif not self._end_if_silent(SILENT_MS) and self._log is not None:
            if now_ms - self._reported_ms >= REPORT_MS:
                self._report()
            self._blocks.tick(min(self._confirm.confirmed, self._log.end))

    # Stream

    def begin(self, welcome: Welcome) -> None:
        """Report where the log ends, now that it is truncated and its history saved."""
        self._log = ReceivedLog(self._replica, welcome)
        self._report()
        if self._transport is not None:
            self._blocks.begin(self._transport)

    def _work(self) -> None:
        """Process the waiting frames; stop at one whose epoch must be saved first."""
        confirm = self._confirm
        try:
            while self._waiting and not self._is_saving:
                self._use(*self._waiting.popleft())
        except MasterRefused:
            self._append()  # the frames before the refusal
            raise
        self._append()
        if self._log is not None and not self._is_saving:
            self._report_news()
        if self._confirm is not confirm:
            self._showing.confirm(self._confirm.confirmed)

    def _use(self, kind: Kind, body: memoryview) -> None:
        if self._log is None:
            self._answer(kind, body)
        elif kind is Kind.RECORDS:
            if self._log.take(frames.decode_records(body)):
                self._reach(self._log)
        elif kind is Kind.CONFIRM:
            self._take_confirm(frames.decode(body, frames.Confirm))
        elif kind is Kind.CHANGES:
            self._replica.tables.apply(self._hello.epoch, frames.decode_tables(kind, body))
        elif kind is Kind.TABLES:
            self._whole.collect(frames.decode_tables(kind, body), len(body))
        elif kind is Kind.TABLES_END:
            number = frames.decode_tables_end(body)
            self._replica.tables.adopt(self._hello.epoch, number, self._whole.take())
        elif kind is Kind.BLOCK:
            self._blocks.take_block(body)
        elif kind is Kind.WANT_BLOCK:
            assert self._transport is not None
            self._blocks.answer(self._transport, body)
        else:
            self._answer(kind, body)

    def _answer(self, kind: Kind, body: memoryview) -> None:
        """Handle the master's answer to HELLO; raise MasterRefused if it is REFUSED."""
        if kind is Kind.WELCOME and not self.welcome.done():
            self.welcome.set_result(decode_handshake(body, Welcome))
        elif kind is Kind.REFUSED:
            raise MasterRefused(decode_handshake(body, Refused))
        else:
            raise RemoteProtocolError(f"a {kind.name} frame at the wrong time")

    def _take_confirm(self, confirm: frames.Confirm) -> None:
        known = self._confirm
        if confirm.epoch != self._hello.epoch or confirm.confirmed < known.confirmed:
            raise UnfitLog(
                Unfit.STALE_EPOCH,
                f"the master of epoch {self._hello.epoch} sends {tuple(confirm)} after"
                f" {tuple(known)}",
            )
        self._confirm = confirm
        self._replica.heard(confirm, 0)

    def _append(self) -> None:
        if self._log is not None and (count := self._log.append()):
            self._replica.heard(self._confirm, count)

    def _reach(self, log: ReceivedLog) -> None:
        self._append()
        history = log.next_history()
        self._is_saving = True
        assert self._transport is not None
        self._transport.pause_reading()
        self._replica.spawn(self._save(log, history))

    async def _save(self, log: ReceivedLog, history: History) -> None:
        try:
            await self._replica.epochs.save(history)
        except OSError as error:
            self._replica.failed(error)
            self.end(error)
            return
        self._is_saving = False
        if self.ended.done() or self._transport is None:
            return
        log.find_next_start()
        try:
            self._work()
        except (CometError, OSError) as error:
            self._break_off(error)
            return
        self._read_on()

    def _pause_if_crowded(self) -> None:
        """Stop reading while checkpoints cannot keep up: unsaved queue entries take memory."""
        if self._replica.driver.store.upkeep.catch_up.is_crowded and not self.is_waiting_for_disk:
            self.is_waiting_for_disk = True
            assert self._transport is not None
            if not self._is_saving:
                self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_waiting_for_disk and not self._replica.driver.store.upkeep.catch_up.is_crowded:
            self.is_waiting_for_disk = False
            self._read_on()

    def _read_on(self) -> None:
        """Read again unless there is still a reason to wait, and measure silence anew."""
        is_waiting = self._is_saving or self.is_waiting_for_disk
        if self._transport is not None and not is_waiting and not self.ended.done():
            self._heard_ms = self._now_ms()
            self._transport.resume_reading()

    # Reports

    def _report_news(self) -> None:
        elapsed_ms = self._now_ms() - self._reported_ms
        if self._replica.driver.store.upkeep.catch_up.is_active and elapsed_ms < REPORT_BEHIND_MS:
            return
        report = self._next_report()
        is_news = (report.offset, report.tables) != (self._reported.offset, self._reported.tables)
        if is_news or elapsed_ms >= REPORT_MS:
            self._send_report(report)

    def _next_report(self) -> Report:
        assert self._log is not None
        epoch = self._hello.epoch
        tables = self._replica.tables.received(epoch)
        return Report(epoch, self._log.end, tables, self._confirm.sent_ms)

    def _report(self) -> None:
        self._send_report(self._next_report())

    def _send_report(self, report: Report) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._reported, self._reported_ms = report, self._now_ms()
        self._transport.write(frames.encode(report))


class MasterRefused(CometError):
    """The master refuses to serve this follower."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused
