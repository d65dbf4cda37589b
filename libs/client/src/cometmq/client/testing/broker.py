# SPDX-License-Identifier: Apache-2.0
"""A broker in memory that speaks the real protocol over a real socket.

It does what clients rely on (store, hold pulls, share groups, keep offsets, take messages
back) and nothing else: no disk, no delays (a message that comes back comes at once), no
transactions. Tests make it fail by `fail` and look at `requests`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt, received
from cometmq.client.testing.queues import MemoryQueues, sent_back
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.bodies.queues import ConsumerIdList
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import OK, Call, Peer, Reply
from cometmq.remoting.commands import callbacks, clients, offsets, pull, queries, send
from cometmq.remoting.errors import (
    CommandError,
    QueryNotFound,
    ServerError,
    SubscriptionNotExist,
    TopicNotExist,
)
from cometmq.remoting.message.batch import split_batch
from cometmq.remoting.message.flags import PullSysFlag, tag_code
from cometmq.remoting.message.ids import offset_message_id, pack_host
from cometmq.remoting.message.properties import PropertyKey, property_value
from cometmq.remoting.message.record import MessageRecord, NewMessage, decode_record
from cometmq.remoting.transport.dispatch import Handler
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

LOOPBACK: Final = "127.0.0.1"
AUTO_QUEUE_COUNT: Final = 4
RECONSUME_TIMES_MAX: Final = 16

HANG: Final = "hang"
"""For `MemoryBroker.fail`: take the request and never answer."""
DISCONNECT: Final = "disconnect"
"""For `MemoryBroker.fail`: end the connection instead of answering."""

_Held = tuple[Call[pull.PullMessage], asyncio.TimerHandle]


class MemoryBroker:
    """One broker, the master of its name."""

    def __init__(self, name: str = "broker-a") -> None:
        """Start with no topic but the one that new topics are modelled on."""
        self.name = name
        self.port = 0
        self.queues = MemoryQueues()
        self.queues.create("TBW102", AUTO_QUEUE_COUNT)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, dict[str, tuple[Peer, ConsumerData]]] = {}
        self.producers: dict[str, set[str]] = {}
        self.requests: Counter[int] = Counter()
        self.dead: list[MessageExt] = []
        """Messages that went to a dead-letter topic."""
        self.may_create_topics = True
        self.send_codes: deque[ResponseCode] = deque()
        self._faults: dict[int, deque[CommandError | str]] = {}
        self._held: dict[tuple[str, int], list[_Held]] = {}
        self._server: Server[Any] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{LOOPBACK}:{self.port}"

    async def start(self) -> None:
        """Listen on a free port, the same one after a stop."""
        handlers = {code: self._counted(int(code), handler) for code, handler in HANDLERS.items()}
        self._server = Server(
            handlers, self, ServerSettings(), clock_ms=wall_ms, on_close=self._forget
        )
        self.port = await self._server.listen(LOOPBACK, self.port)

    async def stop(self) -> None:
        """End every connection; the messages stay for another `start`."""
        for held in self._held.values():
            for _, timer in held:
                timer.cancel()
        self._held.clear()
        if self._server is not None:
            await self._server.close(drain_ms=0)
            self._server = None

    # -- for tests ----------------------------------------------------------------------------

    def fail(self, code: int, fault: CommandError | str, *, times: int = 1) -> None:
        """Answer the next requests of a code with an error, or not at all (HANG, DISCONNECT)."""
        self._faults.setdefault(int(code), deque()).extend([fault] * times)

    def store_less_safely(self, code: ResponseCode, *, times: int = 1) -> None:
        """Store the next messages, but answer a code such as FLUSH_DISK_TIMEOUT."""
        self.send_codes.extend([code] * times)

    @property
    def held_count(self) -> int:
        """How many pulls wait for messages."""
        return sum(len(held) for held in self._held.values())

    def messages(self, topic: str) -> list[MessageExt]:
        """Return what is stored in a topic."""
        return [received(record, self.name) for record in self.queues.records(topic)]

    # -- inside -------------------------------------------------------------------------------

    def _counted(self, code: int, handler: Handler[Any]) -> Handler[Any]:
        """Count a request, then serve it, unless a test wants it to fail."""

        def serve(broker: "MemoryBroker", call: Call[Any]) -> Any:
            self.requests[code] += 1
            faults = self._faults.get(code)
            if not faults:
                return handler(broker, call)
            fault = faults.popleft()
            if isinstance(fault, CommandError):
                raise fault
            if fault == DISCONNECT:
                call.peer.close()
            return None

        return serve

    def store(self, message: NewMessage) -> tuple[str, int]:
        """Store a message, and answer the pulls that wait; return its id and queue offset."""
        queue_offset, physical_offset = self.queues.put(message, wall_ms())
        self._wake(message.topic, message.queue_id)
        return offset_message_id(self.store_host, physical_offset), queue_offset

    @property
    def store_host(self) -> bytes:
        """The own address as records hold it."""
        return pack_host(bytes((127, 0, 0, 1)), self.port)

    def wanted(self, call: Call[pull.PullMessage]) -> SubscriptionData:
        """Return what a pull wants: by itself, or by the group's last heartbeat."""
        header = call.header
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            text = header.subscription or "*"
            tags = [] if text == "*" else [tag.strip() for tag in text.split("||")]
            return SubscriptionData(topic=header.topic, sub_string=text, tags_set=tags)
        for _, data in self.groups.get(header.consumer_group, {}).values():
            for subscription in data.subscription_data_set:
                if subscription.topic == header.topic:
                    return subscription
        raise SubscriptionNotExist("the consumer's subscription not exist")

    def hold(self, call: Call[pull.PullMessage]) -> None:
        """Answer a pull later: when a message comes, or when its time is over."""
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
        """Note who is here, and tell the others of a group when it has changed."""
        for producer in heartbeat.producer_data_set:
            self.producers.setdefault(producer.group_name, set()).add(heartbeat.client_id)
        for data in heartbeat.consumer_data_set:
            members = self.groups.setdefault(data.group_name, {})
            known = members.get(heartbeat.client_id)
            members[heartbeat.client_id] = (peer, data)
            self.queues.create(f"%RETRY%{data.group_name}", 1)
            if known is None or known[1] != data or known[0] is not peer:
                self.notify(data.group_name)

    def leave(self, group: str, client_id: str) -> None:
        """Forget a member."""
        if self.groups.get(group, {}).pop(client_id, None) is not None:
            self.notify(group)

    def notify(self, group: str) -> None:
        """Have every member share the queues anew."""
        for peer, _ in self.groups.get(group, {}).values():
            header = callbacks.NotifyConsumerIdsChanged(group)
            peer.send(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)

    def _forget(self, peer: Peer) -> None:
        for group, members in self.groups.items():
            for client_id in [c for c, (member, _) in members.items() if member is peer]:
                self.leave(group, client_id)


