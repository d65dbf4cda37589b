# SPDX-License-Identifier: Apache-2.0
"""The master's side of the stream between members of a group, and its port.

Each follower has a connection, which begins with the handshake. After its first report the follower
receives the tables and the log as they change; bytes are sent before they are confirmed. All
reports of one turn of the loop are passed to the leader together. A new confirm offset is sent with
the next records; if there are none, it is sent a few milliseconds later.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.once_per_turn import OncePerTurn
from cometmq.broker.replication.group import frames
from cometmq.broker.replication.group.epoch_log import EpochLog, epoch_at, next_start
from cometmq.broker.replication.group.frames import Confirm, FrameReader, Kind, Report
from cometmq.broker.replication.group.handshake import (
    Digest,
    Hello,
    Identity,
    Leading,
    Refused,
    TablesWanted,
    Welcome,
    check_hello,
    decode_handshake,
    digest,
    digest_start,
    meeting_point,
)
from cometmq.broker.replication.group.reports import FollowerEvents, FollowerView, Heard
from cometmq.broker.replication.group.table_feed import TableFeed
from cometmq.broker.replication.group.table_offer import TableOffers
from cometmq.broker.replication.group.table_stream import TableStream
from cometmq.broker.replication.pump import SLICE_BYTES, LogPump, close_soon
from cometmq.broker.replication.unfit import Unfit, UnfitLog
from cometmq.broker.settings import BrokerSettings
from cometmq.ha.epochs import History
from cometmq.ha.in_sync import Ack
from cometmq.ha.record import Copy
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.worker import Worker
from cometmq.store.log.damage import DamagedRange, overlaps
from cometmq.store.message_store import MessageStore

HEARTBEAT_MS: Final = 500
"""Maximum interval between heartbeats: a third of the default of `heardWithinMills`. If the setting
is lower, the interval is a third of the setting.
"""

SILENT_MS: Final = 5_000
"""A connection that is silent for this long is closed."""

CONFIRM_DELAY_MS: Final = 5
"""How long a new confirm offset waits for records that it can be sent with. The offset only
determines what readers of a slave see. Sent separately, it would wake each follower a second time
for every batch. Records carry at most one within this time.
"""


class GroupSender:
    """Serves this master's followers on the port of `LogServer`; before `lead`, it refuses them.

    `LogServer.group` refers to this object; the server passes connections, wake-ups and ticks to
    it.
    """

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        identity: Identity,
        store: MessageStore,
        epochs: EpochLog,
        tables: TableFeed,
        events: FollowerEvents,
        *,
        worker: Worker,
        settings: Callable[[], BrokerSettings],
        now_ms: Callable[[], int],
        log: Log,
    ) -> None:
        """`worker` reads bytes that are not in memory; `now_ms` reads CLOCK_BOOTTIME."""
        self.identity = identity
        self.store = store
        self.epochs = epochs
        self.tables = tables
        self.events = events
        self.worker = worker
        self.settings = settings
        self.now_ms = now_ms
        self.log = log
        self.epoch = 0
        """The epoch of which this broker is the master; 0 if it is not a master."""
        self.confirmed = 0
        self.sent_bytes = 0
        self.refused: Callable[[str, UnfitLog], None] = lambda _address, _error: None
        self.served: Callable[[str], None] = lambda _address: None
        self._streams: dict[FollowerStream, None] = {}  # in the order of connection
        self._reports: dict[Copy, Heard] = {}
        self._report = OncePerTurn(self._pass_reports)
        self._is_confirm_due = False
        self.offers = TableOffers(identity, tables, now_ms=now_ms, log=log)
        tables.sent = OncePerTurn(self.wake)

    def lead(self, epoch: int, *, confirmed: int) -> None:
        """Accept followers of this epoch; the history (`EpochLog`) already has its entry."""
        self.stop()
        self.epoch = epoch
        self.confirmed = confirmed

    def confirm(self, offset: int) -> None:
        """Send the followers the confirm offset within a few milliseconds; it never decreases."""
        if offset > self.confirmed:
            self.confirmed = offset
            self._send_confirms_later()

    def stop(self) -> None:
        """Close all connections, because this broker is no longer the master."""
        self.epoch = 0
        self._reports.clear()
        self.offers.close()
        for stream in tuple(self._streams):
            stream.close()

    def followers(self) -> list[FollowerView]:
        """Return the followers that have passed the handshake."""
        return [stream.view() for stream in self._streams if stream.is_following]

    @property
    def connection_count(self) -> int:
        return len(self._streams) + len(self.offers)

    # Called by the server and the streams

    def accept(self, transport: asyncio.Transport, address: str, version: int, data: bytes) -> None:
        """Serve a connection that starts with a group member's opening bytes."""
        stream = FollowerStream(self, transport, address)
        self._streams[stream] = None
        transport.set_protocol(stream)
        if version == frames.VERSION:
            stream.data_received(data)
            return
        text = f"a member speaks version {version} of the stream, this broker {frames.VERSION}"
        stream.refuse(UnfitLog(Unfit.VERSION, text))

    def wake(self) -> None:
        """Send all bytes and changes since the last call; called once per turn."""
        for stream in tuple(self._streams):
            stream.wake()

    def tick(self) -> None:
        """Send the heartbeats that are due, and close silent connections."""
        self.offers.tick()
        now_ms = self.now_ms()
        heartbeat_ms = min(HEARTBEAT_MS, self.settings().heard_within_mills // 3)
        for stream in tuple(self._streams):
            if now_ms - stream.heard_ms > SILENT_MS:
                self.log.warning("follower.silent", slave=stream.address, silent_ms=SILENT_MS)
                stream.close()
            elif now_ms - stream.confirm_ms >= heartbeat_ms:
                stream.send_confirm()

    def leading(self) -> Leading:
        """Return what this master offers; raise UnfitLog if this broker is not a master."""
        if not self.epoch:
            raise UnfitLog(Unfit.NOT_MASTER, "this broker is not the master now")
        return Leading(self.identity, self.epoch, self.epochs.extent())

    def offer(self, stream: "FollowerStream", wanted: TablesWanted) -> None:
        """Send a winner the tables instead of the log; raise UnfitLog while this broker leads."""
        promised = self.events.promised()
        if wanted.epoch > promised:
            self.events.epoch_seen(wanted.epoch)
        if self.epoch:
            text = f"this broker is the master of epoch {self.epoch}, and sends its tables itself"
            raise UnfitLog(Unfit.TABLES, text)
        self.offers.begin(stream.transport, stream.address, wanted, promised)
        self.ended(stream)

    def replace(self, newcomer: "FollowerStream", copy: Copy) -> None:
        """Close the same broker's earlier connection; raise UnfitLog if two stores claim one id."""
        for stream in tuple(self._streams):
            if stream is newcomer or stream.copy is None or stream.copy.ordinal != copy.ordinal:
                continue
            is_alive = self.now_ms() - stream.heard_ms < 3 * HEARTBEAT_MS
            if stream.copy != copy and is_alive:
                raise UnfitLog(
                    Unfit.DUPLICATE,
                    f"another store with the broker id {copy.ordinal} is connected from"
                    f" {stream.address}",
                )
            stream.close()

    def note_report(self, heard: Heard) -> None:
        """Pass a report to the leader at the end of this turn."""
        self._reports[heard.ack.copy] = heard
        self._report()

    def ended(self, stream: "FollowerStream") -> None:
        """Forget a closed connection."""
        if stream in self._streams:
            del self._streams[stream]
            if stream.is_following:
                self.log.info("follower.disconnected", slave=stream.address)

    def _pass_reports(self) -> None:
        reports, self._reports = self._reports, {}
        if reports and self.epoch:
            self.events.heard(list(reports.values()))

    def left(self, copy: Copy) -> None:
        """Report that a follower is stopping; drop its last report, which would claim that it is
        running.
        """
        self._reports.pop(copy, None)
        self.events.left(copy)

    def _send_confirms_later(self) -> None:
        if not self._is_confirm_due:
            self._is_confirm_due = True
            loop = asyncio.get_running_loop()
            loop.call_later(CONFIRM_DELAY_MS / 1000, self._send_confirms)

    def _send_confirms(self) -> None:
        self._is_confirm_due = False
        for stream in tuple(self._streams):
            if stream.lacks_confirm and not stream.send_late_confirm():
                self._send_confirms_later()


class FollowerStream(asyncio.Protocol):
    def __init__(self, sender: GroupSender, transport: asyncio.Transport, address: str) -> None:
        self._sender = sender
        self.transport = self._transport = transport
        self._commit_log = sender.store.commit_log
        self._frames = FrameReader(Kind.HELLO, Kind.ACK, Kind.REFUSED, Kind.FETCH)
        self._epoch = sender.epoch
        self._history: History = ()
        self._welcome: Welcome | None = None
        self._acked = Report(0, 0, -1, 0)
        self._sent_offset = 0
        self._epoch_of_bytes = self._epoch_end = 0  # of the bytes at `_sent_offset`, and its end
        self._tables = TableStream(
            sender.tables, transport.write, is_paused=lambda: self._pump.is_paused
        )
        self._owes_confirm = False  # the socket did not accept it
        self._confirmed = 0  # the confirm offset that the follower was sent
        self._is_confirm_fresh = False  # records have carried it since the last timer
        self.address = address
        self.copy: Copy | None = None
        self.is_following = False
        self.heard_ms = self.confirm_ms = sender.now_ms()
        self._pump = LogPump(
            transport,
            view=self._commit_log.view_to_end,
            place=self._place,
            send=self._send,
            failed=self._failed,
            worker=sender.worker,
            bytes_per_s=lambda: sender.settings().max_ha_transfer_byte_in_second,
            now_ms=sender.now_ms,
        )

    # Events of the connection

    def data_received(self, data: bytes) -> None:
        self.heard_ms = self._sender.now_ms()
        try:
            for kind, body in self._frames.feed(data):
                if kind is Kind.HELLO:
                    self._greet(decode_handshake(body, Hello))
                elif kind is Kind.ACK:
                    self._take_report(frames.decode_report(body))
                elif kind is Kind.FETCH:
                    self._want_tables(decode_handshake(body, TablesWanted))
                    return
                else:
                    self._note_refused(decode_handshake(body, Refused))
        except RemoteProtocolError as error:
            self.refuse(UnfitLog(Unfit.PROTOCOL, str(error)))
        except UnfitLog as error:
            self.refuse(error)

    def pause_writing(self) -> None:
        self._pump.is_paused = True

    def resume_writing(self) -> None:
        self._pump.is_paused = False
        if self._owes_confirm:
            self.send_confirm()
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.ended(self)

    def close(self) -> None:
        """Close the connection at once, discarding pending output."""
        self._sender.ended(self)
        self._transport.abort()

    def refuse(self, error: UnfitLog) -> None:
        """Send the reason, then close the connection."""
        self._sender.refused(self.address, error)
        refused = Refused(error.reason.value, str(error), self._sender.epoch)
        self._sender.ended(self)
        if not self._transport.is_closing():
            body = msgspec.json.encode(refused)
            self._transport.write(frames.encode_body(Kind.REFUSED, body))
            close_soon(self._transport)

    def view(self) -> FollowerView:
        """Return a snapshot for status and metrics."""
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
        if hello.promised > sender.epoch:
            sender.events.epoch_seen(hello.promised)
        leading = sender.leading()
        check_hello(hello, leading)
        point = meeting_point(hello.log, leading.log)
        sender.replace(self, hello.identity.copy)
        self.copy = hello.identity.copy
        self._epoch, self._history = leading.epoch, leading.log.history
        if hello.tables <= sender.tables.position.changes:
            self._tables.sent = hello.tables
        start = digest_start(point.offset, leading.log, hello.log)
        for damaged in self._commit_log.damage:
            if damaged.start < point.offset and damaged.end > start:
                start = min(damaged.end, point.offset)
        welcome = partial(self._send_welcome, leading, point.offset, start)
        if start < point.offset:
            self._pump.read(start, point.offset - start, welcome)
        else:
            welcome(b"")

    def _want_tables(self, wanted: TablesWanted) -> None:
        if self.copy is not None:
            raise UnfitLog(Unfit.PROTOCOL, "a FETCH after a HELLO on one connection")
        self._sender.offer(self, wanted)

    def _send_welcome(self, leading: Leading, point: int, start: int, data: Buffer) -> None:
        sender = self._sender
        self._welcome = welcome = Welcome(
            sender.identity,
            leading.epoch,
            leading.log,
            point,
            Digest(start, digest(data)),
            min(sender.confirmed, leading.log.end),
        )
        body = msgspec.json.encode(welcome)
        self._transport.write(frames.encode_body(Kind.WELCOME, body))

    def _note_refused(self, refused: Refused) -> None:
        """Log why the follower refused this master; note a later epoch that the refusal names."""
        if refused.reason == Unfit.STOPPING and self.copy is not None and self.is_following:
            self._sender.log.info("follower.left", slave=self.address)
            self._sender.left(self.copy)
            self.close()
            return
        self._sender.log.warning("follower.refused", slave=self.address, error=refused.text)
        if refused.epoch > self._epoch:
            self._sender.events.epoch_seen(refused.epoch)
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
            or not known.heard_ms <= report.heard_ms <= self.confirm_ms
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
        self._sender.log.info("follower.connected", slave=self.address, offset=start)
        self._sender.served(self.address)
        self.send_confirm()
        self.wake()

    # Output to the follower

    def wake(self) -> None:
        """Send the data that the follower lacks, until its connection accepts no more."""
        if self.is_following and not self._transport.is_closing():
            if self._tables.send():  # senders are served before the next piece
                asyncio.get_running_loop().call_soon(self.wake)
            self._pump.wake()

    @property
    def lacks_confirm(self) -> bool:
        """Whether the confirm offset last sent to the follower is out of date."""
        return self._confirmed < self._sender.confirmed

    def send_confirm(self) -> None:
        """Send the master's progress, which also serves as a heartbeat."""
        self._owes_confirm = self._pump.is_paused
        if not self.is_following or self._pump.is_paused or self._transport.is_closing():
            return
        self._transport.write(self._next_confirm())

    def send_late_confirm(self) -> bool:
        """Send the master's progress, unless records have carried it since the last call; return
        whether it was sent.
        """
        was_fresh, self._is_confirm_fresh = self._is_confirm_fresh, False
        if not was_fresh:
            self.send_confirm()
        return not was_fresh

    def _next_confirm(self) -> bytes:
        """Return the frame of the master's progress; the caller must send it."""
        sender = self._sender
        end = self._commit_log.end
        self.confirm_ms = sender.now_ms()
        self._confirmed = min(sender.confirmed, end)
        return frames.encode_confirm(Confirm(self._epoch, self._confirmed, end, self.confirm_ms))

    def _place(self) -> tuple[int, int] | None:
        """Return the next slice, which lies within one epoch and contains no damaged bytes."""
        offset, end = self._sent_offset, self._commit_log.end
        if not self.is_following or offset >= end:
            return None
        if offset >= self._epoch_end:
            self._epoch_of_bytes = epoch_at(self._history, offset)
            self._epoch_end = next_start(self._history, offset)
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
        if not self._is_confirm_fresh and self.lacks_confirm:
            self._is_confirm_fresh = True
            header = self._next_confirm() + header
        self._transport.writelines((header, data))
        self._sent_offset += count
        self._sender.sent_bytes += count
        return count

    def _failed(self, error: Exception) -> None:
        if isinstance(error, UnfitLog):
            self.refuse(error)
            return
        self._sender.log.error("slave.log_unreadable", slave=self.address, error=describe(error))
        self.close()
