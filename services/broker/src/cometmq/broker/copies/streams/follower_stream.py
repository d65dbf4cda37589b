# SPDX-License-Identifier: Apache-2.0
"""A follower's connection, at the master: the handshake, then the log and the
tables, which are sent as they change.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.block_exchange import BlockExchange
from cometmq.broker.copies.streams.frames import Confirm, FrameReader, Kind, Report
from cometmq.broker.copies.streams.handshake import (
    DAMAGE_COUNT_MAX,
    Digest,
    Hello,
    Identity,
    Offer,
    Refused,
    Welcome,
    check_hello,
    decode_handshake,
    digest,
    digest_start,
    intact_start,
    meeting_point,
)
from cometmq.broker.copies.streams.proving import Proven, name_of, printable
from cometmq.broker.copies.streams.replica import epoch_at, next_start
from cometmq.broker.copies.streams.served import (
    SLICE_BYTES,
    TURN_BYTES,
    SendTurns,
    ServedStream,
    close_soon,
)
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.ha.in_sync import Ack
from cometmq.ha.record import Copy
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.store.log.damage import DamagedRange, overlaps

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.sending import LogSender


class Heard(NamedTuple):
    ack: Ack
    sent_ms: int
    """When the master sent the last CONFIRM that the follower had received, by `now_ms`. The
    follower had promised no later epoch then, so it counts as heard at this time.
    """


class FollowerView(NamedTuple):
    """A connected follower, for status and metrics."""

    copy: Copy
    address: str
    sent_offset: int
    acked_offset: int
    tables: int


class TableStream:
    """Sends the tables to one follower: first the complete tables in pieces, then each change."""

    def __init__(
        self,
        feed: TableFeed,
        write: Callable[[bytes], None],
        *,
        turns: SendTurns,
        is_paused: Callable[[], bool],
    ) -> None:
        self._feed = feed
        self._write = write
        self._turns = turns
        self._is_paused = is_paused
        self.sent = -1
        """The number of the last change sent, alone or in complete tables; -1 if none."""
        self._pieces: Iterator[tuple[str, bytes]] | None = None  # being sent, as of `_number`
        self._number = 0

    def send(self) -> bool:
        """Write missing changes or one piece; return whether to call again in a later turn.

        A piece takes up to 5 ms to encode, so in its turn nothing else is sent to any follower.
        """
        while not self._is_paused():
            if self._pieces is None:
                changes = self._feed.since(self.sent) if self.sent >= 0 else None
                if changes is not None:
                    for number, encoded in changes:
                        self.sent = number
                        self._write(frames.encode_body(Kind.CHANGES, encoded))
                    return False
                self._pieces, self._number = self._feed.whole(), self._feed.position.changes
            if self._turns.is_over:
                return True
            piece = next(self._pieces, None)
            if piece is not None:
                self._turns.spend(TURN_BYTES)
                self._write(frames.encode_tables(Kind.TABLES, self._number, [piece]))
                return True
            self._pieces, self.sent = None, self._number
            self._write(frames.encode_tables_end(self._number))
        return False


class FollowerStream(ServedStream):
    def __init__(
        self,
        sender: "LogSender",
        transport: asyncio.Transport,
        address: str,
        proven: Proven | None = None,
    ) -> None:
        super().__init__(sender, transport, address, sender.store.commit_log.view_to_end)
        self._sender = sender
        self.proven = proven
        self._frames = FrameReader(Kind.HELLO, Kind.ACK, Kind.REFUSED, Kind.WANT_BLOCK, Kind.BLOCK)
        self._epoch = sender.epoch
        self._welcome: Welcome | None = None
        self._acked = Report(0, 0, -1, 0)
        self._sent_offset = 0
        self._epoch_of_bytes = self._epoch_end = 0  # of the bytes at `_sent_offset`, and its end
        self._tables = TableStream(
            sender.replica.tables, transport.write, turns=sender.send_turns,
            is_paused=lambda: self.is_paused,
        )  # fmt: skip
        self._is_sent_later = False
        self.confirm_sent_ms = sender.now_ms()
        self._confirmed = 0  # the confirm offset that the follower was sent
        self._is_confirm_fresh = False  # records have carried it since the last timer
        self.copy: Copy | None = None
        self.is_following = False
        self._blocks = BlockExchange(
            sender.store, sender.turn, worker=sender.worker, now_ms=sender.now_ms, peer=address,
            log=sender.replica.log,
        )  # fmt: skip

    # Events of the connection

    def _take(self, data: bytes) -> None:
        for kind, body in self._frames.feed(data):
            if kind is Kind.HELLO:
                self._greet(decode_handshake(body, Hello))
            elif kind is Kind.ACK:
                self._take_report(frames.decode(body, Report))
            elif kind is Kind.WANT_BLOCK or kind is Kind.BLOCK:
                self._exchange(kind, body)
            else:
                self._note_refused(decode_handshake(body, Refused))

    def resume_writing(self) -> None:
        self.is_paused = False
        self.send_confirm()
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.port.openings.remove(self.transport)
        self._ended()

    def _ended(self) -> None:
        self._blocks.close()
        self._sender.ended(self)

    def refuse(self, error: UnfitLog) -> None:
        self._sender.port.note_refused(self.address, error)
        refused = Refused(error.reason.value, str(error), self._sender.epoch)
        self._ended()
        if not self.transport.is_closing():
            self.transport.write(frames.encode_json(Kind.REFUSED, refused))
            close_soon(self.transport)

    def view(self) -> FollowerView:
        assert self.copy is not None
        report = self._acked
        return FollowerView(
            self.copy, self.address, self._sent_offset, report.offset, report.tables
        )

    # Handshake

    def _greet(self, hello: Hello) -> None:
        if self._welcome is not None or self.copy is not None:
            raise UnfitLog(Unfit.PROTOCOL, "a second HELLO on one connection")
        sender = self._sender
        self._check_proven(hello.identity)
        if hello.promised > sender.epoch:
            sender.replica.events.epoch_seen(hello.promised)
        offer = sender.offer()
        check_hello(hello, offer)
        point = meeting_point(hello.log, offer.log)
        sender.replace(self, hello.identity.copy)
        sender.establish(self.transport, self.address, self.proven)
        self.copy = hello.identity.copy
        self._epoch = offer.epoch
        if hello.tables <= sender.replica.tables.position.changes:
            self._tables.sent = hello.tables
        start = digest_start(point.offset, offer.log, hello.log)
        start = intact_start(
            start, point.offset, self._commit_log.damage, hello.damage[-DAMAGE_COUNT_MAX:]
        )
        welcome = partial(self._send_welcome, offer, point.offset, start)
        if start < point.offset:
            self._read(start, point.offset - start, welcome)
        else:
            welcome(b"")

    def _check_proven(self, identity: Identity) -> None:
        if self.proven is not None and self.proven.name != name_of(identity):
            raise UnfitLog(
                Unfit.UNPROVEN,
                f"{name_of(identity)} speaks on a connection that is proven for {self.proven.name}",
            )

    def _send_welcome(self, offer: Offer, point: int, start: int, data: Buffer) -> None:
        sender = self._sender
        self._welcome = welcome = Welcome(
            sender.proving.identity,
            offer.epoch,
            offer.log,
            point,
            Digest(start, digest(data)),
            min(sender.confirmed, offer.log.end),
        )
        self.transport.write(frames.encode_json(Kind.WELCOME, welcome))

    def _note_refused(self, refused: Refused) -> None:
        """Log why the follower refused this master; report the refusal's epoch to the member."""
        if refused.reason == Unfit.STOPPING and self.copy is not None and self.is_following:
            self._sender.replica.log.info("follower.left", slave=self.address)
            self._sender.left(self.copy)
            self.close()
            return
        error = printable(refused.text)
        self._sender.replica.log.warning("follower.refused", slave=self.address, error=error)
        if refused.epoch > self._epoch:
            self._sender.replica.events.epoch_seen(refused.epoch)
        self.close()

    # Reports

    def _take_report(self, report: Report) -> None:
        if self._welcome is None or self.copy is None:
            raise UnfitLog(Unfit.PROTOCOL, "a report before the handshake")
        if not self.is_following:
            self._begin(report, self._welcome.start)
        known = self._acked
        if (
            report.epoch != self._epoch
            or not known.offset <= report.offset <= self._sent_offset
            or not known.tables <= report.tables <= self._tables.sent
            or not known.heard_ms <= report.heard_ms <= self.confirm_sent_ms
        ):
            raise UnfitLog(
                Unfit.ACK,
                f"the follower reports {tuple(report)} after {tuple(known)}; it was sent epoch"
                f" {self._epoch}, the log up to {self._sent_offset} and {self._tables.sent} table"
                " changes",
            )
        self._acked = report
        ack = Ack(self.copy, report.epoch, report.offset, report.tables)
        self._sender.note_report(Heard(ack, report.heard_ms))

    def _begin(self, report: Report, start: int) -> None:
        """Start sending the log from the point to which the follower has truncated its own."""
        if report.offset != start:
            text = f"the follower begins at {report.offset}, the logs agree up to {start}"
            raise UnfitLog(Unfit.ACK, text)
        self._acked = Report(report.epoch, start, -1, 0)
        self._sent_offset = start
        self.is_following = True
        self._sender.replica.log.info("follower.connected", slave=self.address, offset=start)
        self._sender.port.forget_refusals(self.address)
        self._blocks.begin(self.transport)
        self.send_confirm()
        self.wake()

    # Damaged blocks

    def ask(self) -> None:
        self._blocks.tick(min(self._acked.offset, self._sender.confirmed))

    def _exchange(self, kind: Kind, body: memoryview) -> None:
        if not self.is_following:
            raise UnfitLog(Unfit.PROTOCOL, f"a {kind.name} frame before the first report")
        if kind is Kind.BLOCK:
            self._blocks.take_block(body)
        else:
            self._blocks.answer(self.transport, body)

    # Output to the follower

    def wake(self) -> None:
        if self.is_following and not self.transport.is_closing():
            if not self._is_sent_later and self._tables.send():
                self._is_sent_later = True  # senders are served before the next piece
                self._sender.send_turns.later(self._send_on)
            super().wake()

    @property
    def is_confirm_late(self) -> bool:
        return self._confirmed < self._sender.confirmed

    def send_confirm(self) -> None:
        """Send the progress, also as a heartbeat, and when a paused connection resumes."""
        if self.is_following and not self.is_paused and not self.transport.is_closing():
            self.transport.write(self._next_confirm())

    def send_late_confirm(self) -> bool:
        """Send the progress unless records have carried it; return whether it was sent."""
        was_fresh, self._is_confirm_fresh = self._is_confirm_fresh, False
        if not was_fresh:
            self.send_confirm()
        return not was_fresh

    def _next_confirm(self) -> bytes:
        sender, end = self._sender, self._commit_log.end
        self.confirm_sent_ms = sender.now_ms()
        self._confirmed = min(sender.confirmed, end)
        confirm = Confirm(self._epoch, self._confirmed, end, self.confirm_sent_ms)
        return frames.encode(confirm)

    def _send_on(self) -> None:
        self._is_sent_later = False
        self.wake()

    def _place(self) -> tuple[int, int] | None:
        """Return the next slice, which lies within one epoch and contains no damaged bytes."""
        offset, end = self._sent_offset, self._commit_log.end
        if not self.is_following or offset >= end:
            return None
        if offset >= self._epoch_end:
            assert self._welcome is not None
            history = self._welcome.log.history
            self._epoch_of_bytes = epoch_at(history, offset)
            self._epoch_end = next_start(history, offset)
        stop = min(end, offset + SLICE_BYTES, self._epoch_end)
        damage = self._commit_log.damage
        if damage and overlaps(damage, offset, stop - offset):
            stop = self._before_damage(damage, offset)
            if stop == offset:
                return None
        return offset, stop - offset

    def _before_damage(self, damage: Sequence[DamagedRange], offset: int) -> int:
        first = next(one for one in damage if one.end > offset)
        if first.start > offset:
            return first.start
        self.refuse(
            UnfitLog(Unfit.DAMAGED, f"bytes {first.start} to {first.end} of this log are damaged")
        )
        return offset

    def _send(self, data: Buffer) -> int:
        offset, count = self._sent_offset, len(data)
        header = frames.encode_records_header(self._epoch_of_bytes, offset, count)
        if not self._is_confirm_fresh and self.is_confirm_late:
            self._is_confirm_fresh = True
            header = self._next_confirm() + header
        self.transport.writelines((header, data))
        self._sent_offset += count
        self._sender.sent_bytes += count
        return count

    def _failed(self, error: Exception) -> None:
        if isinstance(error, UnfitLog):
            self.refuse(error)
            return
        self._sender.replica.log.error(
            "slave.log_unreadable", slave=self.address, error=describe(error)
        )
        self.close()
