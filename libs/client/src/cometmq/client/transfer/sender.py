# SPDX-License-Identifier: Apache-2.0
"""Sending: choose a queue, send the message, and retry at another broker.

`MessageSender.send` runs once per message; its budget is 25 us, including the transport
(bench/micro/bench_client.py). It awaits nothing but the answer.
"""

import asyncio
import contextlib
import re
from collections.abc import Collection, Mapping
from typing import Final, NoReturn

import msgspec

from cometmq.client.clock import TimeLimit, monotonic_ms, wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.routes import Route, contradicts, names_former_master
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    NoNamesrv,
    no_queue,
    no_route,
)
from cometmq.client.hooks import SendContext, SendHooks
from cometmq.client.message import SendResult, SendStatus
from cometmq.client.namespace import Namespace
from cometmq.client.settings import ProducerOptions
from cometmq.client.transfer.outgoing import (
    REPLY_CODES,
    REPLY_OK_CODES,
    STORED_CODES,
    Outgoing,
    Prepared,
    kind_of,
    send_result,
    unpushed,
)
from cometmq.client.transfer.queue_selection import (
    PASSING,
    Attempts,
    QueueChoice,
    is_unreached,
    pause_if_busy,
)
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.send import SendMessage, SendMessageV2
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    CommandError,
    ConnectFailed,
    ConnectionLost,
    Outage,
    Overloaded,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotExist,
    TransportError,
)
from cometmq.remoting.message.ids import UniqueIds
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.signature import FORWARDED

SendHeader = SendMessage | SendMessageV2
NO_EXT: Final[Mapping[str, str]] = {}
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_ILLEGAL_QUEUE: Final = re.compile(
    r"request queueId\[\d+\] is illegal, .*\bwriteQueueNums=(\d+)", re.DOTALL
)
"""The remark about an unknown queue; its code, 1, also stands for passing failures."""
SUCCESSOR_MS: Final = 1_500
"""How long a send waits for the successor of a lost broker before its next attempt."""
_FULL_PAUSE_S: Final = 0.002


