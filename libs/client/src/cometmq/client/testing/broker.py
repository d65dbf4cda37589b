# SPDX-License-Identifier: Apache-2.0
"""An in-memory broker that speaks the real protocol over a real socket.

It stores messages, holds pulls, tracks groups, keeps offsets, redelivers messages, ends and checks
transactions, and creates and deletes topics and groups. It has no disk and no delays, so redelivery
is immediate. Tests inject failures with `fail` and inspect `requests`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from cometmq.client.arguments import check_kind, whole
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientStateError, InvalidArgument, shown
from cometmq.client.message import MessageExt, received, unreadable
from cometmq.client.subscriptions import ExpressionType
from cometmq.remoting import remarks
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Peer, Reply
from cometmq.remoting.commands import callbacks, pull
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.errors import (
    AccessDenied,
    CommandError,
    CorruptRecord,
    ServerError,
    SubscriptionNotExist,
    SubscriptionParseFailed,
    TopicNotExist,
)
from cometmq.remoting.message.flags import Perm, PullSysFlag
from cometmq.remoting.message.ids import offset_message_id, pack_host
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey, parse_properties, render_properties
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.remoting.names import (
    ALL_TAGS,
    AUTO_CREATE_TOPIC,
    DEFAULT_REGION,
    reply_topic,
    retry_topic,
)
from cometmq.remoting.refusals import ACL_EXCEPTION, is_access_refusal
from cometmq.remoting.transport.dispatch import Before, Handler
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)


class MemoryQueues:
    """Queues of records by topic and queue id; records are deleted only on request."""

    def __init__(self) -> None:
        self.queue_counts: dict[str, int] = {}
        self._perms: dict[str, int] = {}
        self._queues: dict[tuple[str, int], list[bytes]] = {}
        self._first_offsets: dict[tuple[str, int], int] = {}
        self._records: dict[int, bytes] = {}
        self._end = 0

    def create(self, topic: str, queue_count: int) -> None:
        """Create a topic, or increase its number of queues."""
        self.queue_counts[topic] = max(queue_count, self.queue_counts.get(topic, 0))

    def configure(self, topic: str, queue_count: int, *, perm: int) -> None:
        """Create a topic, or set its number of queues and its permissions."""
        self.queue_counts[topic] = queue_count
        self._perms[topic] = perm

    def perm(self, topic: str) -> int:
        return self._perms.get(topic, READ_WRITE)

    def delete(self, topic: str) -> None:
        """Delete a topic; a topic of this name that is created later begins at offset 0."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
            self._first_offsets.pop(key, None)
        self.queue_counts.pop(topic, None)
        self._perms.pop(topic, None)

    def put(self, message: NewMessage, now_ms: int) -> tuple[int, int]:
        """Store a message; return its queue offset and its physical offset."""
        key = (message.topic, message.queue_id)
        queue_offset, physical_offset = self.max_offset(*key), self._end
        record = encode_record(message, queue_offset, physical_offset, now_ms)
        self._queues.setdefault(key, []).append(record)
        self._records[physical_offset] = record
        self._end += len(record)
        return queue_offset, physical_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._first_offsets.get((topic, queue_id), 0)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the exclusive end offset of a queue."""
        queue = self._queues.get((topic, queue_id), [])
        return self.min_offset(topic, queue_id) + len(queue)

    def read(self, topic: str, queue_id: int, offset: int, count_max: int) -> list[bytes]:
        """Return up to `count_max` records, starting at an offset."""
        start = offset - self.min_offset(topic, queue_id)
        return self._queues.get((topic, queue_id), [])[start : start + count_max]

    def replace(self, topic: str, queue_id: int, offset: int, record: bytes) -> None:
        """Replace the bytes of a record, to damage it; pulls skip an empty record."""
        start = offset - self.min_offset(topic, queue_id)
        self._queues[topic, queue_id][start] = record

    def raw_record(self, physical_offset: int) -> bytes | None:
        return self._records.get(physical_offset)

    def record_at(self, physical_offset: int) -> MessageRecord | None:
        record = self._records.get(physical_offset)
        return decode_record(record) if record is not None else None

    def records(self, topic: str) -> Iterator[MessageRecord]:
        for queue_id in range(self.queue_counts.get(topic, 0)):
            for record in self._queues.get((topic, queue_id), []):
                yield decode_record(record)

    def expire(self, topic: str, queue_id: int, first_offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        old = self.min_offset(topic, queue_id)
        queue = self._queues.get((topic, queue_id), [])
        self._queues[topic, queue_id] = queue[first_offset - old :]
        self._first_offsets[topic, queue_id] = first_offset


def sent_back(record: MessageRecord, topic: str, message_id: str) -> NewMessage:
    """Return the copy of a record for a retry or dead-letter topic."""
    properties: Mapping[str, str] = {
        str(PropertyKey.RETRY_TOPIC): record.topic,
        str(PropertyKey.ORIGIN_MESSAGE_ID): message_id,
        **parse_properties(record.properties_text),
    }
    return msgspec.structs.replace(
        record.to_new_message(),
        topic=topic,
        queue_id=0,
        reconsume_times=record.reconsume_times + 1,
        properties=render_properties(properties),
    )


LOOPBACK: Final = "127.0.0.1"
AUTO_QUEUE_COUNT: Final = 4
CLUSTER_NAME: Final = "MemoryCluster"

HANG: Final = "hang"
"""For `MemoryBroker.fail`: accept the request and never answer."""
DISCONNECT: Final = "disconnect"
"""For `MemoryBroker.fail`: close the connection instead of answering."""
LOSE_ANSWER: Final = "lose-answer"
"""For `MemoryBroker.fail`: serve the request, but close the connection instead of answering."""
_LESS_SAFE: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
_LOSSES: Final = (HANG, DISCONNECT, LOSE_ANSWER)

_TEMPLATE_PERM: Final = int(Perm.READ | Perm.WRITE | Perm.INHERIT)
Membership = tuple[str, Peer]
"""A member of a group: as with real brokers, two connections with one client id are two members."""
_Held = tuple[Call[pull.PullMessage], asyncio.TimerHandle]


class MemoryTables:
    """The state of the in-memory broker, except its messages."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, dict[Membership, tuple[Peer, ConsumerData]]] = {}
        self.group_configs: dict[str, SubscriptionGroupConfig] = {}
        """The groups that were created by request; see `group_config`."""
        self.producers: dict[str, set[str]] = {}
        self.peers: dict[str, Peer] = {}
        """Producers' connections, by client id; replies are pushed over them."""
        self.locks: dict[tuple[str, MessageQueue], str] = {}
        """The client that holds each queue's lock, by group and queue."""
        self.ends: list[EndTransaction] = []
        """The END_TRANSACTION requests that producers have sent."""
        self.check_counts: Counter[int] = Counter()
        """Number of automatic transaction checks, by half message offset."""
        self.dead: list[MessageExt] = []
        """Messages moved to a dead-letter topic."""

    def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Return the settings of a group; the defaults are those of a new group."""
        found = self.group_configs.get(group)
        return SubscriptionGroupConfig(group_name=group) if found is None else found

    def leave(self, group: str, member: Membership) -> None:
        """Remove a member."""
        if self.groups.get(group, {}).pop(member, None) is not None:
            self.notify(group)

    def notify(self, group: str) -> None:
        """Make every member rebalance."""
        for peer, _ in self.groups.get(group, {}).values():
            header = callbacks.NotifyConsumerIdsChanged(group)
            peer.send(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)


class MemoryBroker(MemoryTables):
    """One broker, the master of its replica group."""

    def __init__(self, name: str, handlers: Mapping[int, Handler[Any]]) -> None:
        super().__init__()
        self.name = name
        self._handlers = handlers
        self.port = 0
        self.queues = MemoryQueues()
        self.queues.configure(AUTO_CREATE_TOPIC, AUTO_QUEUE_COUNT, perm=_TEMPLATE_PERM)
        self.queues.create(reply_topic(CLUSTER_NAME), 1)
        self.send_ext = {"MSG_REGION": DEFAULT_REGION, "TRACE_ON": "true"}
        self.requests: Counter[int] = Counter()
        """Number of requests by code."""
        self.may_check_transactions = True
        """Whether the broker automatically checks transactions that end with UNKNOWN."""
        self.before: tuple[Before[Any], ...] = ()
        """Server hooks that check every request; effective from the next start."""
        self.may_create_topics = True
        """Like the broker's autoCreateTopicEnable setting."""
        self.young_queue_starts_at_zero = True
        """Like the broker setting of this name: a new group starts with the first message of a
        queue until some messages of the queue have expired. If False, `consume_from` applies to
        any queue with messages.
        """
        self.send_codes: deque[ResponseCode] = deque()
        self._faults: dict[int, deque[CommandError | str]] = {}
        self._held: dict[tuple[str, int], list[_Held]] = {}
        self._server: Server[Any] | None = None

    @property
    def address(self) -> str:
        """The address on which the broker listens."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the broker serves requests."""
        return self._server is not None

    def registered_perm(self, topic: str) -> int:
        """Return the permissions of a topic in its route."""
        perm = self.queues.perm(topic)
        return perm if self.may_create_topics else perm & ~int(Perm.INHERIT)

    async def start(self) -> None:
        """Listen on a free port; restarts use the same port."""
        if self.is_running:
            raise ClientStateError(f"{self.name} is already running: its cluster starts it")
        handlers = {
            code: self._counted(int(code), handler) for code, handler in self._handlers.items()
        }
        self._server = Server(
            handlers,
            self,
            ServerSettings(),
            clock_ms=wall_ms,
            before=self.before,
            on_close=self._forget,
        )
        self.port = await self._server.listen(LOOPBACK, self.port)

    async def stop(self) -> None:
        """Close every connection; the messages survive until the next `start`."""
        for held in self._held.values():
            for _, timer in held:
                timer.cancel()
        self._held.clear()
        if self._server is not None:
            await self._server.close(drain_ms=0)
            self._server = None

    # -- for tests ----------------------------------------------------------------------------

    def fail(self, code: int, fault: CommandError | str, *, times: int = 1) -> None:
        """Answer the next requests of a code with an error, or not at all.

        With HANG and DISCONNECT, the requests are ignored; with LOSE_ANSWER, they are served but
        not answered. AccessDenied is answered with the remark of RocketMQ's access control, by
        which clients recognise such refusals. Raise InvalidArgument for any other fault that is not
        a CommandError, and for a code that this kind of broker does not serve.
        """
        self._check_code(code)
        whole(times, "times", low=1)
        if not isinstance(fault, CommandError) and fault not in _LOSSES:
            raise InvalidArgument(
                'fault must be a CommandError, such as SystemBusy("..."), or HANG, DISCONNECT or '
                f"LOSE_ANSWER, not {shown(fault)}"
            )
        if isinstance(fault, AccessDenied) and not is_access_refusal(fault.remark):
            fault = AccessDenied(f"{ACL_EXCEPTION}: {fault.remark}")
        self._faults.setdefault(int(code), deque()).extend([fault] * times)

    def faults_left(self, code: int) -> int:
        """Return how many faults of a code have not occurred yet."""
        return len(self._faults.get(int(code), ()))

    def clear_faults(self) -> None:
        """Serve all requests again; faults that have not occurred yet are dropped."""
        self._faults.clear()

    def store_less_safely(self, code: ResponseCode, *, times: int = 1) -> None:
        """Store the next messages, but answer with a code such as FLUSH_DISK_TIMEOUT."""
        if code not in _LESS_SAFE:
            names = ", ".join(f"ResponseCode.{one.name}" for one in _LESS_SAFE)
            raise InvalidArgument(f"code must be one of {names}, not {shown(code)}")
        whole(times, "times", low=1)
        self.send_codes.extend([code] * times)

    @property
    def held_count(self) -> int:
        """The number of pending pulls."""
        return sum(len(held) for held in self._held.values())

    def messages(self, topic: str) -> list[MessageExt]:
        """Return the messages of a topic, with damaged ones as `UnreadableMessage`."""
        check_kind(topic, str, "topic")
        return [self._message(record) for record in self.queues.records(topic)]

    def _check_code(self, code: object) -> None:
        """Raise InvalidArgument for a code whose faults would never occur."""
        if not isinstance(code, int) or code not in self._handlers:
            raise InvalidArgument(
                f"code must be one of the request codes that MemoryBroker serves, such as "
                f"RequestCode.SEND_MESSAGE_V2, not {shown(code)}"
            )

    # -- inside -------------------------------------------------------------------------------

    def _message(self, record: MessageRecord) -> MessageExt:
        try:
            return received(record, self.name)
        except CorruptRecord:
            return unreadable(record, self.name)

    def _counted(self, code: int, handler: Handler[Any]) -> Handler[Any]:
        def serve(broker: "MemoryBroker", call: Call[Any]) -> Any:
            self.requests[code] += 1
            faults = self._faults.get(code)
            if not faults:
                return handler(broker, call)
            fault = faults.popleft()
            if isinstance(fault, CommandError):
                raise fault
            if fault == LOSE_ANSWER:
                handler(broker, call)
            if fault in (DISCONNECT, LOSE_ANSWER):
                call.peer.close()
            return None

        return serve

    def store(self, message: NewMessage) -> tuple[str, int]:
        """Store a message and complete pending pulls; return its id and queue offset."""
        queue_offset, physical_offset = self.queues.put(message, wall_ms())
        self._wake(message.topic, message.queue_id)
        return offset_message_id(self.store_host, physical_offset), queue_offset

    @property
    def store_host(self) -> bytes:
        """The broker's address, in the format of records."""
        return pack_host(bytes((127, 0, 0, 1)), self.port)

    def wanted(self, call: Call[pull.PullMessage]) -> SubscriptionData:
        """Return the subscription of a pull, or of the group's last heartbeat."""
        header = call.header
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            check_expression_type(header.expression_type)
            text = header.subscription or ALL_TAGS
            tags = [] if text == ALL_TAGS else [tag.strip() for tag in text.split("||")]
            return SubscriptionData(topic=header.topic, sub_string=text, tags_set=tags)
        for _, data in self.groups.get(header.consumer_group, {}).values():
            for subscription in data.subscription_data_set:
                if subscription.topic == header.topic:
                    check_expression_type(subscription.expression_type)
                    return subscription
        raise SubscriptionNotExist("the consumer's subscription not exist")

    def hold(self, call: Call[pull.PullMessage]) -> None:
        """Hold a pull until a message arrives or its hold time is over."""
        header = call.header
        key = (header.topic, header.queue_id)
        delay_s = header.suspend_timeout_millis / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, self._expire, key, call)
        self._held.setdefault(key, []).append((call, timer))

    def _wake(self, topic: str, queue_id: int) -> None:
        for call, timer in self._held.pop((topic, queue_id), []):
            timer.cancel()
            if not call.peer.is_open:
                continue
            try:
                answer = pulled(self, call)
            except CommandError as error:
                call.fail(error)
                continue
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                self.hold(call)
            else:
                call.answer(answer)

    def _expire(self, key: tuple[str, int], call: Call[pull.PullMessage]) -> None:
        self._held[key] = [held for held in self._held.get(key, []) if held[0] is not call]
        if call.peer.is_open:
            try:
                call.answer(pulled(self, call))
            except CommandError as error:
                call.fail(error)

    def join(self, peer: Peer, heartbeat: Heartbeat) -> None:
        """Register the client, and notify the other members of each group that has changed."""
        for producer in heartbeat.producer_data_set:
            self.producers.setdefault(producer.group_name, set()).add(heartbeat.client_id)
            self.peers[heartbeat.client_id] = peer
        for data in heartbeat.consumer_data_set:
            members = self.groups.setdefault(data.group_name, {})
            key = heartbeat.client_id, peer
            known = members.pop(key, None)  # the last heartbeat is the last item
            members[key] = (peer, data)
            self.queues.create(retry_topic(data.group_name), 1)
            if known is None or known[1] != data:
                self.notify(data.group_name)

    def _forget(self, peer: Peer) -> None:
        self.peers = {client: known for client, known in self.peers.items() if known is not peer}
        for group, members in self.groups.items():
            for member in [known for known in members if known[1] is peer]:
                self.leave(group, member)


