# SPDX-License-Identifier: Apache-2.0
"""The master's side of the stream between members of a broker group, and its port.

Each follower has a connection, which begins with the handshake. After its first report the follower
receives the tables and the log as they change; bytes are sent before they are confirmed. All
reports of one turn of the loop are passed to the leader together. A new confirm offset is sent with
the next records; if there are none, it is sent a few milliseconds later.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.block_exchange import Turn
from cometmq.broker.copies.streams.epoch_log import EpochLog
from cometmq.broker.copies.streams.follower_stream import FollowerStream
from cometmq.broker.copies.streams.handshake import Identity, Leading
from cometmq.broker.copies.streams.proving import (
    ProofResponder,
    Proven,
    Proving,
    send_refusal,
)
from cometmq.broker.copies.streams.reports import FollowerView, Heard, Reports
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.turn import OncePerTurn
from cometmq.ha.record import Copy
from cometmq.remoting.log import Log
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.serving import LogServer

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


class LogSender:
    """Serves this master's followers on the port of `LogServer`; before `lead`, it refuses them."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        identity: Identity,
        store: MessageStore,
        epochs: EpochLog,
        tables: TableFeed,
        *,
        epoch_seen: Callable[[int], None],
        port: "LogServer",
        worker: Worker,
        settings: Callable[[], BrokerSettings],
        proving: Proving,
        now_ms: Callable[[], int],
        log: Log,
    ) -> None:
        """`epoch_seen` handles a later epoch than this broker's, named by a follower; `worker`
        reads bytes that are not in memory; `now_ms` reads CLOCK_BOOTTIME.
        """
        self.proving = proving
        self.identity = identity
        self.store = store
        self.epochs = epochs
        self.tables = tables
        self.epoch_seen = epoch_seen
        self.port = port
        self.worker = worker
        self.settings = settings
        self.now_ms = now_ms
        self.log = log
        self.epoch = 0
        """The epoch of which this broker is the master; 0 if it is not a master."""
        self.confirmed = 0
        self.turn = Turn()
        self.sent_bytes = 0
        self._streams: dict[FollowerStream, None] = {}  # in the order of connection
        self._reports: dict[Copy, Heard] = {}
        self._report = OncePerTurn(self._pass_reports)
        self._is_confirm_due = False
        self.wake_later = OncePerTurn(self.wake)
        self._told: Reports | None = None

    def lead(self, epoch: int, *, confirmed: int, reports: Reports) -> None:
        """Accept followers of this epoch and pass on their `reports`; the history (`EpochLog`)
        already has its entry.
        """
        self.stop()
        self._told = reports
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
        self._told = None
        self._reports.clear()
        for stream in tuple(self._streams):
            stream.close()

    def followers(self) -> list[FollowerView]:
        """Return the followers that have passed the handshake."""
        return [stream.view() for stream in self._streams if stream.is_following]

    @property
    def connection_count(self) -> int:
        return sum(stream.copy is not None for stream in self._streams)

    # Called by the server and the streams

    def accept(self, transport: asyncio.Transport, address: str, version: int, data: bytes) -> None:
        """Serve a connection that starts with a member's opening bytes."""
        if version == frames.PROVEN_VERSION and self.proving.keys():
            responder = ProofResponder(self, transport, address)
            transport.set_protocol(responder)
            responder.data_received(data)
        elif version != frames.VERSION:
            self.unproven(transport, address, self._why_no_proof(version))
        elif self.proving.admits_unproven:
            self._serve(FollowerStream(self, transport, address), data)
        else:
            text = f"a program connects without proving that it has the key ({self.proving.shown})"
            self.unproven(transport, address, UnfitLog(Unfit.UNPROVEN, text))

    def proven(
        self, transport: asyncio.Transport, address: str, proven: Proven, data: bytes
    ) -> None:
        """Serve a connection that has proven itself."""
        self._serve(FollowerStream(self, transport, address, proven), data)

    def unproven(self, transport: asyncio.Transport, address: str, error: UnfitLog) -> None:
        """Refuse a connection, and tell it nothing about this broker."""
        self.port.note_refused(address, error)
        texts = {
            Unfit.VERSION: str(error),
            Unfit.UNPROVEN: "this broker accepts only members that prove its groupKeyFile",
        }
        send_refusal(transport, error.reason, texts.get(error.reason, "not the group's stream"))

    def _why_no_proof(self, version: int) -> UnfitLog:
        if version == frames.PROVEN_VERSION:
            text = "a member proves a groupKeyFile, and this broker has none"
        else:
            text = f"a member speaks version {version} of the stream, which this broker does not"
        return UnfitLog(Unfit.VERSION, text)

    def _serve(self, stream: FollowerStream, data: bytes) -> None:
        self._streams[stream] = None
        stream.transport.set_protocol(stream)
        if data:
            stream.data_received(data)

    def forget(self, transport: asyncio.Transport) -> None:
        """Forget a connection that ended before the proof, or has been counted."""
        self.port.forget_stranger(transport)

    def wake(self) -> None:
        """Send all bytes and changes since the last call; called once per turn."""
        for stream in tuple(self._streams):
            stream.wake()

    def tick(self) -> None:
        """Send the heartbeats that are due, and close silent connections."""
        now_ms = self.now_ms()
        keys = self.proving.keys()
        heartbeat_ms = min(HEARTBEAT_MS, self.settings().heard_within_mills // 3)
        for stream in tuple(self._streams):
            if now_ms - stream.heard_ms > SILENT_MS:
                self.log.warning("follower.silent", slave=stream.address, silent_ms=SILENT_MS)
                stream.close()
            elif stream.proven is not None and stream.proven.key not in keys:
                stream.close()  # proven with a key that is not accepted any more
            else:
                if now_ms - stream.confirm_ms >= heartbeat_ms:
                    stream.send_confirm()
                stream.ask()

    def leading(self) -> Leading:
        """Return what this master offers; raise UnfitLog if this broker is not a master."""
        if not self.epoch:
            raise UnfitLog(Unfit.NOT_MASTER, "this broker is not the master now")
        return Leading(self.identity, self.epoch, self.epochs.extent())

    def establish(self, stream: FollowerStream) -> None:
        """Count a stream among the members; raise UnfitLog if there are too many."""
        if not self.port.establish(stream.transport, stream.address):
            raise UnfitLog(Unfit.REFUSED, "too many connections are open: raise haConnectionsMax")
        if stream.proven is None and self.proving.keys():
            self.log.warning(
                "follower.unproven", slave=stream.address,
                action="give it groupKeyFile; then remove groupKeyRequired=false everywhere",
            )  # fmt: skip

    def replace(self, newcomer: FollowerStream, copy: Copy) -> None:
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

    def ended(self, stream: FollowerStream) -> None:
        """Forget a closed connection."""
        if stream in self._streams:
            del self._streams[stream]
            if stream.is_following:
                self.log.info("follower.disconnected", slave=stream.address)

    def _pass_reports(self) -> None:
        reports, self._reports = self._reports, {}
        if reports and self._told is not None:
            self._told.heard(list(reports.values()))

    def left(self, copy: Copy) -> None:
        """Report that a follower is stopping; drop its last report, which would claim that it is
        running.
        """
        self._reports.pop(copy, None)
        if self._told is not None:
            self._told.left(copy)

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