# -- handlers ---------------------------------------------------------------------------------


def send_message(broker: MemoryBroker, call: Call[send.SendMessageV2]) -> Reply:
    """Store a message, or the messages of a batch."""
    header = call.header
    if header.topic not in broker.queues.queue_counts:
        if not broker.may_create_topics:
            raise TopicNotExist(f"topic[{header.topic}] not exist, apply first please!")
        broker.queues.create(header.topic, min(header.default_topic_queue_nums, AUTO_QUEUE_COUNT))
    parts = [(header.flag, call.body, header.properties)]
    if header.batch:
        parts = [(p.flag, bytes(p.body), p.properties) for p in split_batch(call.body)]
    stored = [
        broker.store(
            NewMessage(
                topic=header.topic,
                queue_id=header.queue_id,
                flag=flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=call.peer.host,
                store_host=broker.store_host,
                body=body,
                properties=properties,
                reconsume_times=header.reconsume_times,
                tag_code=tag_code(property_value(properties, PropertyKey.TAGS)),
            ),
        )
        for flag, body, properties in parts
    ]
    ids = ",".join(message_id for message_id, _ in stored)
    code = broker.send_codes.popleft() if broker.send_codes else ResponseCode.SUCCESS
    return Reply(code, send.SendMessageReply(ids, header.queue_id, stored[0][1]))


def pull_message(broker: MemoryBroker, call: Call[pull.PullMessage]) -> Reply | None:
    """Return messages, or hold the pull until there are some."""
    header = call.header
    if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
        key = (header.consumer_group, header.topic, header.queue_id)
        broker.offsets[key] = header.commit_offset
    answer = pulled(broker, call)
    can_wait = header.sys_flag & PullSysFlag.SUSPEND and header.suspend_timeout_millis > 0
    if answer.code == ResponseCode.PULL_NOT_FOUND and can_wait:
        broker.hold(call)
        return None
    return answer


def pulled(broker: MemoryBroker, call: Call[pull.PullMessage]) -> Reply:
    """Return the answer to a pull as things are."""
    header, queues = call.header, broker.queues
    place = (header.topic, header.queue_id)
    begin, end = queues.min_offset(*place), queues.max_offset(*place)
    offset = header.queue_offset

    def reply(code: ResponseCode, next_offset: int, body: bytes = b"") -> Reply:
        return Reply(code, pull.PullMessageReply(0, next_offset, begin, end), body)

    if header.topic not in queues.queue_counts:
        raise TopicNotExist(f"topic[{header.topic}] not exist, apply first please!")
    wanted = broker.wanted(call)
    if offset < begin or offset > end:
        return reply(ResponseCode.PULL_OFFSET_MOVED, begin if offset < begin else end)
    if offset == end:
        return reply(ResponseCode.PULL_NOT_FOUND, offset)
    records = queues.read(*place, offset, header.max_msg_nums)
    accepted = [record for record in records if _is_wanted(decode_record(record), wanted)]
    code = ResponseCode.SUCCESS if accepted else ResponseCode.PULL_RETRY_IMMEDIATELY
    return reply(code, offset + len(records), b"".join(accepted))