def check_expression_type(kind: str | None) -> None:
    """Refuse the filters that real brokers evaluate but this broker does not."""
    if kind == ExpressionType.SQL92:
        raise SubscriptionParseFailed(
            "MemoryCluster does not evaluate SQL92 conditions: test them against a broker, or "
            "subscribe by tag"
        )


def pulled(broker: MemoryBroker, call: Call[pull.PullMessage]) -> Reply:
    """Answer a pull with the messages that are stored now."""
    header, queues = call.header, broker.queues
    place = (header.topic, header.queue_id)
    begin, end = queues.min_offset(*place), queues.max_offset(*place)
    offset = header.queue_offset

    def reply(code: ResponseCode, next_offset: int, body: bytes = b"") -> Reply:
        return Reply(code, pull.PullMessageReply(0, next_offset, begin, end), body)

    if header.topic not in queues.queue_counts:
        raise TopicNotExist(f"topic[{header.topic}] not exist, apply first please!")
    count = queues.queue_counts[header.topic]
    if header.queue_id >= count:
        raise ServerError(
            remarks.pull_queue_illegal(
                queue_id=header.queue_id,
                topic=header.topic,
                read_queue_nums=count,
                peer=call.peer.address,
            )
        )
    wanted = broker.wanted(call)
    if offset < begin or offset > end:
        return reply(ResponseCode.PULL_OFFSET_MOVED, begin if offset < begin else end)
    if offset == end:
        return reply(ResponseCode.PULL_NOT_FOUND, offset)
    records = queues.read(*place, offset, header.max_msg_nums)
    accepted = [it for it in records if it and _is_wanted(decode_record(it), wanted)]
    code = ResponseCode.SUCCESS if accepted else ResponseCode.PULL_RETRY_IMMEDIATELY
    return reply(code, offset + len(records), b"".join(accepted))


def _is_wanted(record: MessageRecord, wanted: SubscriptionData) -> bool:
    return not wanted.tags_set or record.tags in wanted.tags_set
