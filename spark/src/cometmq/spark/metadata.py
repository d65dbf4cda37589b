# SPDX-License-Identifier: Apache-2.0
"""What brokers say about their queues: ends, committed offsets, moments. Used while planning."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Self

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Request, Response
from cometmq.remoting.commands.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from cometmq.remoting.errors import CometError, TransportError
from cometmq.remoting.message.record import scan_record
from cometmq.spark.connection import BrokerConnection, LinkSettings, accepted
from cometmq.spark.errors import BrokerUnreachable
from cometmq.spark.offsets_json import Queue
from cometmq.spark.options import Options, ReadFrom
from cometmq.spark.pulling import Filter, pull_request
from cometmq.spark.topics import MASTER_ID, Addresses, NameServers, find_queues

_PULL_CODES: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Metadata:
    """Connections to name servers and brokers that last as long as planning does."""

    def __init__(self, options: Options) -> None:
        """Remember what is wanted; nothing is connected yet."""
        self.names = NameServers(options)
        self._options = options
        self._settings = LinkSettings.of(options)
        self._connections: dict[str, BrokerConnection] = {}
        self.brokers: dict[str, Addresses] = {}

    def queues(self, *, must_exist: bool = True) -> list[Queue]:
        """Return the queues that the options mean now."""
        queues, brokers = find_queues(self.names, self._options, must_exist=must_exist)
        self.brokers.update(brokers)
        return queues

    def find_brokers(self, names: Collection[str]) -> None:
        """Learn where brokers are, whatever topics they have; BrokerUnreachable if one is away."""
        self.brokers.update(self.names.brokers())
        for name in sorted(names):
            if name not in self.brokers:
                raise BrokerUnreachable(f"broker `{name}` is away: no name server knows it")

    def ends(self, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        """Return first offset and exclusive end of each queue; the first is asked for first."""
        wanted = list(queues)
        first = self._offsets(
            wanted, lambda q: Request(RequestCode.GET_MIN_OFFSET, GetMinOffset(q.topic, q.queue_id))
        )
        end = self._offsets(
            wanted, lambda q: Request(RequestCode.GET_MAX_OFFSET, GetMaxOffset(q.topic, q.queue_id))
        )
        # A broker may name a first offset beyond the end after it deleted files.
        return {queue: (min(max(0, first[queue]), end[queue]), end[queue]) for queue in wanted}

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return the offsets that a group has committed; queues without one are left out."""
        wanted = list(queues)

        def request(queue: Queue) -> Request:
            header = QueryConsumerOffset(group, queue.topic, queue.queue_id)
            return Request(RequestCode.QUERY_CONSUMER_OFFSET, header)

        found: dict[Queue, int] = {}
        for queue, answer in self._ask(wanted, request).items():
            if isinstance(answer, Response) and answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            found[queue] = accepted(answer).header.offset
        return found

    def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit offsets for a group."""

        def request(queue: Queue) -> Request:
            header = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offsets[queue])
            return Request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

        for answer in self._ask(list(offsets), request).values():
            accepted(answer)

    def offset_at(self, queue: Queue, moment_ms: int, ends: tuple[int, int]) -> int:
        """Return the first offset stored at a moment or later; the queue's end if there is none.

        Brokers name the nearest message, or 0 where they know none; from there it is corrected.
        """
        first, end = ends
        if first >= end:
            return end
        header = SearchOffsetByTimestamp(queue.topic, queue.queue_id, moment_ms)
        request = Request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        answer = accepted(self._ask([queue], lambda _: request)[queue])
        near = min(max(first, answer.header.offset), end - 1)
        return first_at(
            lambda offset: self._stored_ms(queue, offset) >= moment_ms, near, (first, end)
        )

    def close(self) -> None:
        """End all connections."""
        self.names.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        """Close at the end of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _stored_ms(self, queue: Queue, offset: int) -> int:
        """Return when a message was stored; 0 if it was deleted meanwhile."""
        request = pull_request(queue, offset, 1, group=self._options.group, message_filter=Filter())
        answer = accepted(self._ask([queue], lambda _: request)[queue], _PULL_CODES)
        return scan_record(answer.body).store_timestamp if answer.body else 0

    def _offsets(
        self, queues: Sequence[Queue], request: Callable[[Queue], Request]
    ) -> dict[Queue, int]:
        answers = self._ask(queues, request)
        return {queue: accepted(answers[queue]).header.offset for queue in queues}

    def _ask(
        self, queues: Sequence[Queue], request: Callable[[Queue], Request]
    ) -> dict[Queue, Response | CometError]:
        """Ask one question about each queue, all those of a broker at once."""
        by_broker: defaultdict[str, list[Queue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        answers: dict[Queue, Response | CometError] = {}
        for name, rows in by_broker.items():
            requests = [request(queue) for queue in rows]
            found = self._with_retries(name, requests)
            answers.update(zip(rows, found, strict=True))
        return answers

    def _with_retries(self, name: str, requests: list[Request]) -> list[Response | CometError]:
        """Ask a broker group, again after a pause, and a slave where the master does not answer."""
        failure: CometError | None = None
        for attempt in range(self._options.fetch_num_retries + 1):
            if attempt:
                time.sleep(self._options.fetch_retry_interval_ms / 1000)
            for address in readable_addresses(self.brokers.get(name, {}), self._options.read_from):
                try:
                    answers = self._connected(address).invoke_all(requests)
                except TransportError as error:
                    failure = error
                    self._disconnect(address)
                    continue
                failure = next((a for a in answers if isinstance(a, TransportError)), None)
                if failure is None:
                    return answers
                self._disconnect(address)
        reason = f": {failure}" if failure else ", since no name server knows it"
        raise BrokerUnreachable(f"broker `{name}` does not answer{reason}")

    def _connected(self, address: str) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection(address, self._settings)
        return connection

    def _disconnect(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()


def readable_addresses(addresses: Addresses, read_from: ReadFrom) -> list[str]:
    """Return where a queue may be read, in the order to try."""
    master = [address for broker_id, address in addresses.items() if broker_id == MASTER_ID]
    slaves = [address for broker_id, address in sorted(addresses.items()) if broker_id != MASTER_ID]
    if read_from is ReadFrom.MASTER:
        return master
    if read_from is ReadFrom.SLAVE:
        return slaves
    return master + slaves


def first_at(is_late: Callable[[int], bool], near: int, ends: tuple[int, int]) -> int:
    """Return the first offset between the ends that is late, beginning to look near one.

    `is_late` is false up to some offset and true from there on.
    """
    low, high = ends  # all before `low` are early, `high` and all after it are late
    step = 1
    probe = near
    while low < high and low <= probe < high:
        if is_late(probe):
            high, probe = probe, probe - step
        else:
            low, probe = probe + 1, probe + step
        step *= 2
    while low < high:
        middle = (low + high) // 2
        if is_late(middle):
            high = middle
        else:
            low = middle + 1
    return low
