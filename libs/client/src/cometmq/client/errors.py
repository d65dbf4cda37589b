# SPDX-License-Identifier: Apache-2.0
"""Client errors, in addition to the broker's own refusals (`CommandError`).

Their codes match the Java client's, so that its documentation applies.
"""

from collections.abc import Iterable
from typing import Final

from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CometError, Outage, RequestTimeout
from cometmq.remoting.visible import command

NO_NAMESRV: Final = 10004
NO_ROUTE: Final = 10005
BROKER_MISSING: Final = 10003
NO_REPLY: Final = 10006
NO_REPLY_MESSAGE: Final = 10007
ILLEGAL_MESSAGE: Final = 13
WITHOUT_CODE: Final = -1


class ClientError(CometError):
    """Base class of errors raised by the client itself."""

    code: int | None = None


class ClientStateError(ClientError):
    """The client has not been started, was started twice, or is already closed."""


class InvalidArgument(ClientError):
    """A message, name or option that RocketMQ does not accept."""

    code = WITHOUT_CODE


class InvalidMessage(InvalidArgument):
    """A message whose body RocketMQ does not accept."""

    code = ILLEGAL_MESSAGE


class OffsetsUnreadable(ClientError):
    """The offset file of a broadcasting consumer is damaged, and so is its backup."""

    code = WITHOUT_CODE


class OffsetsUnwritable(ClientError):
    """The offset file of a broadcasting consumer cannot be written."""

    code = WITHOUT_CODE


class NotARequest(InvalidArgument):
    """The message is not a request, or its broker has no cluster name, so no reply can be sent."""

    code = NO_REPLY_MESSAGE


class NoReply(ClientError):
    """A request was stored, but no reply arrived in time."""

    code = NO_REPLY


class RequesterGone(ClientError):
    """A broker accepted a reply, but the requester has ended or lost its connection."""

    code = int(ResponseCode.SYSTEM_ERROR)

    def __init__(self, text: str, *, offset_message_id: str | None) -> None:
        """`offset_message_id` is the id of the stored reply, or None if it is not stored."""
        super().__init__(text)
        self.offset_message_id = offset_message_id


def no_queue(queue: MessageQueue, count: int, purpose: str = "") -> InvalidArgument:
    """Return the error for a queue that is not among the `count` queues of the broker."""
    has = f"its queues there are 0 to {count - 1}" if count else "it has none there"
    return InvalidArgument(
        f"the topic {queue.topic} has no queue {queue.queue_id}{purpose} at {queue.broker_name}: "
        f"{has}"
    )


class NoNamesrv(ClientError, Outage):
    """No name server address was given, or none of the name servers answers."""

    code = NO_NAMESRV


class WrongServer(NoNamesrv):
    """A broker's address was given where a name server's is needed, or vice versa."""


class NoRoute(ClientError):
    """The topic does not exist and sending cannot create it, or the topic is read-only.

    If a broker refused to create the topic, `__cause__` is its answer.
    """

    code = NO_ROUTE


class NotWritable(NoRoute):
    """No broker with the topic lets producers send to it."""


class NoRetries(ClientError):
    """A consumer group allows no retries, so brokers make its redelivered messages dead letters."""

    def __init__(self, group: str, retries: int, broker_name: str) -> None:
        self.cause = (
            f"the consumer group {group} allows {retries} retries at {broker_name}: messages would"
            " become dead letters again"
        )
        """The text of the error, without the remedy, which is a command."""
        remedy = command("group alter", group, options=("--retries", "1"))
        super().__init__(f"{self.cause}; use {remedy} first, or send with --topic")


def no_route(topic: str, *, refused_by: Iterable[str] = ()) -> NoRoute:
    """Return the error for a topic that no name server knows, or that brokers do not create."""
    if names := sorted(set(refused_by)):
        has, creates = ("has", "does not create") if len(names) == 1 else ("have", "do not create")
        return NoRoute(
            f"{', '.join(names)} {has} no topic {topic}, and {creates} it: check the name; "
            f"otherwise create the topic: {command('topic create', topic)}"
        )
    if topic.startswith("%"):  # the retry topic of a group: its broker creates it
        return NoRoute(f"no broker has the topic {topic}")
    return NoRoute(
        f"no broker has the topic {topic}: check the name; if a broker is down, start it first (see"
        f" cometmq cluster); otherwise create the topic: {command('topic create', topic)}"
    )


def no_brokers(topic: str, addresses: Iterable[str]) -> NoRoute:
    """Return the error for a topic without a route because no broker is registered at all."""
    return NoRoute(f"the topic {topic} has no route, because {no_brokers_text(addresses)}")


def no_brokers_text(addresses: Iterable[str]) -> str:
    """Return the cause and the remedy, as text, if name servers know no broker."""
    return (
        f"no broker is registered with the name server {';'.join(sorted(addresses))}: start one, "
        "or check the namesrvAddr of the brokers"
    )


def read_only(topic: str, broker_names: Iterable[str]) -> NotWritable:
    """Return the error for a topic without write permission on any of its brokers."""
    names = sorted(broker_names)
    has, broker = ("has", names[0]) if len(names) == 1 else ("have", "BROKER")
    return NotWritable(
        f"the topic {topic} accepts no messages: {', '.join(names)} {has} no write permission for"
        f" it; to grant it: {command('topic alter', topic, options=('--perm', 'rw'))}, or, if"
        f" wipeWritePerm has removed it: {command('addWritePerm', options=('-b', broker))}"
    )


class BrokerMissing(ClientError, Outage):
    """No route contains the broker or its master: it was stopped, or its name is wrong."""

    code = BROKER_MISSING


def broker_missing(broker_name: str) -> BrokerMissing:
    """Return the error for a broker that is not in the routes."""
    return BrokerMissing(
        f"the broker {broker_name} is not in the routes: it was stopped, or its name is wrong"
    )


def master_missing(broker_names: Iterable[str]) -> BrokerMissing:
    """Return the error for brokers that have only slaves in the routes."""
    names = sorted(broker_names)
    has = "has" if len(names) == 1 else "have"
    return BrokerMissing(
        f"{', '.join(names)} {has} no master now, only slaves, which accept no messages: start the "
        "master, or make a slave the master"
    )


class SendFailed(ClientError, Outage):
    """No attempt to send was confirmed; `__cause__` is the last error."""

    def __init__(
        self,
        text: str,
        *,
        brokers: tuple[str, ...],
        may_be_stored: bool,
        code: int | None = None,
    ) -> None:
        """`brokers` lists the brokers that were tried, in order; `code` is the code of the last
        answer.

        `may_be_stored` is true if a broker may have received the message without answering.
        """
        super().__init__(text)
        self.brokers = brokers
        self.may_be_stored = may_be_stored
        self.code = code


class SendTimeout(SendFailed, RequestTimeout):
    """No attempt to send was confirmed before the deadline."""


CHARS_MAX: Final = 100
_END_CHARS: Final = 20


def shown(value: object) -> str:
    """Return the repr of a value, without the middle if it is long.

    Otherwise, a message passed as a queue by mistake would be printed with its whole body.
    """
    text = repr(value)
    if len(text) <= CHARS_MAX:
        return text
    return f"{text[: CHARS_MAX - _END_CHARS]}... {text[-_END_CHARS:]}"
