# SPDX-License-Identifier: Apache-2.0
"""Queries brokers about their queues during planning: ends, committed offsets, timestamps."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, SubscriptionGroupTable
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
from cometmq.spark.cluster.connection import Closable, Connections, LinkSettings, accepted
from cometmq.spark.cluster.pulling import PULL_CODES, Filter, pull_request
from cometmq.spark.cluster.topics import MASTER_ID, Addresses, NameServers, find_queues
from cometmq.spark.errors import BrokerUnreachable
from cometmq.spark.options.definitions import Options, ReadFrom
from cometmq.spark.options.offsets_json import Queue


class Metadata(Closable):
    """Connections to name servers and brokers, kept open while a query is planned."""

    def __init__(self, options: Options) -> None:
        self.names = NameServers(options)
        self._options = options
        self._connections = Connections(LinkSettings.of(options))
        self.brokers: dict[str, Addresses] = {}

    def queues(self, *, must_exist: bool = True) -> list[Queue]:
        queues, brokers = find_queues(self.names, self._options, must_exist=must_exist)
        self.brokers.update(brokers)
        return queues

    def find_brokers(self, names: Collection[str]) -> None:
        """Look up brokers by name, without a topic; raise BrokerUnreachable for unknown names."""
        self.brokers.update(self.names.brokers())
        for name in sorted(names):
            if name not in self.brokers:
                raise BrokerUnreachable(f"broker `{name}` is unreachable: no name server knows it")

    def ends(self, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        """Return each queue's first offset and exclusive end.

        First offsets are queried before ends, because both may grow between the two queries.
        """
        wanted = list(queues)
        first = self._offsets(
            wanted, lambda q: Request(RequestCode.GET_MIN_OFFSET, GetMinOffset(q.topic, q.queue_id))
        )
        end = self._offsets(
            wanted, lambda q: Request(RequestCode.GET_MAX_OFFSET, GetMaxOffset(q.topic, q.queue_id))
        )
        # After deleting files, a broker may report a first offset beyond the end.
        return {queue: (min(max(0, first[queue]), end[queue]), end[queue]) for queue in wanted}

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return a group's committed offsets, omitting queues that have none."""
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

        def request(queue: Queue) -> Request:
            header = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offsets[queue])
            return Request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

        for answer in self._ask(list(offsets), request).values():
            accepted(answer)

    def register(self, group: str, names: Collection[str]) -> None:
        """Create a consumer group at the masters of these brokers, where it does not exist."""
        for name in sorted(names):
            master = self.brokers[name].get(MASTER_ID)
            if master is None:
                continue  # a slave copies the groups of its master
            connection = self._connections.get(master)
            answer = connection.invoke(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            known = decode_json(SubscriptionGroupTable, answer.body).subscription_group_table
            if group not in known:
                body = encode_json(SubscriptionGroupConfig(group_name=group))
                connection.invoke(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    def offset_at(self, queue: Queue, moment_ms: int, ends: tuple[int, int]) -> int:
        """Return the first offset stored at or after a time, or the queue's end if there is none.

        Brokers return the offset nearest to the time, or 0 if they find none; the search starts
        there.
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
        self.names.close()
        self._connections.close()

    def _stored_ms(self, queue: Queue, offset: int) -> int:
        """Return the store time of a message, or 0 if the message has been deleted."""
        request = pull_request(queue, offset, 1, group=self._options.group, message_filter=Filter())
        answer = accepted(self._ask([queue], lambda _: request)[queue], PULL_CODES)
        return scan_record(answer.body).store_timestamp if answer.body else 0

    def _offsets(
        self, queues: Sequence[Queue], request: Callable[[Queue], Request]
    ) -> dict[Queue, int]:
        answers = self._ask(queues, request)
        return {queue: accepted(answers[queue]).header.offset for queue in queues}

    def _ask(
        self, queues: Sequence[Queue], request: Callable[[Queue], Request]
    ) -> dict[Queue, Response | CometError]:
        """Send one request per queue, pipelined per broker."""
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
        """Query a broker group: try its addresses in turn, then pause and retry."""
        failure: CometError | None = None
        for attempt in range(self._options.fetch_num_retries + 1):
            if attempt:
                time.sleep(self._options.fetch_retry_interval_ms / 1000)
            for address in readable_addresses(self.brokers.get(name, {}), self._options.read_from):
                try:
                    answers = self._connections.get(address).invoke_all(requests)
                except TransportError as error:
                    failure = error
                    self._connections.drop(address)
                    continue
                failure = next((a for a in answers if isinstance(a, TransportError)), None)
                if failure is None:
                    return answers
                self._connections.drop(address)
        reason = f": {failure}" if failure else ", since no name server knows it"
        raise BrokerUnreachable(f"broker `{name}` does not answer{reason}")


def readable_addresses(addresses: Addresses, read_from: ReadFrom) -> list[str]:
    """List the addresses from which a queue may be read, in order of preference."""
    master = [address for broker_id, address in addresses.items() if broker_id == MASTER_ID]
    slaves = [address for broker_id, address in sorted(addresses.items()) if broker_id != MASTER_ID]
    if read_from is ReadFrom.MASTER:
        return master
    if read_from is ReadFrom.SLAVE:
        return slaves
    return master + slaves


def first_at(is_late: Callable[[int], bool], near: int, ends: tuple[int, int]) -> int:
    """Find the first late offset: move away from `near` in growing steps, then bisect.

    `is_late` must be false up to some offset and true from there on.
    """
    low, high = ends  # invariant: offsets below `low` are early, from `high` on late
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
