# SPDX-License-Identifier: Apache-2.0
"""The master's side of the stream between members of a broker group: all its followers.

Each follower has a connection, which begins with the handshake. After its first report the follower
receives the tables and the log as they change; bytes are sent before they are confirmed. All
reports of one turn of the loop are passed to the leadership together. A new confirm offset is sent
with the next records; if there are none, it is sent after CONFIRM_DELAY_MS.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.block_exchange import BlockTurn
from cometmq.broker.copies.streams.follower_stream import FollowerStream, FollowerView, Heard
from cometmq.broker.copies.streams.handshake import Offer
from cometmq.broker.copies.streams.proving import (
    ProofResponder,
    Proven,
    Proving,
    send_refusal,
)
from cometmq.broker.copies.streams.replica import MemberReplica
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.turn import OncePerTurn
from cometmq.ha.record import Copy
from cometmq.runtime.worker import Worker

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.serving import LogServer

HEARTBEAT_MS: Final = 500
"""Longest interval between heartbeats, or a third of `heardWithinMills`."""

EARLY_MS: Final = 50
"""A heartbeat is sent up to this much early, so that an early tick (100 ms) leaves none out."""

SILENT_MS: Final = 5_000

CONFIRM_DELAY_MS: Final = 5
"""How long a new confirm offset waits for records to be sent with: alone, it would wake each
follower a second time for every batch, and only readers of slaves need it.
"""


class Reports(Protocol):
    """Receives the followers' reports; implemented by `Confirmation`."""

    def heard(self, reports: Sequence[Heard]) -> None:
        """Apply the latest report of each follower, once per turn; all are of this epoch."""

    def left(self, copy: Copy) -> None:
        """Handle a follower's notice that it is stopping; no report follows."""


class LogSender:
    """Serves this master's followers on the port of `LogServer`; before `lead`, it refuses them."""

    def __init__(
        self, replica: MemberReplica, *, port: "LogServer", worker: Worker, proving: Proving
    ) -> None:
        self.port = port
        self.proving = proving
        self.replica = replica
        self.store = replica.driver.store
        self.worker = worker
        self.send_turns = port.send_turns
        self.settings = replica.settings
        self.now_ms = replica.now_ms
        self.epoch = 0
        """The epoch of which this broker is the master; 0 if it is not a master."""
        self.confirmed = 0
        self.turn = BlockTurn()
        self.sent_bytes = 0
        self._streams: dict[FollowerStream, None] = {}  # in the order of connection
        self._reports: dict[Copy, Heard] = {}  # of this turn
        self._told: Reports | None = None
        self._pass_later = OncePerTurn(self._pass_reports)
        self._is_confirm_due = False
        self.wake_later = OncePerTurn(self.wake)

    def lead(self, epoch: int, *, confirmed: int, reports: Reports) -> None:
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
        self.epoch = 0
        self._told = None
        self._reports.clear()
        for stream in tuple(self._streams):
            stream.close()

    def followers(self) -> list[FollowerView]:
        return [stream.view() for stream in self._streams if stream.is_following]

    @property
    def connection_count(self) -> int:
        return sum(stream.copy is not None for stream in self._streams)

    # Called by the server and the streams

    def accept(self, transport: asyncio.Transport, address: str, version: int, data: bytes) -> None:
        if version == frames.PROVEN_VERSION and self.proving.keys():
            responder = ProofResponder(self, transport, address)
            transport.set_protocol(responder)
            responder.data_received(data)
        elif version != frames.VERSION:
            self.unproven(transport, address, self._why_no_proof(version))
        elif self.proving.admits_unproven:
            self.serve(transport, address, None, data)
        else:
            text = f"a program connects without proving that it has the key ({self.proving.shown})"
            self.unproven(transport, address, UnfitLog(Unfit.UNPROVEN, text))

    def unproven(self, transport: asyncio.Transport, address: str, error: UnfitLog) -> None:
        """Refuse a connection whose proof failed, without revealing anything about this broker."""
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

    def establish(self, transport: asyncio.Transport, address: str, proven: Proven | None) -> None:
        """Count a connection among the members; raise UnfitLog if there are too many."""
        if not self.port.establish(transport, address):
            raise UnfitLog(Unfit.REFUSED, "too many connections are open: raise haConnectionsMax")
        if proven is None and self.proving.keys():
            self.replica.log.warning(
                "follower.unproven", slave=address,
                action="give it groupKeyFile; then remove groupKeyRequired=false everywhere",
            )  # fmt: skip

    def serve(
        self, transport: asyncio.Transport, address: str, proven: Proven | None, data: bytes
    ) -> None:
        stream = FollowerStream(self, transport, address, proven)
        self._streams[stream] = None
        transport.set_protocol(stream)
        if data:
            stream.data_received(data)

    def wake(self) -> None:
        for stream in tuple(self._streams):
            stream.wake()

    def tick(self) -> None:
        now_ms = self.now_ms()
        keys = self.proving.keys()
        heartbeat_ms = min(HEARTBEAT_MS, self.settings().heard_within_mills // 3)
        for stream in tuple(self._streams):
            if now_ms - stream.heard_ms > SILENT_MS:
                self.replica.log.warning(
                    "follower.silent", slave=stream.address, silent_ms=SILENT_MS
                )
                stream.close()
            elif stream.proven is not None and stream.proven.key not in keys:
                stream.close()  # proven with a key that is not accepted any more
            else:
                if now_ms - stream.confirm_sent_ms >= heartbeat_ms - EARLY_MS:
                    stream.send_confirm()
                stream.ask()

    def offer(self) -> Offer:
        """Return this master's side of the handshake; raise UnfitLog if it is no master."""
        if not self.epoch:
            raise UnfitLog(Unfit.NOT_MASTER, "this broker is not the master now")
        return Offer(self.proving.identity, self.epoch, self.replica.epochs.extent())

    def replace(self, newcomer: FollowerStream, copy: Copy) -> None:
        """Close an earlier connection of the same broker; raise UnfitLog if it is alive and another
        store's, because two brokers then have one id.
        """
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

    def ended(self, stream: FollowerStream) -> None:
        if stream in self._streams:
            del self._streams[stream]
            if stream.is_following:
                self.replica.log.info("follower.disconnected", slave=stream.address)

    def note_report(self, heard: Heard) -> None:
        self._reports[heard.ack.copy] = heard
        self._pass_later()

    def left(self, copy: Copy) -> None:
        """Pass on that a follower is stopping, at once, and drop its collected report."""
        self._reports.pop(copy, None)
        if self._told is not None:
            self._told.left(copy)

    def _pass_reports(self) -> None:
        reports, self._reports = self._reports, {}
        if reports and self._told is not None:
            self._told.heard(list(reports.values()))

    def _send_confirms_later(self) -> None:
        if not self._is_confirm_due:
            self._is_confirm_due = True
            loop = asyncio.get_running_loop()
            loop.call_later(CONFIRM_DELAY_MS / 1000, self._send_confirms)

    def _send_confirms(self) -> None:
        self._is_confirm_due = False
        for stream in tuple(self._streams):
            if stream.is_confirm_late and not stream.send_late_confirm():
                self._send_confirms_later()
