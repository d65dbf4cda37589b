# SPDX-License-Identifier: Apache-2.0
"""The connection to one member: proves calls, checks answers, and translates errors."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import grpc

from cometmq.control.controlled import (
    MemberUnproven,
    MemberUnreachable,
    Reason,
    Target,
    WrongMember,
)
from cometmq.control.credentials import channel_credentials
from cometmq.control.electors import ELECTOR_KEY
from cometmq.control.methods import CHALLENGE_KEY, PROOF_KEY, REASON_KEY, SERVICE
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.proof import Caller, Keys, Seal
from cometmq.remoting.errors import RemoteProtocolError, SettingsError
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import TaskSet

ANSWER_BYTES_MAX: Final = 64 * 1024
PROOF_ATTEMPTS: Final = 3
"""Maximum number of attempts of one call: the first gets the challenge, and the
challenge may change before the second.
"""
BACK_OFF_MS: Final = (100, 500)
"""First and longest pause between connection attempts; gRPC's default grows to two minutes."""
RETIRED_MS: Final = 10_000
"""How long calls may continue on a connection that was replaced."""

Metadata = tuple[tuple[str, str | bytes], ...]

SETTLED: Final = (Reason.WRONG_MEMBER, Reason.INVALID_CONFIG)
"""Reasons of refusals, other than OrderRefusal, after which it is useless to repeat the call."""
OTHER_PROGRAM: Final = ("Failed parsing HTTP/2", "receiving SETTINGS", "Socket closed")
"""Parts of gRPC's error messages for a connection to a server without gRPC."""


