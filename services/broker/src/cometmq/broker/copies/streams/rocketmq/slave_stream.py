# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's replication stream to one slave, as the master sends it."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.copies.state import Slave
from cometmq.broker.copies.streams.records import HEAD_BYTES, is_border, whole_records
from cometmq.broker.copies.streams.rocketmq.frames import (
    BODY_BYTES_MAX,
    ReportReader,
    encode_header,
)
from cometmq.broker.copies.streams.served import SLICE_BYTES, ServedStream
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.types import Buffer

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.serving import LogServer


class SlaveStream(ServedStream):
    def __init__(self, server: "LogServer", transport: asyncio.Transport, address: str) -> None:
        super().__init__(server, transport, address, server.store.commit_log.view)
        self._server = server
        self._file_size = self._commit_log.files.file_size
        self._reports = ReportReader()
        self._requested: int | None = None  # the first report
        self._slice_bytes = SLICE_BYTES
        self._record_left = 0  # of a record that is larger than a frame
        self.slave = Slave(address)
        self._sent_ms = self.heard_ms

    def _take(self, data: bytes) -> None:
        reports = self._reports.feed(data)
        # As in RocketMQ, the newest one counts; the first one may be the request.
        for offset in reports[:1] + reports[1:][-1:]:
            self._take_report(offset)

    def _ended(self) -> None:
        self._server.ended(self)

    def finish(self) -> None:
        self._ended()
        self.transport.close()

    def refuse(self, error: UnfitLog) -> None:
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
        """Start at this offset if a record of the log begins there; otherwise refuse."""
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
            self._read(offset, HEAD_BYTES, partial(self._check_border, offset))

    def _check_border(self, offset: int, head: Buffer) -> None:
        if is_border(head, offset, self._file_size):
            self._start(offset, offset)
        else:
            text = f"the slave's log ends at {offset}, where no record of this master begins"
            self.refuse(UnfitLog(Unfit.NOT_A_RECORD, text))

    def _start(self, offset: int, acked_offset: int) -> None:
        self.slave.sent_offset = offset
        self.slave.acked_offset = acked_offset
        self._server.started(self)
        if offset == self._commit_log.confirm_offset:
            self._beat()  # shows the slave at once that its log fits
        self.wake()

    # The log

    def _place(self) -> tuple[int, int] | None:
        sent_offset = self.slave.sent_offset
        if not self.slave.is_following or sent_offset >= self._commit_log.confirm_offset:
            return None
        return sent_offset, self._slice_bytes

    def _failed(self, error: Exception) -> None:
        if isinstance(error, UnfitLog) and error.reason in {Unfit.EXPIRED, Unfit.DAMAGED}:
            self.refuse(error)
            return
        self._server.note_unreadable(self.address, error)
        self.close()

    def _send(self, data: Buffer) -> int:
        start = self.slave.sent_offset
        try:
            frames = self._frames(memoryview(data), start)
        except UnfitLog as error:
            self._failed(error)
            return 0
        count = self.slave.sent_offset - start
        if frames:
            self.transport.writelines(frames)
            self._server.slaves.sent_bytes += count
            self._sent_ms = self._now_ms()
        return count

    def _frames(self, data: memoryview, start: int) -> list[Buffer]:
        """Split whole records into headers and bodies, and advance the sent offset."""
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
        interval_ms = self._server.settings().ha_send_heartbeat_interval
        if not self.slave.is_following or self.is_paused or now_ms - self._sent_ms < interval_ms:
            return
        self._beat()

    def _beat(self) -> None:
        self._sent_ms = self._now_ms()
        self.transport.write(encode_header(self.slave.sent_offset, 0))
