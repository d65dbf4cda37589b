# SPDX-License-Identifier: Apache-2.0
"""A follower's connection to its master, once it is open.

During the handshake it only forwards the master's answer. `begin` starts the stream: all data that
arrives in one turn of the loop is appended with one write and acknowledged with one report. The
entry of a new epoch is saved before any of its bytes are appended or acknowledged; until then
nothing is read from the connection.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.block_exchange import BlockExchange
from cometmq.broker.copies.streams.frames import Frame, FrameReader, Kind, Report
from cometmq.broker.copies.streams.handshake import (
    Hello,
    Refused,
    Welcome,
    decode_handshake,
)
from cometmq.broker.copies.streams.pump import close_soon
from cometmq.broker.copies.streams.records import RecordStream
from cometmq.broker.copies.streams.session import MasterConnection
from cometmq.broker.copies.tables.feed import Changes
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.turn import OncePerTurn
from cometmq.ha.epochs import History, last_epoch, reached
from cometmq.remoting.errors import CometError, RemoteProtocolError
from cometmq.remoting.types import Buffer

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.following import Follower

REPORT_MS: Final = 200
"""Interval of reports while nothing changes; they repeat the master's time."""

REPORT_BEHIND_MS: Final = 10
"""Minimum interval of reports while the follower is catching up. No send waits for them then, but
each one costs the master a turn of its loop.
"""

SHOW_DELAY_MS: Final = 5
"""How long confirmed records may wait for more, so that they become visible together. Making a few
records visible costs almost as much as making a hundred visible.
"""

SHOW_BYTES: Final = 32 << 10
"""Confirmed records of this size do not wait, because showing more of them would take too long."""

SILENT_MS: Final = 5_000
WHOLE_BYTES_MAX: Final = 256 << 20
"""Maximum size of all tables together while they are being received."""


