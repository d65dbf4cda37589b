# SPDX-License-Identifier: Apache-2.0
"""An in-memory name server and brokers for tests: `async with MemoryCluster() as cluster`.

`with MemoryCluster() as cluster` serves the blocking clients of `cometmq.client.sync`.
"""

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Self, TypeVar, overload

from cometmq.client.arguments import check_kind, check_names, check_seconds, whole
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import ClientStateError, InvalidArgument, shown
from cometmq.client.hooks import TransactionState
from cometmq.client.message import MessageExt, check_topic
from cometmq.client.sync.loop import LOOPS_WITH_SERVERS, loop_thread
from cometmq.client.testing.broker import CLUSTER_NAME, LOOPBACK, MemoryBroker
from cometmq.client.testing.handlers import BROKER_HANDLERS, ask, open_transactions
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import MessageQueue, TopicList
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.namesrv import GetRouteinfoByTopic
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.message.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from cometmq.remoting.transport.dispatch import Handler
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

T = TypeVar("T")

_INTERVAL_S = 0.005


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], timeout_s: float = ..., *, what: str = ...
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T], timeout_s: float = ..., *, what: str = ...
) -> T: ...


async def eventually(
    condition: Callable[[], T | Awaitable[T]], timeout_s: float = 60.0, *, what: str = ""
) -> T:
    """Call a function or coroutine function repeatedly; return its first true value.

    Raise TimeoutError after `timeout_s`; its text contains the last value, and `what` if given.
    Example: `await eventually(lambda: seen == [b"x"], what="one message")`.
    """
    if not callable(condition):
        raise InvalidArgument(
            f"condition must be a function, not {shown(condition)}: write "
            "`await eventually(lambda: ...)`"
        )
    check_seconds(timeout_s, "timeout_s")
    value: object = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = condition()
                value = await found if inspect.isawaitable(found) else found
                if value:
                    return value
                await asyncio.sleep(_INTERVAL_S)
    except TimeoutError as error:
        raise TimeoutError(
            f"{what or 'the condition'} did not come true within {timeout_s:g} s; its last value "
            f"was {shown(value)}"
        ) from error


_STATES: Final = {
    TRANSACTION_COMMIT: TransactionState.COMMIT,
    TRANSACTION_ROLLBACK: TransactionState.ROLLBACK,
    TRANSACTION_NONE: TransactionState.UNKNOWN,
}


