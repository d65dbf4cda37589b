# SPDX-License-Identifier: Apache-2.0
"""What the client raises beside the broker's own refusals (`CommandError`).

The numbers are those of the Java client, so that people find them in its documentation.
"""

from typing import Final

from cometmq.remoting.errors import CometError

NO_NAMESRV: Final = 10004
NO_ROUTE: Final = 10005
BROKER_MISSING: Final = 10003
NO_REPLY: Final = 10006
NO_REPLY_MESSAGE: Final = 10007
ILLEGAL_MESSAGE: Final = 13
WITHOUT_CODE: Final = -1


class ClientError(CometError):
    """A call that the client could not carry out."""

    code: int | None = None


class ClientStateError(ClientError):
    """The client was not started, was started twice, or is shut down already."""


class InvalidArgument(ClientError):
    """A message, a name or an option that RocketMQ does not accept."""

    code = WITHOUT_CODE


class IllegalMessage(InvalidArgument):
    """A message whose body RocketMQ does not accept."""

    code = ILLEGAL_MESSAGE


class NotARequest(InvalidArgument):
    """A message that cannot be replied to: it is no request, or its broker names no cluster."""

    code = NO_REPLY_MESSAGE


class NoReply(ClientError):
    """A request was stored, but no reply came in time."""

    code = NO_REPLY


class NoNamesrv(ClientError):
    """No name server address was given, or none of them answers."""

    code = NO_NAMESRV


class WrongServer(NoNamesrv):
    """The address of a name server is that of a broker, or the other way round."""


class NoRoute(ClientError):
    """No name server knows the topic, and it cannot be created by sending."""

    code = NO_ROUTE


def no_route(topic: str) -> NoRoute:
    """Return the error for a topic that no name server knows."""
    if topic.startswith("%"):  # of a group: its broker makes it
        return NoRoute(f"no broker has the topic {topic}")
    return NoRoute(
        f"no broker has the topic {topic}: check the name, or create it: "
        f"cometmq topic create {topic}"
    )


class BrokerMissing(ClientError):
    """The broker is in no route: it was stopped, or its name is wrong."""

    code = BROKER_MISSING


def broker_missing(broker_name: str) -> BrokerMissing:
    """Return the error for a broker that no route has, or that has no master there."""
    return BrokerMissing(
        f"no broker {broker_name} is in the routes, or it has no master: it is stopped, or its "
        "name is wrong"
    )


class SendFailed(ClientError):
    """A message was not stored, after every attempt; `__cause__` is the last reason.

    It may be stored nevertheless if an attempt timed out.
    """

    def __init__(self, text: str, *, brokers: tuple[str, ...], code: int | None = None) -> None:
        """Remember the brokers that were asked, in order, and the last answer's code."""
        super().__init__(text)
        self.brokers = brokers
        self.code = code
