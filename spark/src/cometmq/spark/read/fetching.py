# SPDX-License-Identifier: Apache-2.0
"""Reads a range of a queue with pipelined pulls, and returns its records in order.

Queue offsets are dense, so the offsets of later pulls are known before the first answer: the range
is divided into chunks, and several chunks are pulled concurrently. An answer may be shorter than
requested (brokers stop at 256 KiB); the rest of its chunk is then pulled again.

Invariants
    Chunks are returned in order, and each offset belongs to exactly one chunk.
    Answers buffered behind an earlier chunk hold at most `PREFETCH_BYTES_MAX` plus one answer per
    chunk.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import CometError, Overloaded, TransportError, command_error
from cometmq.remoting.log import NO_LOG, Log
from cometmq.spark.cluster.connection import BUSY_CODES, BrokerConnection, LinkSettings
from cometmq.spark.cluster.metadata import readable_addresses
from cometmq.spark.cluster.pulling import PULL_CODES, filter_of, pull_request
from cometmq.spark.cluster.topics import MASTER_ID, Addresses, NameServers
from cometmq.spark.errors import BrokerUnreachable, DataLoss, Refused
from cometmq.spark.options.definitions import Options
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.read.planning import Span

PREFETCH_BYTES_MAX: Final = 8 << 20
FILTERED_CHUNK: Final = 4096
"""Chunk size in offsets if a filter skips most messages."""

ATTEMPTS_MAX: Final = 10
"""Consecutive failures before a task fails: 15 s with back-off, enough to restart a broker."""

MISSING_MAX: Final = 3
"""How often a broker may report an existing offset as missing."""

_PAUSE_MS: Final = 50
_PAUSE_MS_MAX: Final = 3000


class Piece(NamedTuple):
    """Records of an answer; those at or beyond offset `end` do not belong to this piece."""

    body: bytes
    end: int


class _Chunk(msgspec.Struct):
    """A range of offsets, pulled one request at a time."""

    end: int
    cursor: int
    is_pending: bool = False
    missing_count: int = 0
    bodies: list[bytes] = []

    @property
    def is_done(self) -> bool:
        return self.cursor >= self.end


class _OffsetMissing(TransportError):
    """A broker lacks an offset that existed when the read was planned."""


class Fetcher:
    """Reads one span, from any broker of the group that answers."""

    def __init__(
        self,
        span: Span,
        addresses: Addresses,
        options: Options,
        *,
        log: Log = NO_LOG,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._span = span
        self._addresses = addresses
        self._options = options
        self._settings = LinkSettings.of(options)
        self._filter = filter_of(options)
        self._log = log
        self._pause = pause
        self._chunks: deque[_Chunk] = deque()
        self._next_start = span.start
        self._waiting_bytes = 0
        self._failure: CometError | None = None
        self._failure_count = 0
        self._broker_index = -1
        self._connection: BrokerConnection | None = None
        self.lost_count = 0

    def pieces(self) -> Iterator[Piece]:
        """Yield the records of pull answers in the order of offsets.

        A filtered answer may extend past its chunk: offsets from `Piece.end` on are delivered again
        by the next chunk.
        """
        try:
            while self._next_start < self._span.end or self._chunks:
                yield from self._step()
        finally:
            self._disconnect()
        if self.lost_count:
            self._log.warning("messages.lost", queue=str(self._span.queue), count=self.lost_count)

    def _step(self) -> list[Piece]:
        """Send pulls, wait for an answer, and return the records that are next in order."""
        try:
            connection = self._connected()
            self._ask(connection)
            if connection.pending_count:
                connection.exchange()
        except TransportError as error:
            self._failure = self._failure or error
        if self._failure is not None:
            self._recover()
        return self._take()

    def _ask(self, connection: BrokerConnection) -> None:
        """Submit pulls for open chunks and for new ones, within the pipeline depth."""
        size = self._options.pull_batch_size if self._filter.takes_all else FILTERED_CHUNK
        while (
            len(self._chunks) < self._options.pull_pipeline_depth
            and self._next_start < self._span.end
        ):
            end = min(self._next_start + size, self._span.end)
            self._chunks.append(_Chunk(end, self._next_start))
            self._next_start = end
        for index, chunk in enumerate(self._chunks):
            # The first chunk may always pull, because the buffered answers of the others wait for
            # it.
            may_wait = index == 0 or not chunk.bodies or self._waiting_bytes < PREFETCH_BYTES_MAX
            if not chunk.is_pending and not chunk.is_done and may_wait:
                chunk.is_pending = True
                count = min(self._options.pull_batch_size, chunk.end - chunk.cursor)
                request = pull_request(
                    self._span.queue,
                    chunk.cursor,
                    count,
                    group=self._options.group,
                    message_filter=self._filter,
                )
                connection.submit(request, partial(self._answered, chunk))

    def _answered(self, chunk: _Chunk, answer: Response | CometError) -> None:
        """Record an answer or failure; `_step` handles failures after the exchange."""
        chunk.is_pending = False
        if isinstance(answer, CometError):
            self._failure = self._failure or answer
            return
        try:
            self._advance(chunk, answer)
            self._failure_count = 0  # only failures in a row count
        except CometError as error:
            self._failure = self._failure or error

    def _advance(self, chunk: _Chunk, answer: Response) -> None:
        if answer.code not in PULL_CODES:
            error = command_error(answer.code, answer.remark)
            if answer.code in BUSY_CODES:
                raise Overloaded(str(error))
            raise Refused(f"the broker refuses to read {self._span.queue}: {error}")
        next_offset = answer.header.next_begin_offset
        if answer.code == ResponseCode.SUCCESS:
            self._check_progress(chunk, next_offset)
            chunk.bodies.append(answer.body)
            self._waiting_bytes += len(answer.body)
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            self._check_progress(chunk, next_offset)
            if self._filter.takes_all:
                self._lose_front(chunk, next_offset, "were deleted meanwhile")
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED and next_offset > chunk.cursor:
            self._lose_front(chunk, next_offset, "no longer exist")
        else:
            next_offset = self._handle_missing(chunk)
        chunk.cursor = next_offset

    def _handle_missing(self, chunk: _Chunk) -> int:
        """Handle an offset beyond the end of the queue; return the next offset to pull.

        A slave may not have replicated it yet. A master that lacks it has lost messages, or the
        topic was recreated.
        """
        chunk.missing_count += 1
        if chunk.missing_count <= MISSING_MAX or not self._is_at_master():
            raise _OffsetMissing(f"{self._span.queue} has no offset {chunk.cursor}")
        # Later offsets are missing as well, so there is no point in pulling them.
        self._lose(chunk, chunk.end, "cannot be found")
        self.lost_count += self._span.end - self._next_start
        self._next_start = self._span.end
        return chunk.end

    def _check_progress(self, chunk: _Chunk, next_offset: int) -> None:
        # If the broker makes no progress, the task would pull the same offset forever.
        if next_offset <= chunk.cursor:
            raise BrokerUnreachable(
                f"the broker of {self._span.queue} does not advance from offset {chunk.cursor}"
            )

    def _lose(self, chunk: _Chunk, end: int, what: str) -> None:
        """Count lost messages, or raise DataLoss if `failOnDataLoss` is set."""
        if self._options.fail_on_data_loss:
            raise data_loss(self._span.queue, chunk.cursor, end - chunk.cursor, what)
        self.lost_count += min(end, chunk.end) - chunk.cursor

    def _lose_front(self, chunk: _Chunk, end: int, what: str) -> None:
        """Count everything before `end` as lost, including chunks with unanswered pulls."""
        if self._options.fail_on_data_loss:
            first = next(one.cursor for one in self._chunks if not one.is_done)
            raise data_loss(self._span.queue, first, min(end, self._span.end) - first, what)
        self._lose(chunk, end, what)

    def _recover(self) -> None:
        """Back off and reconnect after a transport error; raise any other failure."""
        failure, self._failure = self._failure, None
        assert failure is not None
        if not isinstance(failure, TransportError):
            raise failure
        self._failure_count += 1
        self._disconnect()
        if self._failure_count >= ATTEMPTS_MAX:
            raise BrokerUnreachable(
                f"broker `{self._span.queue.broker_name}` does not answer: {failure}"
            ) from failure
        self._log.warning("broker.lost", queue=str(self._span.queue), error=str(failure))
        self._pause(min(_PAUSE_MS_MAX, _PAUSE_MS << self._failure_count) / 1000)
        self._find_brokers()

    def _take(self) -> list[Piece]:
        """Take the answers that are next in order, including those of an unfinished chunk."""
        found: list[Piece] = []
        while self._chunks:
            chunk = self._chunks[0]
            found += [Piece(body, chunk.end) for body in chunk.bodies]
            chunk.bodies = []
            if not chunk.is_done:
                break
            self._chunks.popleft()
        self._waiting_bytes -= sum(len(piece.body) for piece in found)
        return found

    def _connected(self) -> BrokerConnection:
        if self._connection is None:
            known = readable_addresses(self._addresses, self._options.read_from)
            if not known:
                raise BrokerUnreachable(f"no broker to read {self._span.queue} from")
            # Each failure moves on to the next broker of the group.
            self._broker_index += 1
            address = known[self._broker_index % len(known)]
            self._connection = BrokerConnection(address, self._settings)
        return self._connection

    def _is_at_master(self) -> bool:
        return self._connection is not None and self._connection.address == self._addresses.get(
            MASTER_ID
        )

    def _disconnect(self) -> None:
        """Close the connection; unanswered pulls will be submitted again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for chunk in self._chunks:
            chunk.is_pending = False

    def _find_brokers(self) -> None:
        """Look up the brokers again; keep the known addresses if no name server answers."""
        queue = self._span.queue
        try:
            with NameServers(self._options) as names:
                route = names.route(queue.topic)
        except CometError as error:
            self._log.warning("route.unknown", queue=str(queue), error=str(error))
            return
        if route is not None and queue.broker_name in route.brokers:
            self._addresses = route.brokers[queue.broker_name]


def data_loss(queue: Queue, start: int, count: int, what: str) -> DataLoss:
    """Build the error for lost messages, with the option that tolerates them."""
    return DataLoss(
        f"{count} messages of {queue} starting at offset {start} {what}; "
        "set the option `failOnDataLoss`=false to let a stream continue without them"
    )
