# SPDX-License-Identifier: Apache-2.0
"""SEND_REPLY_MESSAGE (324, 325): pushes a reply to the requesting client (326), and stores it.

Compatibility: as in RocketMQ, the answer's code reports whether the requester accepted the reply,
and its fields report where the reply is stored. The reply is stored even if the requester did not
accept it, and it is stored unchanged: no cluster property is added, and it is never delayed. Unlike
in RocketMQ, a stored reply keeps the flag that marks its body as compressed.
"""

import asyncio
from functools import partial
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.client_calls import CALL_TIMEOUT_MS
from cometmq.broker.handlers.deferred_answers import settle
from cometmq.broker.handlers.put_answers import STORED_CODES
from cometmq.broker.handlers.send import SendHeader, admit, choose_queue, read_properties
from cometmq.broker.handlers.stored_topics import check_writer
from cometmq.remoting import remarks
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Peer, Reply
from cometmq.remoting.commands.request_reply import PushReplyMessageToClient
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import CometError, CommandError, ServerError, TopicNotExist
from cometmq.remoting.message.flags import TRANSACTION_MASK
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import PropertyKey, append_property, property_value
from cometmq.remoting.names import REPLY_SUFFIX
from cometmq.remoting.transport.tasks import describe
from cometmq.store.results import PutResult, PutStatus

NOT_STORED: Final = "0"
"""The message id of a reply that was accepted but not stored."""


async def send_reply_message(broker: Broker, call: Call[SendHeader]) -> Reply:
    """Push a reply to its requester and store it; answer when both steps have completed."""
    try:
        with broker.pending.replies.counting(len(call.body), broker.admission.room(call)):
            return await _push_and_store(broker, call)
    except CommandError as error:
        broker.stats.put_failed_count += 1
        return Reply(code=error.code, remark=error.remark, ext=broker.config.send_ext)


async def _push_and_store(broker: Broker, call: Call[SendHeader]) -> Reply:
    """Raise CommandError if the reply is refused."""
    check_writer(broker, call)(f"{broker.settings.broker_cluster_name}{REPLY_SUFFIX}")
    _check_topic(broker, call.header.topic)
    config = admit(broker, call)
    queue_id = choose_queue(broker, config, call.header.queue_id, call)
    storing = _store(broker, call, queue_id) if broker.settings.store_reply_message_enable else None
    failure = await _push(broker, call)
    stored = None if storing is None else _where(broker, call, queue_id, await storing)
    if failure is not None:
        return Reply(ResponseCode.SYSTEM_ERROR, stored, remark=failure, ext=broker.config.send_ext)
    header = stored or SendMessageReply(NOT_STORED, queue_id, 0)
    return Reply(header=header, ext=broker.config.send_ext)


def _check_topic(broker: Broker, topic: str) -> None:
    """Raise TopicNotExist if access control is on and a reply would create its topic: a reply needs
    no right, and the cluster's reply topic always exists.

    Without access control, replies create topics as in RocketMQ.
    """
    is_free = broker.admission.acl is not None and topic.endswith(REPLY_SUFFIX)
    if is_free and topic not in broker.tables.topics.table:
        raise TopicNotExist(remarks.send_topic_not_exist(topic))


def _store(broker: Broker, call: Call[SendHeader], queue_id: int) -> asyncio.Future[PutResult]:
    header = call.header
    sent = read_properties(broker, header, "")
    message = NewMessage(
        header.topic,
        queue_id,
        header.flag,
        header.sys_flag & ~TRANSACTION_MASK,
        header.born_timestamp,
        call.peer.host,
        broker.process.store_host,
        call.body,
        header.properties,
        header.reconsume_times,
        0,
        sent.tag_code,
        sent.keys,
        sent.waits_for_disk,
    )
    future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
    broker.driver.put(message, partial(settle, future))
    return future


def _where(
    broker: Broker, call: Call[SendHeader], queue_id: int, result: PutResult
) -> SendMessageReply | None:
    """Return where a reply is stored; if it could not be stored, log a warning and return None."""
    if result.status is PutStatus.PUT_OK or result.status in STORED_CODES:
        broker.stats.count_put(call.header.topic, 1, result.size)
        return SendMessageReply(result.message_id, queue_id, result.queue_offset)
    broker.stats.put_failed_count += 1
    broker.log.warning("reply.not_stored", peer=call.peer.address, reason=result.status.name)
    return None


async def _push(broker: Broker, call: Call[SendHeader]) -> str | None:
    """Push the reply to the client that sent the request; return the remark if that fails."""
    client_id = property_value(call.header.properties, PropertyKey.REPLY_TO_CLIENT)
    if client_id is None:
        return remarks.REPLY_TO_CLIENT_MISSING
    requester = broker.clients.producers.find(client_id)
    if requester is None:
        return remarks.reply_channel_missing(client_id)
    try:
        await _hand_over(broker, call, requester)
    except CometError as error:
        broker.log.warning(
            "reply.not_taken", client_id=client_id, peer=requester.address, reason=describe(error)
        )
        return remarks.reply_push_failed(client_id)
    return None


async def _hand_over(broker: Broker, call: Call[SendHeader], requester: Peer) -> None:
    """Send the reply and wait for the client's answer; raise an error unless it reports success."""
    sent = call.header
    now_ms = broker.clock.now_ms()
    properties = append_property(sent.properties, PropertyKey.PUSH_REPLY_TIME, str(now_ms))
    header = PushReplyMessageToClient(
        producer_group=sent.producer_group,
        topic=sent.topic,
        default_topic=sent.default_topic,
        default_topic_queue_nums=sent.default_topic_queue_nums,
        queue_id=sent.queue_id,
        sys_flag=sent.sys_flag,
        born_timestamp=sent.born_timestamp,
        flag=sent.flag,
        born_host=call.peer.address,
        store_host=broker.process.address,
        store_timestamp=now_ms,
        properties=properties,
        reconsume_times=sent.reconsume_times,
        unit_mode=sent.unit_mode,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    answer = await requester.invoke(code, header, call.body, timeout_ms=CALL_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise ServerError(f"answered {answer.code}: {answer.remark}")
