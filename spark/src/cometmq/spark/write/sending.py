# SPDX-License-Identifier: Apache-2.0
"""Sends the messages of one task: batched per queue, pipelined, at least once.

Rows with a sharding key or a queue keep their order, because their queue has only one pending
request at a time. Other rows rotate over the queues, and a rejected batch is retried at a different
broker.

A task keeps the queues that it finds first, since other queues would break the order of keys. Only
their brokers' addresses are looked up again after a failure: another copy may be the master.
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
from cometmq.spark.log import WORKER_LOG
from cometmq.spark.options.definitions import Options
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.write.rows import OutgoingRow

ATTEMPTS_MAX: Final = 10
"""Attempts to store a batch: 15 s with back-off, enough to restart a broker or elect a master."""

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
_PAUSE_MS: Final = 50
_PAUSE_MS_MAX: Final = 3000


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
        self._rejected: list[tuple[_Parcel, CometError]] = []
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
        """Submit ready batches, process answers, and prepare rejected batches for a retry."""
        self._send_ready()
        for connection in self._connections.with_pending():
            try:
                connection.exchange()
            except TransportError:  # its requests have been failed and will be retried
                self._connections.drop(connection.address)
        if self._failure is not None:
            raise self._failure
        if self._rejected:
            self._retry_rejected()

    def _send_ready(self) -> None:
        """Submit ready batches; batches blocked by their queue keep their position."""
        blocked: list[_Parcel] = []
        while (
            self._ready
            and not self._rejected  # the next batch would probably fail in the same way
            and self._in_flight < self._options.max_in_flight
        ):
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
        if isinstance(answer, Response):
            if answer.code in STORED:
                self.stored_count += len(parcel.rows)
                self._release(parcel)
                return
            error: CometError = command_error(answer.code, answer.remark)
            may_retry = answer.code in BUSY_CODES
        else:
            error, may_retry = answer, isinstance(answer, TransportError)
        parcel.attempt += 1
        if may_retry and parcel.attempt < ATTEMPTS_MAX:
            # Its queue stays held, so that later batches do not overtake.
            self._rejected.append((parcel, error))
            return
        row = parcel.rows[0]
        self._failure = SendIncomplete(
            f"{len(parcel.rows)} rows starting at row {row.number} of the task were not stored in "
            f"{parcel.queue}: {error}"
        )

    def _release(self, parcel: _Parcel) -> None:
        if parcel.is_ordered:
            self._held.discard(parcel.queue)

    def _retry_rejected(self) -> None:
        """Back off, look up the brokers again, and queue the batches again: for a different broker
        unless their order matters.
        """
        rejected, self._rejected = self._rejected, []
        parcel, error = rejected[-1]
        WORKER_LOG.warning("rows.delayed", queue=str(parcel.queue), error=str(error))
        self._pause(_pause_s(max(parcel.attempt for parcel, _ in rejected)))
        for topic in {parcel.queue.topic for parcel, _ in rejected}:
            self._find_brokers(topic)
        for parcel, _ in reversed(rejected):
            if parcel.is_ordered:
                self._release(parcel)
            else:
                parcel.queue = self._another_queue(parcel)
            self._ready.appendleft(parcel)

    def _another_queue(self, parcel: _Parcel) -> Queue:
        queues = self._route(parcel.queue.topic).write_queues
        others = [queue for queue in queues if queue.broker_name != parcel.queue.broker_name]
        return (others or queues)[parcel.attempt % len(others or queues)]

    def _find_brokers(self, topic: str) -> None:
        """Look up the brokers of a topic again; keep the known addresses of a broker without a
        master, and of all if no name server answers.
        """
        route = self._route(topic)
        try:
            found = self._names.route(topic)
        except CometError as error:
            WORKER_LOG.warning("route.unknown", topic=topic, error=str(error))
            return
        brokers = dict(route.brokers)
        for name, addresses in (found.brokers if found else {}).items():
            if name in brokers and MASTER_ID in addresses:
                brokers[name] = addresses
        self._routes[topic] = msgspec.structs.replace(route, brokers=brokers)

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
            found = self._first_route(topic)
            if found is None:
                raise TopicMissing(f"topic `{topic}` does not exist")
            queues = _renamed(found.write_queues, topic)
            if not queues:
                raise TopicMissing(f"topic `{topic}` has no writable queue")
            route = self._routes[topic] = Route((), queues, found.brokers)
        return route

    def _first_route(self, topic: str) -> Route | None:
        """Look up a topic; wait for a master if its broker groups have none at the moment."""
        found = None
        for attempt in range(1, ATTEMPTS_MAX + 1):
            found = self._names.route(topic) or self._names.route(AUTO_CREATE_TOPIC)
            if found is None or found.write_queues:
                break
            if all(MASTER_ID in addresses for addresses in found.brokers.values()):
                break
            self._pause(_pause_s(attempt))
        return found

    def _connected(self, queue: Queue) -> BrokerConnection:
        address = self._route(queue.topic).brokers[queue.broker_name].get(MASTER_ID)
        if address is None:
            raise SourceError(f"broker `{queue.broker_name}` has no master, which writes require")
        return self._connections.get(address)


def _pause_s(attempt: int) -> float:
    return min(_PAUSE_MS_MAX, _PAUSE_MS << attempt) / 1000


def _renamed(queues: Sequence[Queue], topic: str) -> tuple[Queue, ...]:
    """Return the default topic's queues, renamed for a topic that brokers will create from it."""
    if not queues or queues[0].topic == topic:
        return tuple(queues)
    return tuple(
        Queue(topic, queue.broker_name, queue.queue_id)
        for queue in queues
        if queue.queue_id < TEMPLATE_QUEUES
    )
