# SPDX-License-Identifier: Apache-2.0
"""The master's side: accepts slaves on haListenPort and sends them the log.

Each connection reads the log in slices of bounded size (`pump.py`), so that a slow slave never
delays senders. A commit wakes all slaves once per turn, and all acknowledgements of a turn complete
the pending sends together.

Rules that RocketMQ's master lacks: the first report must lie at a record boundary within the log,
an acknowledgement must not exceed the bytes sent, and it counts only as long as its connection is
open. An empty slave gets the whole log, not only its last file.

The first 8 bytes determine which stream a connection uses. RocketMQ's stream begins with an offset,
so its top bit is never set; a broker group's own stream (`group/`) sets it.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from cometmq.broker.once_per_turn import OncePerTurn
from cometmq.broker.replication.frames import (
    BODY_BYTES_MAX,
    REPORT_BYTES,
    ReportReader,
    encode_header,
)
from cometmq.broker.replication.group.frames import decode_opening
from cometmq.broker.replication.group.sending import GroupSender
from cometmq.broker.replication.pump import SLICE_BYTES, LogPump
from cometmq.broker.replication.records import HEAD_BYTES, is_border, whole_records
from cometmq.broker.replication.state import Slave, Slaves
from cometmq.broker.replication.unfit import Unfit, UnfitLog
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.store_driver import StoreDriver
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import peer_address
from cometmq.remoting.transport.server import ALL_ADDRESSES
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.clock import Clock
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import MessageStore

TICK_INTERVAL_MS: Final = 100
IDLE_INTERVAL_MS: Final = 500
"""The interval of a broker that has no slaves and follows no master."""
OPENING_BYTES: Final = 8
_REMEMBERED_REFUSALS_MAX: Final = 100


class LogServer:
    """Listens for slaves and keeps one stream for each."""

    def __init__(  # the collaborators, each by name
        self,
        store: MessageStore,
        driver: StoreDriver,
        slaves: Slaves,
        *,
        worker: Worker,
        settings: Callable[[], BrokerSettings],
        clock: Clock,
        log: Log,
    ) -> None:
        """`worker` reads slices that are not in memory; `settings` may change at run time."""
        self.store = store
        self.slaves = slaves
        self.worker = worker
        self.settings = settings
        self.clock = clock
        self.acked = OncePerTurn(self._answer_senders)
        self._driver = driver
        self._log = log
        self._group: GroupSender | None = None
        self._listeners: list[asyncio.Server] = []
        self._openings: set[_Opening] = set()
        self._streams: set[SlaveStream] = set()
        self._refusals: set[tuple[str, str, str]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Accept slaves on a port, and return it; 0 picks a free port."""
        loop = asyncio.get_running_loop()
        for address in (host,) if host else ALL_ADDRESSES:
            listener = await loop.create_server(partial(_Opening, self), address, port)
            self._listeners.append(listener)
            port = listener.sockets[0].getsockname()[1]
        return port

    @property
    def group(self) -> GroupSender | None:
        """The sender for the followers of a broker group; None if there is no group."""
        return self._group

    @group.setter
    def group(self, group: GroupSender) -> None:
        self._group = group
        group.refused, group.served = self.note_refused, self._forget_refusals

    def close(self) -> None:
        """Close the port and all connections; output already written to them is still sent."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for opening in tuple(self._openings):
            opening.close()
        for stream in tuple(self._streams):
            stream.finish()
        if self._group is not None:
            self._group.stop()

    def close_slaves(self) -> None:
        """Close the connections of RocketMQ's slaves; the log may no longer continue theirs."""
        for stream in tuple(self._streams):
            stream.finish()

    def wake(self) -> None:
        """Send the bytes appended to the log since the last call; call this once per turn."""
        for stream in tuple(self._streams):
            stream.pump()
        if self._group is not None:
            self._group.wake()

    @property
    def connection_count(self) -> int:
        """The number of connections, including those that have not sent anything yet."""
        group_count = 0 if self._group is None else self._group.connection_count
        return len(self._openings) + len(self._streams) + group_count

    def tick(self) -> None:
        """Send the heartbeats that are due, and close silent connections."""
        now_ms = self.clock.monotonic_ms()
        silent_ms = self.settings().ha_housekeeping_interval
        connections: list[_Opening | SlaveStream] = [*self._openings, *self._streams]
        for connection in connections:
            if now_ms - connection.heard_ms > silent_ms:
                self._log.warning("slave.silent", slave=connection.address, silent_ms=silent_ms)
                connection.close()
        for stream in tuple(self._streams):
            stream.beat(now_ms)
        if self._group is not None:
            self._group.tick()

    def admit(self, opening: "_Opening") -> bool:
        """Count a new connection; return False if there are too many, or the port is closed."""
        if not self._listeners:
            return False
        count_max = self.settings().ha_connections_max
        if self.connection_count >= count_max:
            self._log.warning(
                "slave.turned_away", slave=opening.address, connections_max=count_max,
                action="raise haConnectionsMax, or find out what connects to haListenPort",
            )  # fmt: skip
            return False
        self._openings.add(opening)
        return True

    def opened_by_member(
        self, opening: "_Opening", transport: asyncio.Transport, version: int, data: bytes
    ) -> bool:
        """Hand the connection of a group member to the group; return False if there is no group."""
        if self._group is None:
            return False
        self._openings.discard(opening)
        self._group.accept(transport, opening.address, version, data)
        return True

    def opened(self, opening: "_Opening", stream: "SlaveStream") -> None:
        """Replace an opening connection with the stream that its first bytes request."""
        self._openings.discard(opening)
        self._streams.add(stream)
        self.slaves.connected.add(stream.slave)

    def forget_opening(self, opening: "_Opening") -> None:
        """Drop a connection that ended before its first report."""
        self._openings.discard(opening)

    def started(self, stream: "SlaveStream") -> None:
        """Register a slave whose first report was accepted."""
        slave = stream.slave
        slave.is_following = True
        self._log.info("slave.connected", slave=slave.address, offset=slave.acked_offset)
        self._forget_refusals(slave.address)
        self.acked()

    def ended(self, stream: "SlaveStream") -> None:
        """Drop a slave and its acknowledgements."""
        self._streams.discard(stream)
        self.slaves.connected.discard(stream.slave)
        if stream.slave.is_following:
            stream.slave.is_following = False
            self._log.info(
                "slave.disconnected",
                slave=stream.slave.address,
                acked_offset=stream.slave.acked_offset,
            )

    def note_refused(self, address: str, error: UnfitLog) -> None:
        """Count a refusal; log it once per host, reason and message, because slaves retry forever.

        During a switchover, every slave asks the old master too late or the next one too early.
        """
        self.slaves.refused_counts[error.reason] += 1
        entry = address.rpartition(":")[0], error.reason.value, str(error)
        if entry in self._refusals:
            return
        if len(self._refusals) >= _REMEMBERED_REFUSALS_MAX:
            self._refusals.clear()
        self._refusals.add(entry)
        if error.is_passing:
            self._log.info(
                "slave.deferred", slave=address, reason=error.reason.value, error=str(error)
            )
            return
        self._log.error(
            "slave.refused",
            slave=address,
            reason=error.reason.value,
            error=str(error),
            action=error.action,
        )

    def _forget_refusals(self, address: str) -> None:
        """Log later refusals of this host again, because its slave is following now."""
        host = address.rpartition(":")[0]
        self._refusals = {entry for entry in self._refusals if entry[0] != host}

    def note_unreadable(self, address: str, error: Exception) -> None:
        """Log that a slave cannot be served because this broker cannot read its own log."""
        self._log.error("slave.log_unreadable", slave=address, error=describe(error))

    def _answer_senders(self) -> None:
        self._driver.note_replicated(self.slaves.acked_offset())


