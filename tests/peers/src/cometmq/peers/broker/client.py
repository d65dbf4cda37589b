# SPDX-License-Identifier: Apache-2.0
"""A low-level client with one method for each request that the tests send."""

import json
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.queries import QueryMessage, ViewMessageById
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.commands.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock

TIMEOUT_MS: Final = 60_000
SUBSCRIPTION, SUSPEND, COMMIT = 4, 2, 1
TIME_MS_MAX: Final = 1 << 52
_PULLED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Client:
    """One connection, closed on leaving the context."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._remoting = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self._remoting.close(0)

    async def ask(
        self,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        ok: tuple[int, ...] = (0,),
        timeout_ms: int = TIMEOUT_MS,
    ) -> Response:
        """Send a request and return its answer; raise the error of any code that is not in `ok`."""
        return await self._remoting.invoke(
            self._address, code, header, body, timeout_ms=timeout_ms, ok=ok
        )

    async def send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        *,
        keys: str = "",
        level: int = 0,
        delay_ms: int = 0,
    ) -> SendMessageReply:
        """Send one message; return its position."""
        pairs = [("KEYS", keys), ("DELAY", str(level) if level else ""), ("UNIQ_KEY", f"U{keys}")]
        pairs.append(("TIMER_DELAY_MS", str(delay_ms) if delay_ms else ""))
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs if value)
        header = SendMessageV2("P", topic, "TBW102", 4, queue_id, 0, 0, 0, text)
        response = await self.ask(RequestCode.SEND_MESSAGE_V2, header, body)
        reply: SendMessageReply = response.header
        return reply

    async def send_batch(
        self, topic: str, queue_id: int, bodies: list[tuple[str, bytes]]
    ) -> SendMessageReply:
        """Send (key, body) pairs as one batch."""
        items = [BatchItem(0, body, f"KEYS\x01{key}\x02") for key, body in bodies]
        header = SendMessageV2("P", topic, "TBW102", 4, queue_id, 0, 0, 0, batch=True)
        response = await self.ask(RequestCode.SEND_BATCH_MESSAGE, header, join_batch(items))
        reply: SendMessageReply = response.header
        return reply

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        group: str = "READER",
        count: int = 256,
        wait_ms: int = 0,
        commit: int | None = None,
    ) -> Response:
        """Pull once, and commit any offset given; a nonzero code means that nothing was found."""
        flags = SUBSCRIPTION | (SUSPEND if wait_ms else 0) | (0 if commit is None else COMMIT)
        header = PullMessage(
            group, topic, queue_id, offset, count, flags, commit or 0, wait_ms, 0, "*"
        )
        return await self.ask(RequestCode.PULL_MESSAGE, header, ok=_PULLED)

    async def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        low = await self.ask(RequestCode.GET_MIN_OFFSET, GetMinOffset(topic, queue_id))
        high = await self.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffset(topic, queue_id))
        return low.header.offset, high.header.offset

    async def read_queue(self, topic: str, queue_id: int) -> tuple[int, list[MessageRecord]]:
        minimum, maximum = await self.bounds(topic, queue_id)
        assert 0 <= minimum <= maximum, f"{topic} {queue_id}: from {minimum} to {maximum}"
        records: list[MessageRecord] = []
        while minimum + len(records) < maximum:
            offset = minimum + len(records)
            response = await self.pull(topic, queue_id, offset)
            assert response.code == 0, f"{topic} {queue_id} {offset}: {response}"
            found = decode_records(response.body)
            assert response.header.next_begin_offset == offset + len(found), response
            records += found
        return minimum, records

    async def by_key(self, topic: str, key: str) -> list[MessageRecord]:
        header = QueryMessage(topic, key, 32, 0, TIME_MS_MAX)
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self.ask(RequestCode.QUERY_MESSAGE, header, ok=ok)
        return decode_records(response.body)

    async def by_offset(self, physical_offset: int) -> list[MessageRecord]:
        header = ViewMessageById(physical_offset)
        ok = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        response = await self.ask(RequestCode.VIEW_MESSAGE_BY_ID, header, ok=ok)
        return decode_records(response.body)

    async def create_topic(self, topic: str, queue_count: int) -> None:
        header = UpdateAndCreateTopic(topic, queue_count, queue_count, 6)
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, topic: str) -> None:
        await self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic))

    async def create_group(self, name: str, retry_count_max: int) -> None:
        group = SubscriptionGroupConfig(group_name=name, retry_max_times=retry_count_max)
        body = encode_json(group)
        await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def topics(self) -> dict[str, int]:
        answer = await self._json(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = answer["topicConfigTable"]
        return {name: config["writeQueueNums"] for name, config in table.items()}

    async def groups(self) -> dict[str, int]:
        answer = await self._json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = answer["subscriptionGroupTable"]
        return {name: config["retryMaxTimes"] for name, config in table.items()}

    async def runtime(self) -> dict[str, str]:
        answer = await self._json(RequestCode.GET_BROKER_RUNTIME_INFO)
        table: dict[str, str] = answer["table"]
        return table

    async def configure(self, **settings: object) -> None:
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        await self.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        header = UpdateConsumerOffset(group, topic, queue_id, offset)
        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def committed(self, group: str, topic: str, queue_id: int) -> int:
        header = QueryConsumerOffset(group, topic, queue_id)
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, header, ok=ok)
        return 0 if response.header is None else int(response.header.offset)

    async def _json(self, code: RequestCode) -> dict[str, Any]:
        response = await self.ask(code)
        answer: dict[str, Any] = json.loads(response.body)
        return answer
