# SPDX-License-Identifier: Apache-2.0
"""How a message leaves: choose a queue, send it, try again elsewhere.

Hot path
    `MessageSender.send` runs once per sent message; budget 25 us including the transport.
    Nothing on it awaits but the answer itself: bench/micro/bench_client.py.
"""

import asyncio
import random
from typing import Any, Final

from cometmq.client.background import described
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.errors import ClientError, InvalidArgument, SendFailed
from cometmq.client.instance import ClientInstance
from cometmq.client.message import Message, SendResult, SendStatus
from cometmq.client.outgoing import Outgoing, Prepared
from cometmq.client.queue_selection import LatencyFaults, QueueSelector, RoundRobin
from cometmq.client.routes import Route
from cometmq.client.settings import ProducerOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.errors import (
    CommandError,
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    RemoteProtocolError,
    RequestTimeout,
    TransportError,
)
from cometmq.remoting.message.ids import UniqueIds

STORED_CODES: Final = frozenset(int(status) for status in SendStatus)
RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Refusals after which another broker may accept the message; SYSTEM_BUSY is not one."""

_FULL_PAUSE_S: Final = 0.002
_BUSY_PAUSE_MS: Final = 100  # doubled at each attempt


class MessageSender:
    """Sends the messages of one producer group through one client instance."""

    def __init__(
        self, instance: ClientInstance, group: str, options: ProducerOptions, *, ids: UniqueIds
    ) -> None:
        """Begin with a random queue, so that producers spread over them."""
        self._instance = instance
        self._group = group
        self._options = options
        self.outgoing = Outgoing(options, ids)
        self._robins: dict[str, RoundRobin] = {}
        self._faults = LatencyFaults()
        self.sent_count = 0
        self.failed_count = 0

    # -- sending ------------------------------------------------------------------------------

    async def route(self, topic: str) -> Route:
        """Return where messages of a topic may go."""
        options = self._options
        return await self._instance.routes.find_for_sending(
            topic,
            default_topic=options.default_topic,
            queue_nums=options.default_topic_queue_nums,
        )

    async def send(self, prepared: Prepared, *, timeout_ms: int) -> SendResult:
        """Send to a queue of our choice, and after a failure to one of another broker."""
        begin_ms = monotonic_ms()
        route = self._instance.routes.get(prepared.topic)
        if route is None or not route.publish_queues:
            route = await self.route(prepared.topic)
        attempts = 1 + self._options.retry_times
        asked: list[str] = []
        failure: Exception | None = None
        while len(asked) < attempts:
            left_ms = timeout_ms - (monotonic_ms() - begin_ms)
            if left_ms <= 0:
                self.failed_count += 1
                raise RequestTimeout("sendDefaultImpl call timeout") from failure
            queue = self._choose(route, asked[-1] if asked else None)
            asked.append(queue.broker_name)
            try:
                result = await self.send_to(queue, prepared, timeout_ms=left_ms)
            except (TransportError, ClientError, RemoteProtocolError) as error:
                failure = error
            except CommandError as error:
                if not await self._may_retry(error, len(asked), left_ms):
                    self.failed_count += 1
                    raise
                failure = error
            else:
                is_safe = result.status is SendStatus.SEND_OK
                if is_safe or not self._options.retry_another_broker_when_not_stored:
                    return result
                failure = SendFailed(f"stored as {result.status.name}", brokers=tuple(asked))
            route = self._instance.routes.get(prepared.topic) or route
        self.failed_count += 1
        raise _gave_up(prepared, asked, monotonic_ms() - begin_ms, failure) from failure

    async def _may_retry(self, error: CommandError, attempt: int, left_ms: int) -> bool:
        """Whether another attempt may succeed; a busy broker gets a pause before it."""
        if error.code == ResponseCode.SYSTEM_BUSY and self._options.retry_when_busy:
            pause_ms = min(_BUSY_PAUSE_MS << (attempt - 1), left_ms // 2)
            await asyncio.sleep(pause_ms / 1000)
            return True
        return error.code in RETRIED_CODES

    async def send_to(
        self, queue: MessageQueue, prepared: Prepared, *, timeout_ms: int
    ) -> SendResult:
        """Send to one queue, once."""
        options = self._options
        instance = self._instance
        address = instance.master(queue.broker_name)
        header = self._header(queue, prepared)
        code = RequestCode.SEND_BATCH_MESSAGE if prepared.is_batch else RequestCode.SEND_MESSAGE_V2
        begin_ms = monotonic_ms() if options.avoid_slow_brokers else 0
        try:
            response = await self._invoke(address, code, header, prepared.body, timeout_ms)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            instance.suspect(address)
            self._note(queue.broker_name, begin_ms, failed=True)
            raise
        except CommandError:
            self._note(queue.broker_name, begin_ms, failed=True)
            raise
        self._note(queue.broker_name, begin_ms, failed=False)
        self.sent_count += 1
        return _result(response, queue, prepared)

    async def send_oneway(
        self, queue: MessageQueue, prepared: Prepared, *, timeout_ms: int
    ) -> None:
        """Send to one queue without asking for an answer."""
        address = self._instance.master(queue.broker_name)
        code = RequestCode.SEND_BATCH_MESSAGE if prepared.is_batch else RequestCode.SEND_MESSAGE_V2
        header = self._header(queue, prepared)
        deadline_ms = monotonic_ms() + timeout_ms
        while True:
            try:
                await self._instance.remoting.invoke_oneway(
                    address, code, header, prepared.body, timeout_ms=timeout_ms
                )
            except Overloaded:
                if monotonic_ms() >= deadline_ms:
                    raise
                await asyncio.sleep(_FULL_PAUSE_S)
            else:
                self.sent_count += 1
                return

    async def _invoke(
        self, address: str, code: int, header: SendMessageV2, body: bytes, timeout_ms: int
    ) -> Response:
        """Send, waiting while the connection takes no more; that is no failure of the broker."""
        remoting = self._instance.remoting
        try:
            return await remoting.invoke(
                address, code, header, body, timeout_ms=timeout_ms, ok=STORED_CODES
            )
        except Overloaded:
            deadline_ms = monotonic_ms() + timeout_ms
        while True:
            await asyncio.sleep(_FULL_PAUSE_S)
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0:
                raise RequestTimeout(f"the connection to {address} takes nothing")
            try:
                return await remoting.invoke(
                    address, code, header, body, timeout_ms=left_ms, ok=STORED_CODES
                )
            except Overloaded:
                continue

    def _header(self, queue: MessageQueue, prepared: Prepared) -> SendMessageV2:
        options = self._options
        return SendMessageV2(
            self._group,
            queue.topic,
            options.default_topic,
            options.default_topic_queue_nums,
            queue.queue_id,
            prepared.sys_flag,
            wall_ms(),
            prepared.flag,
            prepared.properties,
            prepared.reconsume_times,
            False,  # unit mode: positional, as keywords cost 0.4 us here
            prepared.max_reconsume_times,
            prepared.is_batch,
        )

    # -- choosing -----------------------------------------------------------------------------

    def choose(self, route: Route) -> MessageQueue:
        """Return the next queue to send to."""
        return self._choose(route, None)

    def choose_by(
        self, selector: QueueSelector, route: Route, message: Message, argument: Any
    ) -> MessageQueue:
        """Return the queue that a selector wants."""
        queue = selector(route.publish_queues, message, argument)
        if queue.topic != message.topic:
            raise InvalidArgument(f"the selector chose a queue of the topic {queue.topic}")
        return queue

    def _choose(self, route: Route, failed_broker: str | None) -> MessageQueue:
        robin = self._robins.get(route.topic)
        if robin is None:
            start = random.randrange(1 << 16)  # noqa: S311  # spreads load, hides nothing
            robin = self._robins[route.topic] = RoundRobin(start)
        if not self._options.avoid_slow_brokers:
            return robin.choose(route.publish_queues, not_broker=failed_broker)
        return self._faults.choose(
            robin, route.publish_queues, now_ms=monotonic_ms(), not_broker=failed_broker
        )

    def _note(self, broker_name: str, begin_ms: int, *, failed: bool) -> None:
        if self._options.avoid_slow_brokers:
            now_ms = monotonic_ms()
            self._faults.note(broker_name, now_ms - begin_ms, now_ms=now_ms, failed=failed)


def _gave_up(
    prepared: Prepared, asked: list[str], cost_ms: int, failure: Exception | None
) -> SendFailed:
    reason = f": {described(failure)}" if failure is not None else ""
    return SendFailed(
        f"Send [{len(asked)}] times, still failed, cost [{cost_ms}]ms, "
        f"Topic: {prepared.topic}, BrokersSent: [{', '.join(asked)}]{reason}",
        brokers=tuple(asked),
        code=failure.code if isinstance(failure, CommandError | ClientError) else None,
    )


def _result(response: Response, queue: MessageQueue, prepared: Prepared) -> SendResult:
    reply = response.header
    if not isinstance(reply, SendMessageReply):
        raise RemoteProtocolError("an answer to a send lacks its fields")
    if reply.queue_id != queue.queue_id:  # a broker may choose another one
        queue = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    return SendResult(
        SendStatus(response.code),
        prepared.message_id,
        reply.msg_id,
        queue,
        reply.queue_offset,
    )