class _Opening(asyncio.Protocol):
    """A connection whose first bytes have not arrived yet."""

    def __init__(self, server: LogServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self.address = ""
        self.heard_ms = server.clock.monotonic_ms()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is unrelated
        self.address = peer_address(transport.get_extra_info("peername"))[0]
        if not self._server.admit(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        if len(self._received) < OPENING_BYTES:
            return
        if self._received[0] & 0x80:
            version = decode_opening(self._received[:OPENING_BYTES])
            rest = self._received[OPENING_BYTES:]
            if version is not None and self._server.opened_by_member(
                self, self._transport, version, rest
            ):
                return
            text = f"a connection begins with {self._received[:OPENING_BYTES].hex()}"
            self._server.note_refused(self.address, UnfitLog(Unfit.PROTOCOL, text))
            self._transport.abort()
            return
        stream = SlaveStream(self._server, self._transport, self.address)
        self._server.opened(self, stream)
        self._transport.set_protocol(stream)
        stream.data_received(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget_opening(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class SlaveStream(asyncio.Protocol):
    """RocketMQ's stream to one slave."""

    def __init__(self, server: LogServer, transport: asyncio.Transport, address: str) -> None:
        self._server = server
        self._transport = transport
        self._commit_log = server.store.commit_log
        self._file_size = self._commit_log.files.file_size
        self._reports = ReportReader()
        self._requested: int | None = None  # the first report
        self._slice_bytes = SLICE_BYTES
        self._record_left = 0  # of a record that is larger than a frame
        self.address = address
        self.slave = Slave(address)
        self.heard_ms = self._sent_ms = server.clock.monotonic_ms()
        self._pump = LogPump(
            transport,
            view=self._commit_log.view,
            place=self._place,
            send=self._send,
            failed=self._give_up,
            worker=server.worker,
            bytes_per_s=lambda: server.settings().max_ha_transfer_byte_in_second,
            now_ms=server.clock.monotonic_ms,
        )

    # Events of the connection

    def data_received(self, data: bytes) -> None:
        self.heard_ms = self._server.clock.monotonic_ms()
        try:
            for offset in self._reports.feed(data):
                self._take_report(offset)
        except RemoteProtocolError as error:
            self._refuse(UnfitLog(Unfit.PROTOCOL, str(error)))
        except UnfitLog as error:
            self._refuse(error)

    def pause_writing(self) -> None:
        self._pump.is_paused = True

    def resume_writing(self) -> None:
        self._pump.is_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.ended(self)

    def close(self) -> None:
        """Close the connection at once, discarding pending output."""
        self._server.ended(self)
        self._transport.abort()

    def finish(self) -> None:
        """Close the connection after its pending output has been sent."""
        self._server.ended(self)
        self._transport.close()

    def _refuse(self, error: UnfitLog) -> None:
        self._server.note_refused(self.address, error)
        self.close()

    # Reports

    def _take_report(self, offset: int) -> None:
        slave = self.slave
        if self._requested is None:
            self._requested = offset
            self._check_request(offset)
        elif not slave.is_following:
            # While the boundary is checked, heartbeats repeat the first report; anything else would
            # acknowledge bytes that were never sent.
            if offset != self._requested:
                raise UnfitLog(Unfit.ACK, f"report {offset} follows {self._requested} unasked")
        elif not slave.acked_offset <= offset <= slave.sent_offset:
            raise UnfitLog(
                Unfit.ACK,
                f"the slave acknowledges {offset} after {slave.acked_offset}; it was sent the log"
                f" up to {slave.sent_offset}",
            )
        elif offset > slave.acked_offset:
            slave.acked_offset = offset
            self._server.acked()

    def _check_request(self, offset: int) -> None:
        """Start at this offset, provided that it lies in the log and a record begins there."""
        log = self._commit_log
        end, first = log.confirm_offset, log.min_offset
        if offset == 0:
            # An empty slave gets the whole log; nothing counts as acknowledged before its next
            # report.
            self._start(first, 0)
        elif offset > end:
            raise UnfitLog(Unfit.AHEAD, f"the slave's log ends at {offset}, this master's at {end}")
        elif offset < first:
            raise UnfitLog(
                Unfit.EXPIRED, f"the slave's log ends at {offset}, this master's begins at {first}"
            )
        elif offset == end:
            self._start(offset, offset)
        else:
            self._pump.read(offset, HEAD_BYTES, partial(self._check_border, offset))

    def _check_border(self, offset: int, head: Buffer) -> None:
        if is_border(head, offset, self._file_size):
            self._start(offset, offset)
        else:
            text = f"the slave's log ends at {offset}, where no record of this master begins"
            self._refuse(UnfitLog(Unfit.NOT_A_RECORD, text))

    def _start(self, offset: int, acked_offset: int) -> None:
        self.slave.sent_offset = offset
        self.slave.acked_offset = acked_offset
        self._server.started(self)
        if offset == self._commit_log.confirm_offset:
            self._beat()  # shows the slave at once that its log fits
        self.pump()

    # The log

    def pump(self) -> None:
        """Send the bytes that the slave lacks, as fast as it accepts them."""
        self._pump.wake()

    def _place(self) -> tuple[int, int] | None:
        sent_offset = self.slave.sent_offset
        if not self.slave.is_following or sent_offset >= self._commit_log.confirm_offset:
            return None
        return sent_offset, self._slice_bytes

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, UnfitLog) and error.reason in {Unfit.EXPIRED, Unfit.DAMAGED}:
            self._refuse(error)
            return
        self._server.note_unreadable(self.address, error)
        self.close()

    def _send(self, data: Buffer) -> int:
        """Send the whole records at the start of a slice; return their size."""
        start = self.slave.sent_offset
        try:
            frames = self._frames(memoryview(data), start)
        except UnfitLog as error:
            self._give_up(error)
            return 0
        count = self.slave.sent_offset - start
        if frames:
            self._transport.writelines(frames)
            self._server.slaves.sent_bytes += count
            self._sent_ms = self._server.clock.monotonic_ms()
        return count

    def _frames(self, data: memoryview, start: int) -> list[Buffer]:
        """Return headers and bodies, and record how far they reach."""
        slave = self.slave
        frames: list[Buffer] = []
        batch_bytes = min(self._server.settings().ha_transfer_batch_size, BODY_BYTES_MAX)
        cursor = 0
        while cursor < len(data):
            rest = data[cursor:]
            count = self._frame_bytes(rest, start + cursor, batch_bytes)
            if not count:
                break
            frames += (encode_header(start + cursor, count), rest[:count])
            cursor += count
            self._slice_bytes = SLICE_BYTES
        slave.sent_offset = start + cursor
        return frames

    def _frame_bytes(self, rest: memoryview, place: int, batch_bytes: int) -> int:
        """Return the size of the next body; 0 if its first record needs a larger slice."""
        if self._record_left:
            count = min(self._record_left, len(rest), BODY_BYTES_MAX)
            self._record_left -= count
            return count
        end = place + len(rest)
        if len(rest) <= batch_bytes and end == self._commit_log.confirm_offset:
            return len(rest)  # the newest records: no search for a boundary is needed
        cut = whole_records(rest, place, self._file_size, batch_bytes)
        if cut.whole_bytes:
            return cut.whole_bytes
        if cut.next_size > BODY_BYTES_MAX and len(rest) == BODY_BYTES_MAX:
            self._record_left = cut.next_size - len(rest)  # RocketMQ's slave takes no larger frame
            return len(rest)
        wanted = min(max(cut.next_size, SLICE_BYTES), BODY_BYTES_MAX)
        is_first = place == self.slave.sent_offset
        if is_first and (not cut.next_size or wanted <= self._slice_bytes):
            raise UnfitLog(Unfit.NOT_A_RECORD, f"the record at offset {place} is incomplete")
        self._slice_bytes = wanted
        return 0

    def beat(self, now_ms: int) -> None:
        """Send a heartbeat if nothing has been sent for a while."""
        interval_ms = self._server.settings().ha_send_heartbeat_interval
        if (
            not self.slave.is_following
            or self._pump.is_paused
            or now_ms - self._sent_ms < interval_ms
        ):
            return
        self._beat()

    def _beat(self) -> None:
        self._sent_ms = self._server.clock.monotonic_ms()
        self._transport.write(encode_header(self.slave.sent_offset, 0))


assert OPENING_BYTES == REPORT_BYTES
