# SPDX-License-Identifier: Apache-2.0
"""The failed attempts to send one message, and the error that reports them."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from cometmq.client.clock import TimeLimit
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    NoNamesrv,
    RequesterGone,
    SendFailed,
    SendTimeout,
    no_route,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import (
    CommandError,
    ConnectFailed,
    ConnectionLost,
    Outage,
    Overloaded,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotExist,
)

UNANSWERED: Final = (ConnectionLost, RequestTimeout, RemoteProtocolError)
"""Errors after which the broker may have stored the message."""

UNREACHED: Final = (ConnectFailed, Overloaded, BrokerMissing, NoNamesrv)
"""Errors after which certainly no broker has received the message."""

PASSING: Final = (Outage, RemoteProtocolError, RequesterGone)
"""Errors, other than a broker's refusal, after which another attempt may succeed.

Any other ClientError is a forbidden hook's refusal, which every attempt would meet.
"""

RETRY_LEFT_MS_MIN: Final = 10
"""A retry with less time could not be confirmed, but might store the message a second time."""

BACK_OFF_MS: Final = (50, 800)
"""The first and the longest pause between attempts that reach no broker."""

_BUSY_PAUSE_MS: Final = 100  # doubled at each attempt
_NAMED_MAX: Final = 3
"""If there were more attempts, an error names each broker once."""

_LASTING: Final = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Codes of refusals that do not go away with time, but that a different broker may not share."""


def is_unreached(error: Exception | None) -> bool:
    """Return whether no broker seems to have received the message.

    A proxy that accepts connections for a broker that is down (such as a service of Kubernetes or
    a published port of a container) closes them before anything is answered.
    """
    if isinstance(error, ConnectionLost):
        return not error.has_answered
    return isinstance(error, UNREACHED)


class Attempts(msgspec.Struct, gc=False):
    """The failed attempts to send a message."""

    brokers: list[str]
    """The brokers that were tried; an attempt that finds no master adds none."""
    count: int = 0
    unreached_count: int = 0
    """The attempts that reached no broker: they are limited by time only."""
    round: set[str] = msgspec.field(default_factory=set)
    """The brokers that were not reached since the last pause."""
    back_off_ms: int = BACK_OFF_MS[0]
    failure: Exception | None = None
    may_be_stored: bool = False
    lasting_count: int = 0
    gone: RequesterGone | None = None
    """The requester of a reply that a broker has stored, but could not push."""

    def may_begin(self, count_max: int, left_ms: int) -> bool:
        """Return whether a further attempt is allowed and has enough time.

        Attempts that reached no broker do not count, unless there are no retries at all: all of
        them would fail within milliseconds of a broker's death, long before a successor serves.
        """
        if not self.count:
            return left_ms >= 1
        counted = self.count if count_max == 1 else self.count - self.unreached_count
        return counted < count_max and left_ms >= RETRY_LEFT_MS_MIN

    def pause_ms(self, brokers: Iterable[str], left_ms: int) -> int:
        """Return how long to wait before the next attempt, which must have some time left.

        The other brokers are tried at once; after all `brokers` of the topic have failed, each
        pause is twice as long as the last one.
        """
        if not is_unreached(self.failure) or not self.round.issuperset(brokers):
            return 0
        self.round.clear()
        pause_ms, self.back_off_ms = self.back_off_ms, min(2 * self.back_off_ms, BACK_OFF_MS[1])
        return max(0, min(pause_ms, left_ms - 2 * RETRY_LEFT_MS_MIN))

    def note(self, error: Exception, *, cost_ms: int = 0) -> None:
        """Record why an attempt failed, and how long it took.

        Of several timeouts, the first is reported, because later attempts had only the remaining
        time.
        """
        if not (isinstance(error, RequestTimeout) and isinstance(self.failure, RequestTimeout)):
            self.failure = error
        if is_unreached(error):
            # An attempt that fails at once because of the route had no lookup to wait for.
            is_idle = isinstance(error, ClientError) and cost_ms < RETRY_LEFT_MS_MIN
            self.unreached_count += not is_idle
            self.round.update(self.brokers[-1:])
        if isinstance(error, RequesterGone):
            self.gone = error
        if isinstance(error, CommandError) and error.code in _LASTING:
            self.lasting_count += 1
        self.may_be_stored = self.may_be_stored or isinstance(error, UNANSWERED)

    def is_futile(self, brokers: Iterable[str]) -> bool:
        """Return whether the requester is gone and every broker that could reach it was tried."""
        return self.gone is not None and set(self.brokers).issuperset(brokers)

    def error(self, topic: str, limit: TimeLimit) -> Exception:
        """Return the error to raise after the last attempt.

        If every attempt was refused permanently, this is the last refusal, because SendFailed would
        invite the caller to retry later; for a topic that does not exist, it is NoRoute, as if the
        name servers had reported it. A stored reply whose requester is gone is not a failed send.
        """
        if self.gone is not None:
            return self.gone
        if self.failure is not None and self.lasting_count == self.count:
            if not isinstance(self.failure, TopicNotExist):
                return self.failure
            missing = no_route(topic, refused_by=self.brokers)
            missing.__cause__ = self.failure
            return missing
        error = self.gave_up(topic, limit)
        error.__cause__ = self.failure
        return error

    def gave_up(self, topic: str, limit: TimeLimit) -> SendFailed:
        """Describe the attempts in an error: SendTimeout if time ran out, otherwise SendFailed."""
        message = f"the message to the topic {topic}"
        if self.may_be_stored:
            start = f"no broker has confirmed {message}, which may be stored: gave up"
        else:
            start = f"{message} was not {'stored' if self.count else 'sent'}"
        failure, cost_ms = self.failure, limit.elapsed_ms()
        brokers = self.brokers if len(self.brokers) <= _NAMED_MAX else dict.fromkeys(self.brokers)
        is_late = cost_ms >= limit.timeout_ms or isinstance(failure, RequestTimeout)
        text = "".join(
            (
                start,
                {0: "", 1: " after 1 attempt"}.get(self.count, f" after {self.count} attempts"),
                f" in {cost_ms} ms",
                f" (its timeout is {limit.timeout_ms} ms)" if is_late else "",
                f" at {', '.join(brokers)}" if brokers else "",
                f": {failure}" if failure is not None else "",
            )
        )
        return (SendTimeout if is_late else SendFailed)(
            text,
            brokers=tuple(self.brokers),
            may_be_stored=self.may_be_stored,
            code=failure.code if isinstance(failure, CommandError | ClientError) else None,
        )


async def pause_if_busy(error: Exception, attempt: int, left_ms: int) -> None:
    """Wait before the next attempt if the broker refused this one because it is busy."""
    if isinstance(error, CommandError) and error.code == ResponseCode.SYSTEM_BUSY:
        pause_ms = min(_BUSY_PAUSE_MS << (attempt - 1), left_ms // 2)
        await asyncio.sleep(pause_ms / 1000)