class MessageSender:
    """Sends the messages of one producer group through one client instance."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        options: ProducerOptions,
        *,
        ids: UniqueIds,
        namespace: Namespace | None = None,
        hooks: SendHooks | None = None,
    ) -> None:
        """`group` is a full name; messages are in the namespace of the instance by default."""
        self._instance = instance
        self._group = group
        self._options = options
        self._namespace = instance.namespace if namespace is None else namespace
        self._hooks = hooks or None
        self._has_namespace = bool(self._namespace)
        self._header_type = SendMessageV2 if options.short_headers else SendMessage
        self.outgoing = Outgoing(options, ids, self._namespace)
        self.queues = QueueChoice(instance, options, self._namespace)
        self.sent_count = 0
        self.failed_count = 0

    # -- sending ------------------------------------------------------------------------------

    async def route(
        self, topic: str, *, wait_ms: int | None = None, may_create: bool = True
    ) -> Route:
        """Return the route for messages of a topic; raise BrokerMissing if it has no master.

        With `may_create`, the route of an unknown topic is the one that a send would use to create
        it. Senders share lookups, whose rate is limited: wait up to `wait_ms` (by default the
        timeout of a send) for the next one.
        """
        options = self._options
        return await self._instance.routes.find_for_sending(
            topic,
            default_topic=options.default_topic if may_create else None,
            queue_nums=options.default_topic_queue_nums,
            wait_ms=options.send_timeout_ms if wait_ms is None else wait_ms,
        )

    async def route_once(self, topic: str, limit: TimeLimit) -> Route:
        """Return the route for a single attempt; SendFailed without a master, or time."""
        if not (left_ms := limit.left_ms()):
            self.failed_count += 1
            raise Attempts([]).gave_up(topic, limit)
        try:
            return await self.route(topic, wait_ms=left_ms)
        except BrokerMissing as error:
            self.failed_count += 1
            raise Attempts([], 1, failure=error).gave_up(topic, limit) from error

    async def send(
        self, prepared: Prepared, limit: TimeLimit, *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Choose a queue and send to it; after a failure, retry at a queue of another broker.

        If `queue` is given, send to it once, without retries. Raise the error of the broker or the
        forbidden hook that refuses the message, and SendFailed if all attempts fail otherwise.
        """
        attempts = 1 if queue is not None else 1 + self._options.retry_times
        tried = Attempts([])
        while tried.may_begin(attempts, left_ms := limit.left_ms()):
            tried.count += 1
            route = self._instance.routes.get_for_sending(prepared.topic)
            if route is None or not route.publish_queues:
                route = await self._route_for(tried, prepared.topic, left_ms)
                if route is None:
                    await self._back_off(tried, attempts, (), limit.left_ms())
                    continue
            chosen = queue or self.queues.choose(route, tried)
            tried.brokers.append(chosen.broker_name)
            try:
                movable = route if queue is None and tried.count < attempts else None
                result = await self.send_to(chosen, prepared, timeout_ms=left_ms, route=movable)
            except (TransportError, ClientError, RemoteProtocolError, CommandError) as error:
                tried.note(error, cost_ms=left_ms - limit.left_ms())
                is_futile = tried.is_futile(one.broker_name for one in route.publish_queues)
                if is_futile or not self._may_retry(error, is_chosen=queue is not None):
                    if tried.may_be_stored or tried.gone is not None:
                        break  # this refusal does not cover an earlier attempt
                    self._refused(error, chosen)
                await self._wait_to_retry(tried, attempts, error, route, chosen, limit.left_ms())
            else:
                if route.is_default:
                    self._instance.routes.note_created(prepared.topic, chosen.broker_name)
                is_safe = result.status is SendStatus.SEND_OK
                may_retry = queue is None and self._options.retry_another_broker_when_not_stored
                if is_safe or not may_retry:
                    return result
                tried.failure = CommandError(result.status, f"stored as {result.status.name}")
                tried.may_be_stored = True
        self.failed_count += 1
        raise tried.error(prepared.topic, limit)

    async def _route_for(self, tried: Attempts, topic: str, left_ms: int) -> Route | None:
        """Return the route for an attempt, or None if the attempt fails.

        Raise if the topic might not exist, unless an earlier attempt may have stored the message.
        """
        limit = TimeLimit.from_now(left_ms)
        try:
            return await self.route(topic, wait_ms=left_ms)
        except BrokerMissing as error:
            tried.note(error, cost_ms=limit.elapsed_ms())
        except CometError as error:
            is_outage = (
                isinstance(error, NoNamesrv)
                and self._instance.routes.get_for_sending(topic) is not None
            )
            if not is_outage and not tried.may_be_stored:
                raise  # the topic might not exist
            tried.note(error, cost_ms=limit.elapsed_ms())
        return None

    async def _wait_to_retry(
        self,
        tried: Attempts,
        attempts: int,
        error: Exception,
        route: Route,
        queue: MessageQueue,
        left_ms: int,
    ) -> None:
        if not tried.may_begin(attempts, left_ms):
            return
        limit = TimeLimit.from_now(left_ms)
        await pause_if_busy(error, tried.count, left_ms)
        await self._outlive_master(error, route, queue, left_ms)
        await self._outlive_route(error, route, left_ms)
        brokers = {one.broker_name for one in route.publish_queues}
        await self._back_off(tried, attempts, brokers, limit.left_ms())

    @staticmethod
    async def _back_off(
        tried: Attempts, attempts: int, brokers: Collection[str], left_ms: int
    ) -> None:
        """Pause if no broker of the topic can be reached."""
        if tried.may_begin(attempts, left_ms) and (pause_ms := tried.pause_ms(brokers, left_ms)):
            await asyncio.sleep(pause_ms / 1000)

    async def _outlive_master(
        self, error: Exception, route: Route, queue: MessageQueue, left_ms: int
    ) -> None:
        """If the only broker of a topic is lost, wait for lookups that may find its successor.

        Otherwise all attempts would fail within milliseconds, before a group could fail over.
        """
        if not (is_unreached(error) or names_former_master(error)):
            return
        if any(other.broker_name != queue.broker_name for other in route.publish_queues):
            return
        with contextlib.suppress(CometError):  # the next attempt reports it
            await self._instance.routes.find_other_master(
                queue.broker_name, queue.topic, wait_ms=min(left_ms, SUCCESSOR_MS)
            )

    async def _outlive_route(self, error: Exception, route: Route, left_ms: int) -> None:
        """If a broker refuses a queue that the topic no longer has, wait for the topic's new route.

        Otherwise, all attempts would choose queues that no longer exist.
        """
        if contradicts(error) and not isinstance(error, TopicNotExist):
            with contextlib.suppress(CometError):  # the next attempt reports it
                await self._instance.routes.find_other_route(route, wait_ms=left_ms)

    def _may_retry(self, error: Exception, *, is_chosen: bool) -> bool:
        """Return whether another attempt may succeed; `is_chosen`: at a queue of the caller's."""
        if not isinstance(error, CommandError):
            return isinstance(error, PASSING)
        if is_chosen and _ILLEGAL_QUEUE.match(error.remark):
            return False
        if isinstance(error, AccessDenied):  # its code is one of the transient failures
            return False
        if error.code == ResponseCode.SYSTEM_BUSY and self._options.retry_when_busy:
            return True
        return error.code in self._options.retry_codes

    def _refused(self, error: Exception, queue: MessageQueue) -> NoReturn:
        """Raise the broker's or a hook's refusal, NoRoute if there is no such topic, or
        InvalidArgument if the topic does not have the queue.
        """
        self.failed_count += 1
        if isinstance(error, TopicNotExist):
            raise no_route(queue.topic, refused_by=[queue.broker_name]) from error
        found = _ILLEGAL_QUEUE.match(error.remark) if isinstance(error, CommandError) else None
        if found is None:
            raise error
        queue = self._namespace.unwrap_queue(queue)
        raise no_queue(queue, int(found[1]), " to send to") from error

    async def send_to(
        self,
        queue: MessageQueue,
        prepared: Prepared,
        *,
        timeout_ms: int,
        route: Route | None = None,
    ) -> SendResult:
        """Send once, to one queue. With `route`, raise RequestTimeout as soon as the broker is
        found to hang, if another broker of the topic can be reached.
        """
        instance = self._instance
        called_ms = monotonic_ms()
        address = await instance.find_master(queue.broker_name, prepared.topic, wait_ms=timeout_ms)
        timeout_ms = max(1, timeout_ms - (monotonic_ms() - called_ms))
        context = None
        if self._hooks is not None:
            context = self._context(queue, address, prepared, is_oneway=False)
            self._hooks.before(context)
        header = self._header(queue, prepared)
        begin_ms = monotonic_ms() if self._options.avoid_slow_brokers else 0
        flight = instance.late_sends.begin(
            address, queue.broker_name, queue.topic, timeout_ms=timeout_ms
        )
        try:
            sending = self._invoke(address, prepared.code, header, prepared.body, timeout_ms)
            response = await (sending if route is None else flight.answer(sending, route))
            if response.code == ResponseCode.SYSTEM_ERROR:  # the answer to a reply
                raise unpushed(response, queue.broker_name, address)
        except CometError as error:
            if isinstance(error, ConnectFailed | ConnectionLost | RequestTimeout):
                instance.suspect(address)
            elif contradicts(error) or names_former_master(error):
                instance.refreshes.outdated(queue.topic)
            self.queues.note(queue.broker_name, begin_ms, failed=True)
            if context is not None:
                self._tell(context, error=error)
            raise
        finally:
            flight.end()
        if FORWARDED in response.ext:
            instance.forwarded(address, queue.broker_name, queue.topic)
        self.queues.note(queue.broker_name, begin_ms, failed=False)
        self.sent_count += 1
        if self._has_namespace:
            queue = self._namespace.unwrap_queue(queue)
        result = send_result(response, queue, prepared)
        if context is not None:
            self._tell(context, result=result, ext=response.ext)
        return result

    async def send_oneway(self, queue: MessageQueue, prepared: Prepared, limit: TimeLimit) -> None:
        """Send to one queue without an acknowledgement; SendFailed if it cannot be sent."""
        try:
            await self._send_oneway(queue, prepared, max(1, limit.left_ms()))
        except (ClientError, Outage) as error:
            self.failed_count += 1
            if not isinstance(error, Outage):
                raise  # a hook's refusal
            tried = Attempts([queue.broker_name], 1)
            tried.note(error)
            raise tried.gave_up(prepared.topic, limit) from error

    async def _send_oneway(self, queue: MessageQueue, prepared: Prepared, timeout_ms: int) -> None:
        called_ms = monotonic_ms()
        address = await self._instance.find_master(
            queue.broker_name, prepared.topic, wait_ms=timeout_ms
        )
        timeout_ms = max(1, timeout_ms - (monotonic_ms() - called_ms))
        context = None
        if self._hooks is not None:
            context = self._context(queue, address, prepared, is_oneway=True)
            self._hooks.before(context)
        header = self._header(queue, prepared)
        await self.invoke_oneway(
            address, prepared.code, header, prepared.body, timeout_ms=timeout_ms
        )
        self.sent_count += 1
        if context is not None:
            self._tell(context)

    async def invoke_oneway(
        self,
        address: str,
        code: int,
        header: msgspec.Struct,
        body: bytes = b"",
        *,
        timeout_ms: int,
    ) -> None:
        """Send a oneway request as soon as the output buffer has room."""
        deadline_ms = monotonic_ms() + timeout_ms
        while True:
            try:
                return await self._instance.remoting.invoke_oneway(
                    address, code, header, body, timeout_ms=timeout_ms
                )
            except Overloaded:
                if monotonic_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(_FULL_PAUSE_S)

    async def _invoke(
        self, address: str, code: int, header: SendHeader, body: bytes, timeout_ms: int
    ) -> Response:
        """Send as soon as the output buffer has room; a full buffer is not a broker failure."""
        remoting = self._instance.remoting
        ok = REPLY_OK_CODES if code in REPLY_CODES else STORED_CODES
        left_ms, deadline_ms = timeout_ms, 0
        while True:
            try:
                return await remoting.invoke(address, code, header, body, timeout_ms=left_ms, ok=ok)
            except Overloaded:
                deadline_ms = deadline_ms or monotonic_ms() + timeout_ms
            await asyncio.sleep(_FULL_PAUSE_S)
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0:
                raise Overloaded(f"the output buffer of the connection to {address} is full")

    def _header(self, queue: MessageQueue, prepared: Prepared) -> SendHeader:
        options = self._options
        is_batch = prepared.code == _SEND_BATCH
        header_type = SendMessageV2 if is_batch else self._header_type
        return header_type(
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
            options.unit_mode,  # positional, as keywords cost 0.4 us here
            prepared.max_reconsume_times,
            is_batch,
        )

    # -- hooks --------------------------------------------------------------------------------

    def _context(
        self, queue: MessageQueue, address: str, prepared: Prepared, *, is_oneway: bool
    ) -> SendContext:
        return SendContext(
            group=self._group,
            messages=prepared.messages,
            message_id=prepared.message_id,
            body_bytes=len(prepared.body),
            kind=kind_of(prepared),
            queue=self._namespace.unwrap_queue(queue),
            address=address,
            begin_ms=wall_ms(),
            is_oneway=is_oneway,
        )

    def _tell(
        self,
        context: SendContext,
        *,
        result: SendResult | None = None,
        error: Exception | None = None,
        ext: Mapping[str, str] = NO_EXT,
    ) -> None:
        assert self._hooks is not None
        context.result = result
        context.error = error
        context.end_ms = wall_ms()
        context.region = ext.get(PropertyKey.MSG_REGION, "")
        context.is_trace_on = ext.get(PropertyKey.TRACE_ON) != "false"
        self._hooks.call("after_send", context)