class MemoryCluster:
    """Serves clients over real sockets on loopback; its data is in memory and survives `stop`."""

    def __init__(
        self, broker_names: Iterable[str] = ("broker-a",), *, may_create_topics: bool = True
    ) -> None:
        """Create one master per name; `may_create_topics` is like autoCreateTopicEnable."""
        names = check_names(broker_names, "broker_names")
        if not names or len(set(names)) < len(names) or not all(name.strip() for name in names):
            raise InvalidArgument(
                f"broker_names must be different names, at least one, not {shown(names)}"
            )
        self.brokers = [MemoryBroker(name, BROKER_HANDLERS) for name in names]
        """All brokers, running or not."""
        for broker in self.brokers:
            broker.may_create_topics = may_create_topics
        self._running: set[str] = set()
        self._lost_ports: dict[str, int] = {}
        """The ports of the masters whose slaves are running, by broker name."""
        self._server: Server[Any] | None = None
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def namesrv(self) -> str:
        """The name server address for clients; ClientStateError before the first `start`."""
        if not self._port:
            raise ClientStateError(
                "this MemoryCluster has no address yet: use it inside `async with cluster:` (or "
                "`with cluster:` for blocking clients)"
            )
        return f"{LOOPBACK}:{self._port}"

    @property
    def broker(self) -> MemoryBroker:
        """The first broker."""
        return self.brokers[0]

    async def start(self) -> None:
        """Start the brokers and the name server; raise ClientStateError if they are running."""
        if self._loop is not None:
            raise ClientStateError(
                "this MemoryCluster is already running: `async with` calls `start()` by itself"
            )
        self._loop = asyncio.get_running_loop()
        LOOPS_WITH_SERVERS[self._loop] = LOOPS_WITH_SERVERS.get(self._loop, 0) + 1
        for broker in self.brokers:
            await self.start_broker(broker)
        self._server = Server(HANDLERS, self, ServerSettings(), clock_ms=wall_ms)
        self._port = await self._server.listen(LOOPBACK, 0)

    async def stop(self) -> None:
        """Stop all servers."""
        if self._loop is not None:
            LOOPS_WITH_SERVERS[self._loop] -= 1
            if not LOOPS_WITH_SERVERS[self._loop]:
                del LOOPS_WITH_SERVERS[self._loop]
            self._loop = None
        if self._server is not None:
            await self._server.close(drain_ms=0)
            self._server = None
        for broker in self.brokers:
            await broker.stop()

    async def start_broker(self, broker: MemoryBroker) -> None:
        """Start a broker on the same port as before; do nothing if it is running."""
        self._check_broker(broker)
        if broker.is_running:
            self._running.add(broker.name)
            return
        await broker.start()
        self._running.add(broker.name)

    async def stop_broker(self, broker: MemoryBroker) -> None:
        """Stop a broker; the name server removes it from the routes."""
        self._check_broker(broker)
        self._running.discard(broker.name)
        await broker.stop()

    async def lose_master(self, broker: MemoryBroker) -> None:
        """Stop a master; a slave with a full copy remains in the routes, on a different port.

        Raise ClientStateError if the master is not running or already lost.
        """
        self._check_broker(broker)
        if not broker.is_running or broker.name in self._lost_ports:
            raise ClientStateError(f"{broker.name} has no running master that could be lost")
        await broker.stop()
        self._lost_ports[broker.name] = broker.port
        with socket.create_server((LOOPBACK, 0)) as free:  # the route must never name port 0
            broker.port = free.getsockname()[1]
        await broker.start()

    async def regain_master(self, broker: MemoryBroker) -> None:
        """Restart the master that `lose_master` stopped, on its old port; its slave stops."""
        self._check_broker(broker)
        if broker.name not in self._lost_ports:
            raise ClientStateError(
                f"the master of {broker.name} is not lost: call `lose_master(broker)` first"
            )
        await broker.stop()
        broker.port = self._lost_ports.pop(broker.name)
        await broker.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of this cluster in a program without an event loop.

        Use `cluster.run(cluster.check_transactions())` and `cluster.run(eventually(...))` inside
        `with MemoryCluster()`; inside `async with`, use `await` instead.
        """
        if not asyncio.iscoroutine(work):
            raise InvalidArgument(
                f"run takes a coroutine, as in cluster.run(cluster.check_transactions()), not "
                f"{shown(work)}"
            )
        return loop_thread().run(work)

    def _check_broker(self, broker: object) -> None:
        if broker not in self.brokers:
            raise InvalidArgument(f"broker must be one of `cluster.brokers`, not {shown(broker)}")

    def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """Create a topic on every broker, or increase its number of queues."""
        check_topic(topic)
        whole(queue_count, "queue_count", low=1)
        for broker in self.brokers:
            broker.queues.create(topic, queue_count)

    def messages(self, topic: str) -> list[MessageExt]:
        """Return the messages of a topic from all brokers, in store order per queue."""
        return [message for broker in self.brokers for message in broker.messages(topic)]

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Return a group's committed offsets; queues without one are left out.

        Consumers commit at intervals (5 s by default) and before `close` returns, so read them
        after the end of `async with consumer`. `await consumer.commit()` of a lite pull consumer
        commits at once.
        """
        check_kind(group, str, "group")
        check_kind(topic, str, "topic")
        return {
            MessageQueue(topic, broker.name, queue_id): offset
            for broker in self.brokers
            for (owner, name, queue_id), offset in broker.offsets.items()
            if (owner, name) == (group, topic)
        }

    async def check_transactions(self, *, timeout_s: float = 10.0) -> dict[str, TransactionState]:
        """Check all open transactions now; return the answers of `check` by message id.

        Transactions whose producer group has no connected member are left out. Raise TimeoutError
        for an answer that does not arrive in time. A transaction that was left open (UNKNOWN, None,
        or an exception) is also checked without this call; see `MemoryBroker`.
        """
        check_seconds(timeout_s, "timeout_s")
        asked = [
            (broker, offset, len(broker.ends), message_id)
            for broker in self.brokers
            for offset, message_id in open_transactions(broker).items()
            if broker.is_running and ask(broker, offset)
        ]

        def answers() -> dict[str, TransactionState] | None:
            found = {
                message_id: _STATES[end.commit_or_rollback]
                for broker, offset, end_count, message_id in asked
                for end in broker.ends[end_count:]
                if end.from_transaction_check and end.tran_state_table_offset == offset
            }
            return found if len(found) == len(asked) else None

        await eventually(lambda: answers() is not None, timeout_s, what="the checks")
        return answers() or {}

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic as the name server returns it."""
        brokers = [
            broker
            for broker in self.brokers
            if broker.name in self._running and topic in broker.queues.queue_counts
        ]
        if not brokers:
            return None
        return TopicRoute(
            broker_datas=[self.broker_data(broker) for broker in brokers],
            queue_datas=[
                QueueData(
                    broker_name=broker.name,
                    perm=broker.registered_perm(topic),
                    read_queue_nums=broker.queues.queue_counts[topic],
                    write_queue_nums=broker.queues.queue_counts[topic],
                )
                for broker in brokers
            ],
        )

    def info(self) -> ClusterInfo:
        """Return the running brokers."""
        running = [broker for broker in self.brokers if broker.name in self._running]
        return ClusterInfo(
            broker_addr_table={broker.name: self.broker_data(broker) for broker in running},
            cluster_addr_table={CLUSTER_NAME: [broker.name for broker in running]},
        )

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted({name for broker in self.brokers for name in broker.queues.queue_counts})

    def broker_data(self, broker: MemoryBroker) -> BrokerData:
        """Return a broker's name, id and address as they appear in routes."""
        broker_id = 1 if broker.name in self._lost_ports else MASTER_ID
        return BrokerData({broker_id: broker.address}, broker.name, CLUSTER_NAME)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        loop_thread().run(self.start())
        return self

    def __exit__(self, *_: object) -> None:
        loop_thread().run(self.stop())


def get_routeinfo_by_topic(cluster: MemoryCluster, call: Call[GetRouteinfoByTopic]) -> Reply:
    """Return the route of a topic."""
    route = cluster.route(call.header.topic)
    if route is None:
        raise TopicNotExist(
            f"No topic route info in name server for the topic: {call.header.topic}"
        )
    return Reply(body=encode_json(route))


def _body(read: Callable[[MemoryCluster], Any]) -> Handler[Any]:
    return lambda cluster, _call: Reply(body=encode_json(read(cluster)))


HANDLERS: Final[Mapping[int, Handler[Any]]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_routeinfo_by_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda *_: OK,  # routes follow the brokers' topics
    RequestCode.GET_BROKER_CLUSTER_INFO: _body(MemoryCluster.info),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _body(lambda c: TopicList(c.topics())),
}