class MasterStream(MasterConnection):
    def __init__(self, target: "Follower", hello: Hello, peer: str, opening: bytes = b"") -> None:
        """`peer` names the master in events. `opening` precedes HELLO; it is empty on a connection
        that has been proven.
        """
        super().__init__(target.now_ms)
        self._target = target
        self._opening = opening
        self._hello = hello
        self._frames = FrameReader(
            Kind.WELCOME, Kind.REFUSED, Kind.RECORDS, Kind.CONFIRM, Kind.CHANGES, Kind.TABLES,
            Kind.TABLES_END, Kind.WANT_BLOCK, Kind.BLOCK,
        )  # fmt: skip
        self._blocks = BlockExchange(
            target.driver.store, target.turn, worker=target.worker, now_ms=target.now_ms,
            peer=peer, log=target.log,
        )  # fmt: skip
        self._waiting: deque[Frame] = deque()  # while an epoch's entry is being saved
        self._records: RecordStream | None = None  # None in the handshake
        self._pieces: list[Buffer] = []  # of the log, not appended yet
        self._master_history: History = ()
        self._next_start: int | None = None  # of the next epoch in the master's log
        self._whole: dict[str, list[msgspec.Raw]] | None = None
        self._whole_bytes = 0
        self._is_saving = False
        self.is_waiting_for_disk = False
        self._confirm = frames.Confirm(0, 0, 0, 0)
        self._show = OncePerTurn(self._show_confirmed)
        self._show_later: asyncio.TimerHandle | None = None
        self._reported = Report(0, 0, -1, 0)
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    # Events of the connection

    def _open(self, transport: asyncio.Transport) -> None:
        body = msgspec.json.encode(self._hello)
        transport.write(self._opening + frames.encode_body(Kind.HELLO, body))

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
        self._blocks.close()

    def _break_off(self, error: Exception) -> None:
        if isinstance(error, UnfitLog):
            self.refuse(error)
        self.end(error)

    def refuse(self, error: UnfitLog) -> None:
        """Send the reason why this broker does not follow, then close the connection."""
        refused = Refused(error.reason.value, str(error), self._hello.promised)
        if self._transport is not None and not self._transport.is_closing():
            body = frames.encode_body(Kind.REFUSED, msgspec.json.encode(refused))
            self._transport.write(body)
            close_soon(self._transport)

    def tick(self) -> None:
        """Send a report if one is due; close the connection if the master is silent."""
        if self.ended.done():
            return
        now_ms = self._now_ms()
        self.resume()
        if self._is_saving or self.is_waiting_for_disk:
            self._heard_ms = now_ms  # it is not read
        elif not self._end_if_silent(SILENT_MS) and self._records is not None:
            if now_ms - self._reported_ms >= REPORT_MS:
                self._report()
            self._blocks.tick(min(self._confirm.confirmed, self._end()))

    # Stream

    def begin(self, welcome: Welcome) -> None:
        """Report where the log ends now; the master continues from there.

        Call this after the log was truncated to the common point and the remaining history was
        saved.
        """
        target = self._target
        self._master_history = welcome.log.history
        self._records = RecordStream(
            welcome.start,
            file_size=welcome.log.file_size,
            record_bytes_max=target.record_bytes_max(),
            follow=target.follow_headers(),
        )
        self._find_next_start()
        self._report()
        if self._transport is not None:
            self._blocks.begin(self._transport)

    def _find_next_start(self) -> None:
        newest = last_epoch(self._target.epochs.history)
        later = [entry.start for entry in self._master_history if entry.epoch > newest]
        self._next_start = min(later, default=None)

    def _work(self) -> None:
        """Process the frames that have arrived, up to one that needs an epoch to be saved first."""
        confirm = self._confirm
        try:
            while self._waiting and not self._is_saving:
                self._use(*self._waiting.popleft())
        except MasterRefused:
            self._append()  # the frames before the refusal
            raise
        self._append()
        if self._records is not None and not self._is_saving:
            self._report_news()
        if self._confirm is not confirm:
            self._show_soon()

    def _show_soon(self) -> None:
        """Make the confirmed records visible after the turn's report has been sent, or a little
        later. Senders wait for the report, but not for the queues of a copy.
        """
        shown = self._target.driver.store.commit_log.confirm_offset
        if self._confirm.confirmed - shown >= SHOW_BYTES:
            self._show()
        elif self._show_later is None:
            loop = asyncio.get_running_loop()
            self._show_later = loop.call_later(SHOW_DELAY_MS / 1000, self._show_confirmed)

    def _show_confirmed(self) -> None:
        if self._show_later is not None:
            self._show_later.cancel()
            self._show_later = None
        if self.ended.done():
            return
        try:
            self._target.driver.confirm(self._confirm.confirmed)
        except (CometError, OSError) as error:
            self._break_off(error)

    def _use(self, kind: Kind, body: memoryview) -> None:
        if self._records is None:
            self._answer(kind, body)
        elif kind is Kind.RECORDS:
            self._take_records(frames.decode_records(body))
        elif kind is Kind.CONFIRM:
            self._take_confirm(frames.decode_confirm(body))
        elif kind is Kind.CHANGES:
            changes = frames.decode_tables(kind, body)
            self._target.tables.apply(self._hello.epoch, changes)
        elif kind is Kind.TABLES:
            self._collect(frames.decode_tables(kind, body), len(body))
        elif kind is Kind.TABLES_END:
            self._adopt(frames.decode_tables_end(body))
        elif kind is Kind.BLOCK:
            self._blocks.take_block(body)
        elif kind is Kind.WANT_BLOCK:
            assert self._transport is not None
            self._blocks.answer(self._transport, body)
        else:
            self._answer(kind, body)

    def _answer(self, kind: Kind, body: memoryview) -> None:
        """Handle the master's answer to the `Hello`; raise MasterRefused if it refuses."""
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
        self._target.heard(confirm, 0)

    def _take_records(self, records: frames.Records) -> None:
        assert self._records is not None
        start = self._records.end + sum(map(len, self._pieces))
        end = records.offset + len(records.data)
        epoch = last_epoch(self._target.epochs.history)
        if records.offset != start or records.epoch != epoch:
            raise UnfitLog(
                Unfit.OFFSET,
                f"the master sends offset {records.offset} of epoch {records.epoch}; this log ends"
                f" at {start} in epoch {epoch}",
            )
        if self._next_start is not None and end > self._next_start:
            raise RemoteProtocolError(f"bytes {start} to {end} span {self._next_start}, an epoch")
        self._pieces.append(records.data)
        if end == self._next_start:
            self._append()
            self._reach(end)

    def _append(self) -> None:
        """Append the whole records that have arrived, in one write."""
        if not self._pieces or self._records is None:
            return
        pieces, self._pieces = self._pieces, []
        whole = self._records.feed(*pieces)
        if whole:
            self._target.driver.append(self._end() - len(whole), whole)
            self._target.heard(self._confirm, len(whole))

    def _end(self) -> int:
        """Return the end of the last whole record; an empty log may begin with a later file."""
        assert self._records is not None
        return self._records.end - self._records.held_bytes

    def _reach(self, end: int) -> None:
        """Save the entry of the epoch that begins here."""
        if self._end() != end:
            raise UnfitLog(Unfit.NOT_A_RECORD, f"epoch begins at {end}, inside a record")
        self._is_saving = True
        assert self._transport is not None
        self._transport.pause_reading()
        history = reached(self._target.epochs.history, self._master_history, end)
        self._target.spawn(self._save(history))

    async def _save(self, history: History) -> None:
        try:
            await self._target.epochs.save(history)
        except OSError as error:
            self._target.failed(error)
            self.end(error)
            return
        self._is_saving = False
        if self.ended.done() or self._transport is None:
            return
        self._find_next_start()
        try:
            self._work()
        except (CometError, OSError) as error:
            self._break_off(error)
            return
        if not self._is_saving and not self.is_waiting_for_disk:
            self._transport.resume_reading()

    def _pause_if_crowded(self) -> None:
        """Stop reading if checkpoints cannot keep up with the master, because entries take memory
        until they are saved.
        """
        if (
            self._target.driver.store.upkeep.checkpointer.is_crowded
            and not self.is_waiting_for_disk
        ):
            self.is_waiting_for_disk = True
            assert self._transport is not None
            if not self._is_saving:
                self._transport.pause_reading()

    def resume(self) -> None:
        """Continue reading once the store has saved enough of the received entries."""
        if (
            self.is_waiting_for_disk
            and not self._target.driver.store.upkeep.checkpointer.is_crowded
        ):
            self.is_waiting_for_disk = False
            if self._transport is not None and not self._is_saving and not self.ended.done():
                self._transport.resume_reading()

    # Tables

    def _collect(self, changes: Changes, size: int) -> None:
        if self._whole is None:
            self._whole, self._whole_bytes = {}, 0
        self._whole_bytes += size
        if self._whole_bytes > WHOLE_BYTES_MAX:
            raise RemoteProtocolError(f"the tables have more than {WHOLE_BYTES_MAX} bytes")
        for name, piece in changes.tables.items():
            self._whole.setdefault(name, []).append(piece)

    def _adopt(self, number: int) -> None:
        whole, self._whole = self._whole, None
        self._target.tables.adopt(self._hello.epoch, number, whole or {})

    # Reports

    def _report_news(self) -> None:
        elapsed_ms = self._now_ms() - self._reported_ms
        if (
            self._target.driver.store.upkeep.checkpointer.is_catching_up
            and elapsed_ms < REPORT_BEHIND_MS
        ):
            return
        report = self._next_report()
        is_news = (report.offset, report.tables) != (self._reported.offset, self._reported.tables)
        if is_news or elapsed_ms >= REPORT_MS:
            self._send_report(report)

    def _next_report(self) -> Report:
        epoch = self._hello.epoch
        tables = self._target.tables.received(epoch)
        return Report(epoch, self._end(), tables, self._confirm.sent_ms)

    def _report(self) -> None:
        self._send_report(self._next_report())

    def _send_report(self, report: Report) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._reported, self._reported_ms = report, self._now_ms()
        self._transport.write(frames.encode_report(report))


class MasterRefused(CometError):
    """The master refuses to serve this follower."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused
