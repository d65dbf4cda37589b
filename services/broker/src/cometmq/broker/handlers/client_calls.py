# SPDX-License-Identifier: Apache-2.0
"""Requests that the broker sends or forwards to clients: for their offsets (223), state (307) and
subscriptions, and to consume one message (309).

Compatibility: RocketMQ queries the members of a group one after the other. Here all are queried at
once, so the answer takes no longer than the slowest member. Only the fields that the command
defines are forwarded, whereas RocketMQ forwards signatures too.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.clients.registered import registration_size, subscriptions_size
from cometmq.broker.handlers.deferred_answers import found, settle
from cometmq.broker.limits import GROUP_SUBSCRIPTIONS
from cometmq.broker.messages import stored_bytes
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_bounded, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.offsets import ConsumerStatus
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.admin import InvokeBrokerToGetConsumerStatus
from cometmq.remoting.commands.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from cometmq.remoting.errors import (
    CometError,
    ConsumeMsgTimeout,
    RemoteProtocolError,
    RequestTimeout,
    ServerError,
    command_error,
)
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.raw import Body
from cometmq.remoting.transport.bodies import BODY_BYTES_MAX
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.remoting.versions import CLIENT_CALLS_MIN, RESET_OFFSET_MIN, version_name

T = TypeVar("T")

CALL_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
SUBSCRIPTIONS_TIMEOUT_MS: Final = 1_000  # a pull waits for it
STATUSES_BYTES_MAX: Final = 2 << 20
"""Maximum size of all clients' answers to 223; further answers are left out."""


def check_versions(members: Collection[Client]) -> None:
    """Refuse the request if a client of the group is too old to understand it."""
    for client in members:
        if client.version < RESET_OFFSET_MIN:
            raise ServerError(remarks.client_too_old(version_name(client.version)))


def call_failed(broker: Broker, code: RequestCode, client: Client, reason: str) -> None:
    broker.log.warning(
        "client_call.failed",
        code=int(code),
        client_id=client.client_id,
        peer=client.peer.address,
        reason=reason,
    )


async def invoke_broker_to_get_consumer_status(
    broker: Broker, call: Call[InvokeBrokerToGetConsumerStatus]
) -> Reply:
    """Collect a group's offsets in a topic from all members of the group, or from one member.

    The result omits members that do not answer in time.
    """
    header = call.header
    group = broker.clients.consumers.group(header.group)
    if group is None:
        raise ServerError(remarks.no_consumer_online(header.group))
    only = (header.client_addr or "").strip()
    members = [client for client in group.clients.values() if only in {"", client.client_id}]
    check_versions(members)

    question = GetConsumerStatusFromClient(topic=header.topic, group=header.group)
    room = AnswerRoom(STATUSES_BYTES_MAX)
    with broker.pending.questions.counting(len(members), broker.admission.room(call)):
        async with asyncio.TaskGroup() as asking:
            answers = [
                (client.client_id, asking.create_task(_status(broker, client, question, room)))
                for client in members
            ]
    statuses = [(client_id, answer.result()) for client_id, answer in answers]
    table = {client_id: status for client_id, status in statuses if status is not None}
    return Reply(body=encode_json(ConsumerStatus(consumer_table=table)), remark=remarks.NOT_SET)


class AnswerRoom:
    """Bounds the size of all clients' answers to a request: decoding them takes time."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, body: bytes) -> bytes:
        """Count the body of an answer, and return it; raise RemoteProtocolError above the bound."""
        if len(body) > self._left:
            raise RemoteProtocolError(f"an answer of {len(body)} bytes, and {self._left} are left")
        self._left -= len(body)
        return body


async def _status(
    broker: Broker, client: Client, question: GetConsumerStatusFromClient, room: AnswerRoom
) -> dict[MessageQueue, int] | None:
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        answer = await client.peer.invoke(code, question, timeout_ms=STATUS_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise command_error(answer.code, answer.remark)
        if not answer.body:
            return None
        return _decoded(ConsumerStatus, room.take(answer.body)).message_queue_table
    except CometError as error:
        call_failed(broker, code, client, describe(error))
        return None


def _decoded(type_: type[T], body: Buffer) -> T:
    """Decode a client's answer; raise RemoteProtocolError if it is malformed or too long."""
    if len(body) > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"an answer of {len(body)} bytes: at most {BODY_BYTES_MAX}")
    return decode_bounded(type_, body)


async def get_consumer_running_info(broker: Broker, call: Call[GetConsumerRunningInfo]) -> Reply:
    """Forward the request to the client, and return the client's answer."""
    header = call.header
    client = _online(broker, header.consumer_group, header.client_id)
    return await _pass_on(call, header.consumer_group, client, header)


async def ask_subscriptions(broker: Broker, call: Call[Any], name: str) -> None:
    """Ask the client that sent `call` for its subscriptions in a group, and note
    its answer (`told.py`).

    If the client does not answer, nothing is noted. Raise LimitReached if there is no room for it.
    """
    key, asking = (call.peer, name), broker.clients.told.asking
    if broker.clients.told.group(*key, broker.clock.monotonic_ms()) is not None:
        return  # told while this pull waited for its turn
    if key in asking:
        await asyncio.wait([asking[key]])
        return
    asking[key] = asyncio.get_running_loop().create_future()
    try:
        await _ask_subscriptions(broker, call, name)
    finally:
        settle(asking.pop(key), None)


async def _ask_subscriptions(broker: Broker, call: Call[Any], name: str) -> None:
    question, code = GetConsumerRunningInfo(name, ""), RequestCode.GET_CONSUMER_RUNNING_INFO
    try:
        answer = await call.peer.invoke(code, question, timeout_ms=SUBSCRIPTIONS_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise command_error(answer.code, answer.remark)
        info = _decoded(ConsumerRunningInfo, answer.body)
    except CometError as error:
        broker.log.debug("subscriptions.untold", group=name, error=describe(error))
        return
    if not call.peer.is_open or broker.clients.consumers.group(name) is not None:
        return
    data = ConsumerData(
        group_name=name,
        message_model=info.properties.get("messageModel", "CLUSTERING"),
        subscription_data_set=info.subscription_set,
    )
    room = broker.admission.room(call)
    room.check(GROUP_SUBSCRIPTIONS, len(info.subscription_set), f"the group {name}")
    size = registration_size("", name) + subscriptions_size(info.subscription_set)
    broker.clients.registered.admit(call.peer, name, size, room, consumes=True)
    broker.clients.told.note(call.peer, data, broker.clock.monotonic_ms())


async def consume_message_directly(broker: Broker, call: Call[ConsumeMessageDirectly]) -> Reply:
    """Make a client consume one stored message immediately, and return the result."""
    header = call.header
    client = _online(broker, header.consumer_group, header.client_id)
    body = await _stored_message(broker, header.msg_id)
    request = msgspec.structs.replace(header, broker_name=broker.settings.broker_name)
    return await _pass_on(call, header.consumer_group, client, request, body)


async def _stored_message(broker: Broker, message_id: str | None) -> bytes:
    try:
        offset = parse_offset_message_id(message_id or "").physical_offset
    except ValueError as error:
        raise ServerError(f"msgId={message_id}: {error}") from error
    record = await found(broker, broker.store.reader.read_record(offset))
    if record is None:
        raise ServerError(remarks.message_not_found(offset))
    return stored_bytes(record)


def _online(broker: Broker, group_name: str, client_id: str | None) -> Client:
    """Return a member of a group; raise CommandError if it is offline or too old."""
    group = broker.clients.consumers.group(group_name)
    members = () if group is None else group.clients.values()
    client = next((member for member in members if member.client_id == client_id), None)
    if client is None:
        raise ServerError(remarks.consumer_not_online(group_name, client_id or "null"))
    if client.version < CLIENT_CALLS_MIN:
        version = version_name(client.version)
        raise ServerError(remarks.consumer_too_old(client.client_id, version))
    return client


async def _pass_on(
    call: Call[Any], group: str, client: Client, header: msgspec.Struct, body: Body = b""
) -> Reply:
    """Return a client's answer to a forwarded request; raise CommandError without one."""
    try:
        answer = await client.peer.invoke(call.code, header, body, timeout_ms=CALL_TIMEOUT_MS)
    except RequestTimeout as error:
        reason = f"{client.peer.address} did not answer in {CALL_TIMEOUT_MS} ms"
        remark = remarks.consumer_timeout(group, client.client_id, reason)
        raise ConsumeMsgTimeout(remark) from error
    except CometError as error:
        remark = remarks.consumer_call_failed(group, client.client_id, describe(error))
        raise ServerError(remark) from error
    return Reply(answer.code, remark=answer.remark, body=answer.body, ext=answer.ext or None)