def _is_wanted(record: MessageRecord, wanted: SubscriptionData) -> bool:
    return not wanted.tags_set or record.tags in wanted.tags_set


def heart_beat(broker: MemoryBroker, call: Call[Any]) -> Reply:
    """Note who is here."""
    broker.join(call.peer, decode_json(Heartbeat, call.body))
    return OK


def unregister_client(broker: MemoryBroker, call: Call[clients.UnregisterClient]) -> Reply:
    """Forget a member of a group."""
    header = call.header
    if header.consumer_group is not None:
        broker.leave(header.consumer_group, header.client_id)
    if header.producer_group is not None:
        broker.producers.get(header.producer_group, set()).discard(header.client_id)
    return OK


def get_consumer_list_by_group(
    broker: MemoryBroker, call: Call[clients.GetConsumerListByGroup]
) -> Reply:
    """Say who is in a group."""
    members = broker.groups.get(call.header.consumer_group)
    if not members:
        raise ServerError(f"no consumer for this group, {call.header.consumer_group}")
    return Reply(body=encode_json(ConsumerIdList(sorted(members))))


def consumer_send_msg_back(broker: MemoryBroker, call: Call[send.ConsumerSendMsgBack]) -> Reply:
    """Deliver a message again at once, or bury it."""
    header = call.header
    record = broker.queues.record_at(header.offset)
    if record is None:
        raise ServerError("look message by offset failed, " + str(header.offset))
    times_max = header.max_reconsume_times
    is_dead = header.delay_level < 0 or record.reconsume_times >= (
        RECONSUME_TIMES_MAX if times_max is None else times_max
    )
    prefix = "%DLQ%" if is_dead else "%RETRY%"
    copy = sent_back(record, prefix + header.group, header.origin_msg_id or "")
    broker.queues.create(copy.topic, 1)
    broker.store(copy)
    if is_dead:
        broker.dead.append(broker.messages(copy.topic)[-1])
    return OK


def query_consumer_offset(
    broker: MemoryBroker, call: Call[offsets.QueryConsumerOffset]
) -> offsets.QueryConsumerOffsetReply:
    """Say how far a group is."""
    header = call.header
    offset = broker.offsets.get((header.consumer_group, header.topic, header.queue_id))
    if offset is None:
        raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
    return offsets.QueryConsumerOffsetReply(offset)


def update_consumer_offset(broker: MemoryBroker, call: Call[offsets.UpdateConsumerOffset]) -> Reply:
    """Note how far a group is."""
    header = call.header
    key = (header.consumer_group, header.topic, header.queue_id)
    broker.offsets[key] = header.commit_offset
    return OK


def get_max_offset(
    broker: MemoryBroker, call: Call[offsets.GetMaxOffset]
) -> offsets.GetMaxOffsetReply:
    """Return the end of a queue."""
    header = call.header
    return offsets.GetMaxOffsetReply(broker.queues.max_offset(header.topic, header.queue_id))


def get_min_offset(
    broker: MemoryBroker, call: Call[offsets.GetMinOffset]
) -> offsets.GetMinOffsetReply:
    """Return the begin of a queue."""
    header = call.header
    return offsets.GetMinOffsetReply(broker.queues.min_offset(header.topic, header.queue_id))


def search_offset_by_timestamp(
    broker: MemoryBroker, call: Call[offsets.SearchOffsetByTimestamp]
) -> offsets.SearchOffsetByTimestampReply:
    """Return the first offset stored at a moment or later."""
    header, queues = call.header, broker.queues
    begin = queues.min_offset(header.topic, header.queue_id)
    end = queues.max_offset(header.topic, header.queue_id)
    stored = queues.read(header.topic, header.queue_id, begin, end - begin)
    for offset, record in enumerate(stored, begin):
        if decode_record(record).store_timestamp >= header.timestamp:
            return offsets.SearchOffsetByTimestampReply(offset)
    return offsets.SearchOffsetByTimestampReply(end)


def view_message_by_id(broker: MemoryBroker, call: Call[queries.ViewMessageById]) -> Reply:
    """Return the record at a physical offset."""
    found = broker.queues.raw_record(call.header.offset)
    if found is None:
        raise ServerError(f"can not find message by the offset, {call.header.offset}")
    return Reply(body=found)


HANDLERS: Final[Mapping[int, Handler[Any]]] = {
    RequestCode.SEND_MESSAGE_V2: send_message,
    RequestCode.SEND_MESSAGE: send_message,
    RequestCode.SEND_BATCH_MESSAGE: send_message,
    RequestCode.PULL_MESSAGE: pull_message,
    RequestCode.HEART_BEAT: heart_beat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: get_consumer_list_by_group,
    RequestCode.CONSUMER_SEND_MSG_BACK: consumer_send_msg_back,
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset_by_timestamp,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message_by_id,
    RequestCode.CHECK_CLIENT_CONFIG: lambda _broker, _call: OK,
}