class MemberChannel:
    """One connection, which is reopened when necessary; see `MemberClient` for the errors."""

    def __init__(
        self,
        address: str,
        target: Target,
        *,
        tls: TlsSettings | None,
        tls_name: str,
        keys: Callable[[], Keys],
        elector: str,
    ) -> None:
        """See `MemberClient`."""
        self._address = address
        self._target = target
        options: list[tuple[str, Any]] = [
            ("grpc.initial_reconnect_backoff_ms", BACK_OFF_MS[0]),
            ("grpc.min_reconnect_backoff_ms", BACK_OFF_MS[1]),
            ("grpc.max_reconnect_backoff_ms", BACK_OFF_MS[1]),
            ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),  # a closed client leaves no connection behind
            ("grpc.enable_http_proxy", 0),
        ]
        if tls_name:
            options.append(("grpc.ssl_target_name_override", tls_name))
        self._options = options
        self._credentials = channel_credentials(tls) if tls else None
        self._channel = self._open()
        self._replaced: set[grpc.aio.Channel] = set()
        self._closing = TaskSet()
        self._caller = Caller(keys, target)
        self._marks = ((ELECTOR_KEY, elector),) if elector else ()

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        await self._closing.close()
        for channel in (self._channel, *self._replaced):
            await channel.close()

    async def call(self, name: str, raw: bytes, timeout_ms: int, *, reopens: bool = False) -> bytes:
        """Send a request, and return the answer.

        With `reopens`, the connection is replaced if the call is not answered in time.
        """
        stub = self._channel.unary_unary(f"/{SERVICE}/{name}")
        for attempt in range(PROOF_ATTEMPTS):
            metadata, seal = self._proven(name, raw)
            try:
                found = await stub(raw, timeout=timeout_ms / 1000, metadata=metadata)
            except asyncio.CancelledError as error:
                raise self._ended(error) from error
            except grpc.aio.AioRpcError as error:
                if self._is_challenged(error) and attempt + 1 < PROOF_ATTEMPTS:
                    continue
                if reopens and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._replace()
                raise self._translated(error, seal) from error
            return self._opened(found, seal)
        raise AssertionError("the last attempt returns or raises")

    async def stream(self, name: str, raw: bytes, silence_ms: int) -> AsyncGenerator[bytes, None]:
        """Send a request, and yield the messages of its answer; raise MemberUnreachable if the
        connection fails, or if there is no message for `silence_ms`.
        """
        stub = self._channel.unary_stream(f"/{SERVICE}/{name}")
        for attempt in range(PROOF_ATTEMPTS):
            metadata, seal = self._proven(name, raw)
            call = stub(raw, metadata=metadata)
            try:
                while True:
                    async with asyncio.timeout(silence_ms / 1000):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        raise MemberUnreachable(f"{self._place}: the member ended the stream")
                    yield self._opened(message, seal)
            except TimeoutError as error:
                raise MemberUnreachable(f"{self._place}: silent for {silence_ms} ms") from error
            except asyncio.CancelledError as error:
                raise self._ended(error) from error
            except grpc.aio.AioRpcError as error:
                if not self._is_challenged(error) or attempt + 1 == PROOF_ATTEMPTS:
                    raise self._translated(error, seal) from error
            finally:
                call.cancel()

    def _open(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        return grpc.aio.secure_channel(self._address, self._credentials, options=self._options)

    def _proven(self, name: str, raw: bytes) -> tuple[Metadata, Seal | None]:
        """Return the metadata of a call with its proof, and the seal of its answers."""
        found = self._caller.prove(name, raw)
        if found is None:
            return self._marks, None
        proof, seal = found
        return (*self._marks, (PROOF_KEY, proof)), seal

    def _is_challenged(self, error: grpc.aio.AioRpcError) -> bool:
        """Return whether a refusal has a challenge that differs from the one used for the call, so
        that the call can be repeated with it.
        """
        challenge = dict(error.trailing_metadata() or ()).get(CHALLENGE_KEY)
        if not isinstance(challenge, bytes) or challenge == self._caller.challenge:
            return False
        self._caller.challenge = challenge
        return self._caller.has_keys

    def _opened(self, message: bytes, seal: Seal | None) -> bytes:
        """Return a received message; raise MemberUnproven if it needs a proof and has no valid
        one.
        """
        if seal is not None and not seal.is_intact(message):
            raise self._unproven()
        return message

    def _unproven(self) -> MemberUnproven:
        return MemberUnproven(
            f"{self._place} does not prove that it knows the group's key: give it this program's"
            " groupKeyFile; if it has the key, another program answers in its place"
        )

    def _replace(self) -> None:
        channel, self._channel = self._channel, self._open()
        self._replaced.add(channel)
        self._closing.spawn(self._retire(channel), name="control-channel-close")

    async def _retire(self, channel: grpc.aio.Channel) -> None:
        """Close a replaced channel once its calls have ended, at the latest after
        RETIRED_MS.
        """
        await channel.close(RETIRED_MS / 1000)
        self._replaced.discard(channel)

    def _ended(self, error: asyncio.CancelledError) -> BaseException:
        """Return the error for a cancelled call: gRPC cancels it with its task, and also
        when its channel closes.
        """
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return error
        return MemberUnreachable(f"{self._place}: the connection was replaced or closed")

    @property
    def _place(self) -> str:
        return f"{self._target} at {self._address}"

    def _translated(self, error: grpc.aio.AioRpcError, seal: Seal | None) -> Exception:
        """Translate a gRPC error; the metadata of a refusal contains its reason and its proof."""
        text = error.details() or ""
        metadata = dict(error.trailing_metadata() or ())
        reason = metadata.get(REASON_KEY)
        if (
            seal is not None
            and (reason in SETTLED or reason in OrderRefusal.__members__)
            and not seal.is_refusal(str(reason), text, metadata.get(PROOF_KEY))
        ):
            return self._unproven()
        if reason == Reason.WRONG_MEMBER:
            return WrongMember(f"{self._address}: {text}")
        if reason == Reason.INVALID_CONFIG:
            return SettingsError(text)
        if reason == Reason.UNPROVEN:
            return MemberUnproven(f"{self._place} refuses: {text}")
        if reason in OrderRefusal.__members__:
            return OrderRefused(OrderRefusal(str(reason)), text)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return RemoteProtocolError(
                f"{self._place} does not know this call: update the broker, or this program"
            )
        text = text.rpartition("Failed to connect to remote host: ")[2]  # drop gRPC's own prefix
        if any(sign in text for sign in OTHER_PROGRAM):
            return MemberUnreachable(
                f"{self._place} does not answer: it hangs, or another program listens there, or"
                " this port is not the broker's controlPort, or only one side uses TLS"
            )
        return MemberUnreachable(f"{self._place} does not answer: {error.code().name}, {text}")
