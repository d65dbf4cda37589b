# SPDX-License-Identifier: Apache-2.0
"""Returns unconsumed messages to the broker, for redelivery or as dead letters."""

from typing import Final, Self, TypeAlias

import msgspec

from cometmq.client.clock import TimeLimit
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.listener import DEAD_LETTER_LEVEL
from cometmq.client.message import MessageExt, UnreadableMessage
from cometmq.client.namespace import unique_ids
from cometmq.client.settings import PullOptions, PushOptions, producer_options
from cometmq.client.transfer.outgoing import Prepared, properties_text
from cometmq.client.transfer.sender import MessageSender
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.send import ConsumerSendMsgBack
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import INNER_PRODUCER_GROUP, retry_topic
from cometmq.remoting.transport.tasks import describe

SEND_BACK_TIMEOUT_MS: Final = 5_000
RECONSUME_TIMES_DEFAULT: Final = 16
_FIRST_RETRY_LEVEL: Final = 3

UNREADABLE: Final = "its body cannot be decompressed"
CANCELLED: Final = "the listener's task was cancelled"
ASKED_AGAIN: Final = "the listener asked for redelivery"
GIVEN_UP: Final = "the listener asked for a dead letter"
SENT_BACK: Final = "the application sent it back"


class SendBack:
    """Returns messages of one group to their brokers."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        sender: MessageSender,
        *,
        max_reconsume_times: int,
    ) -> None:
        """`sender` is used when a message's own broker cannot take it back."""
        self._instance = instance
        self._group = group
        self._sender = sender
        self._max_reconsume_times = (
            RECONSUME_TIMES_DEFAULT if max_reconsume_times < 0 else max_reconsume_times
        )

    @classmethod
    def of_group(
        cls, instance: ClientInstance, group: str, options: PushOptions | PullOptions
    ) -> Self:
        sender = MessageSender(
            instance, INNER_PRODUCER_GROUP, producer_options(options), ids=unique_ids(options)
        )
        return cls(instance, group, sender, max_reconsume_times=options.max_reconsume_times)

    async def send_back(self, message: MessageExt, delay_level: int, error: str) -> bool:
        """Send a message back because of `error`; return whether a broker accepted it."""
        try:
            await self._to_its_broker(message, delay_level)
        except CometError as refusal:
            self._instance.log.warning(
                "message.unreturned",
                group=self._group,
                message_id=message.message_id,
                error=describe(refusal),
            )
        else:
            times = message.reconsume_times
            is_dead = delay_level < 0 or times >= self._max_reconsume_times
            self._log_return(message, error, is_dead=is_dead)
            return True
        if isinstance(message, UnreadableMessage):
            return False  # resent as a new message, its broken bytes would look like a valid body
        return await self._is_sent_anew(message, error)

    async def give_up(self, message: MessageExt, error: str) -> bool:
        """Make a message a dead letter because of `error`; return whether a broker took it."""
        if isinstance(message, UnreadableMessage):
            return await self.send_back(message, DEAD_LETTER_LEVEL, error)
        return await self._is_sent_anew(message, error, is_last=True)

    async def _is_sent_anew(
        self, message: MessageExt, error: str, *, is_last: bool = False
    ) -> bool:
        times = message.reconsume_times
        # The broker makes a dead letter of a retry message that has no deliveries left.
        sent = with_reconsume_times(message, times - 1) if is_last else message
        try:
            await self._as_new_message(sent, is_delayed=not is_last)
        except CometError as refusal:
            self._instance.log.error(  # noqa: TRY400  # a Log has these four methods
                "message.stuck",
                group=self._group,
                message_id=message.message_id,
                error=describe(refusal),
            )
            return False
        is_dead = is_last or times + 1 >= self._max_reconsume_times
        self._log_return(message, error, is_dead=is_dead)
        return True

    def _log_return(self, message: MessageExt, error: str, *, is_dead: bool) -> None:
        log, group = self._instance.log, self._group
        topic, message_id = message.topic, message.message_id
        if not is_dead:
            log.debug("message.returned", group=group, topic=topic, message_id=message_id)
            return
        log.warning(
            "message.dead",
            group=group,
            topic=topic,
            message_id=message_id,
            attempt_count=message.reconsume_times + 1,
            error=error,
        )

    async def _to_its_broker(self, message: MessageExt, delay_level: int) -> None:
        header = ConsumerSendMsgBack(
            offset=parse_offset_message_id(message.offset_message_id).physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._instance.namespace.wrap(message.topic),
            unit_mode=self._instance.options.unit_mode,
            max_reconsume_times=self._max_reconsume_times,
        )
        await self._instance.remoting.invoke(
            self._instance.master(message.queue.broker_name),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            timeout_ms=SEND_BACK_TIMEOUT_MS,
        )

    async def _as_new_message(self, message: MessageExt, *, is_delayed: bool) -> None:
        prepared = retry_message(
            message,
            self._group,
            topic=self._instance.namespace.wrap(message.topic),
            max_reconsume_times=self._max_reconsume_times,
            is_delayed=is_delayed,
        )
        await self._sender.send(prepared, TimeLimit.from_now(SEND_BACK_TIMEOUT_MS))


class DropsFailed:
    """Drops failed messages, because broadcasting has no redelivery."""

    def __init__(self, group: str, log: Log) -> None:
        self._group = group
        self._log = log

    async def send_back(self, message: MessageExt, delay_level: int, error: str) -> bool:
        """Log and drop a message."""
        self._log.warning(
            "message.dropped",
            group=self._group,
            topic=message.topic,
            message_id=message.message_id,
            level=delay_level,
            error=error,
        )
        return True

    async def give_up(self, message: MessageExt, error: str) -> bool:
        """Log and drop a message."""
        return await self.send_back(message, 0, error)


TakesFailed: TypeAlias = SendBack | DropsFailed


def retry_message(
    message: MessageExt,
    group: str,
    *,
    topic: str,
    max_reconsume_times: int,
    is_delayed: bool = True,
) -> Prepared:
    """Return the message that a consumer sends to the retry topic of its group.

    `group` and `topic`, the message's original topic, are full names. Java delays a message even if
    it has no deliveries left, so brokers dead-letter it late, and RocketMQ 5.0 redelivers it.
    """
    properties = dict(message.properties)
    for name in (PropertyKey.TRANSACTION_PREPARED, PropertyKey.MIN_OFFSET, PropertyKey.MAX_OFFSET):
        properties.pop(name, None)
    properties[PropertyKey.ORIGIN_MESSAGE_ID] = properties.get(
        PropertyKey.ORIGIN_MESSAGE_ID, message.message_id
    )
    properties[PropertyKey.RETRY_TOPIC] = topic
    properties.pop(PropertyKey.DELAY, None)
    if is_delayed:
        properties[PropertyKey.DELAY] = str(_FIRST_RETRY_LEVEL + message.reconsume_times)
    properties[PropertyKey.WAIT] = "true"
    return Prepared(
        topic=retry_topic(group),
        body=message.body,
        properties=properties_text({str(name): text for name, text in properties.items()}),
        message_id=message.message_id,
        flag=message.flag,
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=max_reconsume_times,
    )


def with_reconsume_times(message: MessageExt, times: int) -> MessageExt:
    return msgspec.structs.replace(message, reconsume_times=times)
