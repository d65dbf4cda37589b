# SPDX-License-Identifier: Apache-2.0
"""Reads a part of a queue with many pulls at once, and gives its records in their order.

Queue offsets are dense, so the offsets of pulls are known before their answers: the part is cut
into chunks, and several chunks are asked for at a time. An answer may hold less than was asked
for (brokers stop at 256 KiB); then the rest of its chunk is asked for again.

Invariants
    Chunks are given in order, and each offset belongs to one chunk only.
    Answers that wait for an earlier chunk hold no more than `PREFETCH_BYTES_MAX` and one answer
    for each chunk.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import (
    CometError,
    Overloaded,
    TransportError,
    command_error,
)
from cometmq.remoting.log import NO_LOG, Log
from cometmq.spark.connection import BrokerConnection, LinkSettings
from cometmq.spark.errors import BrokerUnreachable, DataLoss, Refused
from cometmq.spark.metadata import readable_addresses
from cometmq.spark.offsets_json import Queue
from cometmq.spark.options import Options
from cometmq.spark.planning import Span
from cometmq.spark.pulling import filter_of, pull_request
from cometmq.spark.topics import MASTER_ID, Addresses, NameServers

PREFETCH_BYTES_MAX: Final = 8 << 20
FILTERED_CHUNK: Final = 4096
"""Offsets in a chunk where a filter leaves most of them out."""

ATTEMPTS_MAX: Final = 10
"""Failures in a row, with growing pauses, before a task fails: 15 s, so that brokers restart."""

MISSING_MAX: Final = 3
"""How often a message that must be there may be said not to be."""

_PULLED: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    }
)
_BUSY: Final = frozenset({int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE)})
_PAUSE_MS: Final = 50
_PAUSE_MS_MAX: Final = 3000


class Piece(NamedTuple):
    """Whole records, of which those with offsets before `end` count."""

    body: bytes
    end: int


class _Chunk(msgspec.Struct):
    """A few offsets that are asked for together."""

    end: int
    cursor: int
    is_asked: bool = False
    missing_count: int = 0
    bodies: list[bytes] = []

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to ask for."""
        return self.cursor >= self.end


class _NotThere(TransportError):
    """A broker does not have an offset that was there when the span was planned."""


class Fetcher:
    """Reads one span, from whichever broker of the group answers."""

    def __init__(
        self,
        span: Span,
        addresses: Addresses,
        options: Options,
        *,
        log: Log = NO_LOG,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; nothing is connected before the first record is wanted."""
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
        self._turn_count = -1
        self._connection: BrokerConnection | None = None
        self.lost_count = 0

    def pieces(self) -> Iterator[Piece]:
        """Yield what pulls bring, in the order of offsets.

        A filtered answer may hold more than belongs to it: messages from `Piece.end` on come
        again.
        """
        try:
            while self._next_start < self._span.end or self._chunks:
                yield from self._turn()
        finally:
            self._disconnect()
        if self.lost_count:
            self._log.warning("messages.lost", queue=str(self._span.queue), count=self.lost_count)

    def _turn(self) -> list[Piece]:
        """Ask, wait for something, and return what is complete in order."""
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
        """Ask for the rest of chunks, and for new chunks, as many as may be asked at once."""
        size = self._options.pull_batch_size if self._filter.takes_all else FILTERED_CHUNK
        while (
            len(self._chunks) < self._options.pull_pipeline_depth
            and self._next_start < self._span.end
        ):
            end = min(self._next_start + size, self._span.end)
            self._chunks.append(_Chunk(end, self._next_start))
            self._next_start = end
        for index, chunk in enumerate(self._chunks):
            may_wait = index == 0 or not chunk.bodies or self._waiting_bytes < PREFETCH_BYTES_MAX
            if not chunk.is_asked and not chunk.is_done and may_wait:
                chunk.is_asked = True
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
        """Take an answer; what it means for the task is decided after the exchange."""
        chunk.is_asked = False
        if isinstance(answer, CometError):
            self._failure = self._failure or answer
            return
        try:
            self._advance(chunk, answer)
            self._failure_count = 0
        except CometError as error:
            self._failure = self._failure or error

    def _advance(self, chunk: _Chunk, answer: Response) -> None:
        """Move a chunk's cursor by what an answer says."""
        if answer.code not in _PULLED:
            error = command_error(answer.code, answer.remark)
            if answer.code in _BUSY:
                raise Overloaded(str(error))
            raise Refused(f"the broker does not let {self._span.queue} be read: {error}")
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
            self._lose_front(chunk, next_offset, "are gone")
        else:
            next_offset = self._missed(chunk)
        chunk.cursor = next_offset

    def _missed(self, chunk: _Chunk) -> int:
        """Decide what an offset beyond the queue's end means; return where to go on.

        A slave may not have it yet. A master that lacks it has lost messages, or its topic was
        created anew.
        """
        chunk.missing_count += 1
        if chunk.missing_count <= MISSING_MAX or not self._is_at_master():
            raise _NotThere(f"{self._span.queue} has no offset {chunk.cursor}")
        # Nor does it have what comes after, which need not be asked for.
        self._lose(chunk, chunk.end, "cannot be found")
        self.lost_count += self._span.end - self._next_start
        self._next_start = self._span.end
        return chunk.end

    def _check_progress(self, chunk: _Chunk, next_offset: int) -> None:
        if next_offset <= chunk.cursor:
            raise BrokerUnreachable(
                f"the broker of {self._span.queue} does not advance from offset {chunk.cursor}"
            )

    def _lose(self, chunk: _Chunk, end: int, what: str) -> None:
        """Count messages that are gone, or fail because of them."""
        if self._options.fail_on_data_loss:
            raise data_loss(self._span.queue, chunk.cursor, end - chunk.cursor, what)
        self.lost_count += min(end, chunk.end) - chunk.cursor

    def _lose_front(self, chunk: _Chunk, end: int, what: str) -> None:
        """Lose all before `end`: what no answer came for yet is gone too, and is told with it."""
        if self._options.fail_on_data_loss:
            first = next(one.cursor for one in self._chunks if not one.is_done)
            raise data_loss(self._span.queue, first, min(end, self._span.end) - first, what)
        self._lose(chunk, end, what)

    def _recover(self) -> None:
        """Pause and connect again after a failure between the ends; raise any other failure."""
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
        """Return the bodies of finished chunks, and what the first unfinished one has."""
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
            # Each failure goes on to the next broker of the group.
            self._turn_count += 1
            address = known[self._turn_count % len(known)]
            self._connection = BrokerConnection(address, self._settings)
        return self._connection

    def _is_at_master(self) -> bool:
        return self._connection is not None and self._connection.address == self._addresses.get(
            MASTER_ID
        )

    def _disconnect(self) -> None:
        """Close; what was asked for will be asked for again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for chunk in self._chunks:
            chunk.is_asked = False

    def _find_brokers(self) -> None:
        """Ask where the brokers are now; what is known stays if nobody tells."""
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
    """Return the error that names what is lost and what to do."""
    return DataLoss(
        f"{count} messages of {queue} from offset {start} on {what}; "
        "the option `failOnDataLoss`=false lets a stream go on without them"
    )
