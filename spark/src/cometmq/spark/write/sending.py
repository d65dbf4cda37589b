# SPDX-License-Identifier: Apache-2.0
"""Sends the messages of one task: batched per queue, pipelined, at least once.

Rows with a sharding key or a queue keep their order, because their queue has only one pending
request at a time. Other rows rotate over the queues, and a rejected batch is retried at a different
broker.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Request, Response
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.errors import CometError, TransportError, command_error
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.flags import java_hash
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.spark.cluster.connection import BUSY_CODES, BrokerConnection, Connections, LinkSettings
from cometmq.spark.cluster.topics import MASTER_ID, NameServers, Route
from cometmq.spark.errors import SendIncomplete, SourceError, TopicMissing
from cometmq.spark.options.definitions import Options
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.write.rows import OutgoingRow

ATTEMPTS_MAX: Final = 4
"""One attempt and three retries."""

STORED: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.FLUSH_DISK_TIMEOUT),
        int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
        int(ResponseCode.SLAVE_NOT_AVAILABLE),
    }
)
TEMPLATE_QUEUES: Final = 4
_ITEM_BYTES: Final = 22  # fixed fields of a message in a batch
_BATCH_PROPERTIES: Final = "WAIT\x01true"
_RETRY_PAUSE_S: Final = 0.1


class _Parcel(msgspec.Struct):
    """A batch of messages for one queue."""

    queue: Queue
    is_ordered: bool
    rows: list[OutgoingRow] = []
    size: int = 0
    attempt: int = 0


class Sender:
    """Sends rows; call `finish` after the last row, and `close` in any case."""

    def __init__(
        self,
        options: Options,
        *,
        first_queue: int = 0,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to send; the first row opens the connections.

        Tasks start with different queues (`first_queue`), so small tasks together use all queues.
        """
        self._first_queue = first_queue
        self._options = options
        settings = LinkSettings.of(options)
        settings = msgspec.structs.replace(settings, timeout_ms=options.send_timeout_ms)
        self._connections = Connections(settings)
        self._clock_ms = clock_ms
        self._pause = pause
        self._names = NameServers(options)
        self._routes: dict[str, Route] = {}
        self._batch_counts: Counter[str] = Counter()
        self._open: dict[Queue, _Parcel] = {}
        self._ready: deque[_Parcel] = deque()
        self._held: set[Queue] = set()
        self._in_flight = 0
        self._failure: CometError | None = None
        self.stored_count = 0

    def add(self, row: OutgoingRow) -> None:
        """Add a row to its queue's open batch; send when enough batches are ready."""
        queue, is_ordered = self._choose(row)
        is_alone = bool(row.delay_level) or not self._options.batch_bytes
        parcel = self._open.get(queue)
        size = len(row.body) + len(row.properties) + _ITEM_BYTES
        if parcel is not None and not (
            parcel.size + size <= self._options.batch_bytes
            and parcel.rows[0].born_ms == row.born_ms  # a batch has a single born timestamp
            and not is_alone
        ):
            self._seal(queue)
            parcel = None
        if parcel is None:
            parcel = self._open[queue] = _Parcel(queue, is_ordered)
        parcel.rows.append(row)
        parcel.size += size
        parcel.is_ordered |= is_ordered
        if is_alone or parcel.size >= self._options.batch_bytes:
            self._seal(queue)
        # At most `max_in_flight` batches are queued in addition to the batches in flight.
        while len(self._ready) > self._options.max_in_flight:
            self._step()

    def finish(self) -> None:
        """Send the remaining rows and wait until all are stored."""
        for queue in list(self._open):
            self._seal(queue)
        while self._ready or self._in_flight:
            self._step()

    def close(self) -> None:
        self._names.close()
        self._connections.close()

    def _choose(self, row: OutgoingRow) -> tuple[Queue, bool]:
        """Choose the queue of a row; also return whether the row's order matters."""
        route = self._route(row.topic)
        if row.queue_id is not None and row.broker_name is not None:
            queue = Queue(row.topic, row.broker_name, row.queue_id)
            if queue not in route.write_queues:
                raise TopicMissing(
                    f"row {row.number} of the task names a queue that does not exist: {queue}"
                )
            return queue, True
        queues = route.write_queues
        if row.sharding_key:
            # The same hash as in Java producers, so both send a key to the same queue.
            return queues[abs(java_hash(row.sharding_key)) % len(queues)], True
        # The queue changes per batch, not per row, because full batches are cheaper.
        turn = self._first_queue + self._batch_counts[row.topic]
        return queues[turn % len(queues)], False

    def _seal(self, queue: Queue) -> None:
        parcel = self._open.pop(queue)
        self._ready.append(parcel)
        self._batch_counts[queue.topic] += 1

    def _step(self) -> None:
        """Submit ready batches, then process answers."""
        self._send_ready()
        for connection in self._connections.with_pending():
            try:
                connection.exchange()
            except TransportError:  # its requests have been failed and will be retried
                self._connections.drop(connection.address)
        if self._failure is not None:
            raise self._failure

    def _send_ready(self) -> None:
        """Submit ready batches; batches blocked by their queue keep their position."""
        blocked: list[_Parcel] = []
        while self._ready and self._in_flight < self._options.max_in_flight:
            parcel = self._ready.popleft()
            if parcel.is_ordered and parcel.queue in self._held:
                blocked.append(parcel)
            else:
                self._submit(parcel)
        self._ready.extendleft(reversed(blocked))

    def _submit(self, parcel: _Parcel) -> None:
        self._in_flight += 1
        if parcel.is_ordered:
            self._held.add(parcel.queue)
        try:
            connection = self._connected(parcel.queue)
        except TransportError as error:
            self._answered(parcel, error)
            return
        connection.submit(self._request(parcel), partial(self._answered, parcel))

    def _answered(self, parcel: _Parcel, answer: Response | CometError) -> None:
        self._in_flight -= 1
        if parcel.is_ordered:
            self._held.discard(parcel.queue)
        if isinstance(answer, Response):
            if answer.code in STORED:
                self.stored_count += len(parcel.rows)
                return
            error: CometError = command_error(answer.code, answer.remark)
            may_retry = answer.code in BUSY_CODES
        else:
            error, may_retry = answer, isinstance(answer, TransportError)
        parcel.attempt += 1
        if may_retry and parcel.attempt < ATTEMPTS_MAX:
            self._retry(parcel)
            return
        row = parcel.rows[0]
        self._failure = SendIncomplete(
            f"{len(parcel.rows)} rows starting at row {row.number} of the task were not stored in "
            f"{parcel.queue}: {error}"
        )

    def _retry(self, parcel: _Parcel) -> None:
        """Queue a batch again, for a different broker unless its order matters."""
        self._pause(_RETRY_PAUSE_S * parcel.attempt)
        if not parcel.is_ordered:
            queues = self._route(parcel.queue.topic).write_queues
            others = [queue for queue in queues if queue.broker_name != parcel.queue.broker_name]
            parcel.queue = (others or list(queues))[parcel.attempt % len(others or queues)]
        self._ready.appendleft(parcel)  # first, so that later batches of its queue do not overtake

    def _request(self, parcel: _Parcel) -> Request:
        rows, options = parcel.rows, self._options
        first = rows[0]
        is_batch = len(rows) > 1
        header = SendMessageV2(
            producer_group=options.producer_group,
            topic=parcel.queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=TEMPLATE_QUEUES,
            queue_id=parcel.queue.queue_id,
            sys_flag=0,
            born_timestamp=self._clock_ms() if first.born_ms is None else first.born_ms,
            flag=0,
            properties=_BATCH_PROPERTIES if is_batch else first.properties,
            batch=is_batch,
        )
        if not is_batch:
            return Request(RequestCode.SEND_MESSAGE_V2, header, first.body)
        items = [BatchItem(0, row.body, row.properties) for row in rows]
        return Request(RequestCode.SEND_BATCH_MESSAGE, header, join_batch(items))

    def _route(self, topic: str) -> Route:
        route = self._routes.get(topic)
        if route is None:
            found = self._names.route(topic) or self._names.route(AUTO_CREATE_TOPIC)
            if found is None:
                raise TopicMissing(f"topic `{topic}` does not exist")
            queues = _renamed(found.write_queues, topic)
            if not queues:
                raise TopicMissing(f"topic `{topic}` has no writable queue")
            route = self._routes[topic] = Route((), queues, found.brokers)
        return route

    def _connected(self, queue: Queue) -> BrokerConnection:
        address = self._route(queue.topic).brokers[queue.broker_name].get(MASTER_ID)
        if address is None:
            raise SourceError(f"broker `{queue.broker_name}` has no master, which writes require")
        return self._connections.get(address)


def _renamed(queues: Sequence[Queue], topic: str) -> tuple[Queue, ...]:
    """Return the default topic's queues, renamed for a topic that brokers will create from it."""
    if not queues or queues[0].topic == topic:
        return tuple(queues)
    return tuple(
        Queue(topic, queue.broker_name, queue.queue_id)
        for queue in queues
        if queue.queue_id < TEMPLATE_QUEUES
    )
