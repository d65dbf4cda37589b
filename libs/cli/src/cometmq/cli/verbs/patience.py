# SPDX-License-Identifier: Apache-2.0
"""Retries a command's sends while servers are down or busy, until a deadline."""

import asyncio
from contextlib import suppress
from ssl import SSLError
from time import monotonic
from typing import Final

import typer

from cometmq.client import Message, Producer, SendResult
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    NoNamesrv,
    NoRoute,
    SendFailed,
    WrongServer,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CometError, CommandError, TransportError

FIRST_PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 1.0
BUSY: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY})
"""Refusals of a broker that is overloaded, starting, stopping, or out of disk space."""


class MaybeStored(ClientError):
    """A message was not confirmed, and an unanswered attempt may have stored it."""


class Patience:
    """Retries each message while servers are down, hanging or busy."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._has_stored = False
        self._is_outage_named = False
        self._had_no_namesrv = False
        self._stopped = asyncio.Event()

    async def send(self, producer: Producer, message: Message) -> SendResult:
        """Store a message; raise ClientError if it is not stored in time.

        If a broker stores a message but does not answer, the retry stores it a second time. Raise
        MaybeStored if any attempt went unanswered, regardless of the last attempt's error.
        """
        deadline = monotonic() + self._limit_s
        pause_s = FIRST_PAUSE_S
        may_be_stored = False
        while True:
            try:
                result = await producer.send(message)
            except CometError as error:
                was_answered = not (isinstance(error, SendFailed) and error.may_be_stored)
                may_be_stored = may_be_stored or not was_answered
                has_time = bool(self._limit_s) and not self._stopped.is_set()
                may_pass = has_time and self._may_pass(error)
                left_s = deadline - monotonic()
                if may_pass and left_s > 0:
                    self._name_outage(error)
                    await self._pause(min(pause_s, left_s))
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
                    if not self._stopped.is_set():
                        continue
                    may_pass = False
                limit = f"; gave up after {self._limit_s:g} s (--timeout)" if may_pass else ""
                if may_be_stored:
                    text = _uncertain_text(message, error) if was_answered else str(error)
                    raise MaybeStored(text + limit) from error
                if not may_pass:
                    raise
                if isinstance(error, NoNamesrv):  # keeps its class and cause: `main` adds hints
                    raise NoNamesrv(f"{error}{limit}") from error.__cause__
                raise ClientError(f"{error}{limit}") from error
            self._has_stored = True
            self._is_outage_named = False
            return result

    def stop(self) -> None:
        """Let each pending send end with its current attempt, or at once if it is pausing."""
        self._stopped.set()

    async def _pause(self, pause_s: float) -> None:
        """Wait for some seconds, or until the retries are stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopped.wait()

    def _may_pass(self, error: CometError) -> bool:
        """Return whether waiting may help.

        A topic that no name server knows may be misspelt, unless a message has been stored in it. A
        name server that has just started knows no topic until brokers have registered again.
        """
        cause = (error.__cause__ or error) if isinstance(error, SendFailed) else error
        if isinstance(cause, CommandError):
            return cause.code in BUSY
        if isinstance(cause, NoRoute):
            return self._has_stored or self._had_no_namesrv
        if isinstance(cause, NoNamesrv):  # a wrong address or TLS key does not become right
            is_tls = cause.__cause__ is not None and isinstance(cause.__cause__.__cause__, SSLError)
            self._had_no_namesrv = not (isinstance(cause, WrongServer) or is_tls)
            return self._had_no_namesrv
        return isinstance(cause, TransportError | BrokerMissing)

    def _name_outage(self, error: CometError) -> None:
        """Print only the first failure of an outage, because all sends in flight fail for the same
        reason.
        """
        if not self._is_outage_named:
            self._is_outage_named = True
            typer.echo(f"cometmq: {error}; trying again for {self._limit_s:g} s", err=True)


def _uncertain_text(message: Message, error: CometError) -> str:
    """Return the text for an error that does not mention an earlier, unanswered attempt."""
    reason = (error.__cause__ or error) if isinstance(error, SendFailed) else error
    return (
        f"no broker has confirmed the message to the topic {message.topic}, which may be stored:"
        f" an earlier attempt was not answered; the last one failed: {reason}"
    )
