# SPDX-License-Identifier: Apache-2.0
"""Client for the control API of one member, used by electors and administrators: proves calls,
checks answers, and translates errors.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from cometmq.control.controlled import (
    ELECTOR_KEY,
    ConfigChange,
    MemberUnproven,
    MemberUnreachable,
    Reason,
    Report,
    Target,
    WrongMember,
)
from cometmq.control.credentials import channel_credentials
from cometmq.control.methods import (
    CHALLENGE_KEY,
    METHODS,
    PROOF_KEY,
    REASON_KEY,
    SERVICE,
    from_message,
    to_target,
)
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Order
from cometmq.ha.proof import Caller, Keys, Seal
from cometmq.remoting.errors import RemoteProtocolError, SettingsError
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import TaskSet

STATUS_TIMEOUT_MS: Final = 500
CONFIG_TIMEOUT_MS: Final = 10_000
PROBE_TIMEOUT_MS: Final = 500
ANSWER_BYTES_MAX: Final = 64 * 1024
PROOF_ATTEMPTS: Final = 3
"""The first attempt gets the challenge, which may change before the second."""
BACK_OFF_MS: Final = (100, 500)
"""First and longest pause between connection attempts; gRPC's default grows to two minutes."""
RETIRED_MS: Final = 10_000
"""How long calls may continue on a connection that was replaced."""

Metadata = tuple[tuple[str, str | bytes], ...]

SETTLED: Final = (Reason.WRONG_MEMBER, Reason.INVALID_CONFIG)
"""Reasons of refusals, other than OrderRefusal, after which it is useless to repeat the call."""
OTHER_PROGRAM: Final = ("Failed parsing HTTP/2", "receiving SETTINGS", "Socket closed")
"""Parts of gRPC's error messages for a connection to a server without gRPC."""


class MemberClient:
    """Calls one member over one connection, which is reopened when necessary.

    Calls raise MemberUnreachable without an answer, MemberUnproven if one end does not prove the
    group's key, WrongMember if another member answers, OrderRefused with the member's reason, and
    RemoteProtocolError for an answer that cannot be read.
    """

    def __init__(
        self,
        address: str,
        target: Target,
        *,
        tls: TlsSettings | None = None,
        tls_name: str = "",
        keys: Callable[[], Keys] = lambda: (),
        elector: str = "",
    ) -> None:
        """Needs a running event loop; raise SettingsError if `address` (HOST:PORT) is malformed.

        `tls_name` is the name in the members' certificates, if it differs from the host. If `keys`
        returns keys of the group, the member must prove the first one. `elector` is an
        `elector_mark`.
        """
        self.address = address
        self.target = target
        self._host_port = parse_address(address)
        self._to = to_target(target)
        self._options: list[tuple[str, Any]] = [
            ("grpc.initial_reconnect_backoff_ms", BACK_OFF_MS[0]),
            ("grpc.min_reconnect_backoff_ms", BACK_OFF_MS[1]),
            ("grpc.max_reconnect_backoff_ms", BACK_OFF_MS[1]),
            ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),  # a closed client leaves no connection behind
            ("grpc.enable_http_proxy", 0),
        ]
        if tls_name:
            self._options.append(("grpc.ssl_target_name_override", tls_name))
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

    async def status(self, *, timeout_ms: int = STATUS_TIMEOUT_MS) -> Report:
        """Return the member's status; if it does not answer in time, use a new connection next.

        After a partition, the old connection works again only when TCP retransmits, which may be
        seconds after a new one can be opened.
        """
        raw = pb.GetStatusRequest(target=self._to).SerializeToString()
        answer = await self._call("GetStatus", raw, timeout_ms, reopens=True)
        return self._report(answer)

    async def watch(
        self, *, interval_ms: int = 500, silence_ms: int = 1_500
    ) -> AsyncIterator[Report]:
        """Yield statuses; raise MemberUnreachable if the connection fails or goes silent."""
        request = pb.WatchStatusRequest(target=self._to, interval_ms=interval_ms)
        raw = request.SerializeToString()
        async with aclosing(self._stream("WatchStatus", raw, silence_ms)) as messages:
            async for message in messages:
                yield self._report(message)

    async def order(self, order: Order, *, timeout_ms: int | None = None) -> Report:
        """Send an order; return the member's status after it took effect."""
        name = type(order).__name__
        raw = METHODS[name].encode(self._to, order)
        return self._report(await self._call(name, raw, timeout_ms or order.timeout_ms))

    async def update_config(self, changes: Mapping[str, str]) -> ConfigChange:
        """Change settings; raise SettingsError if one is refused."""
        raw = pb.UpdateConfigRequest(target=self._to, changes=changes).SerializeToString()
        answer = await self._call("UpdateConfig", raw, CONFIG_TIMEOUT_MS)
        change = self._parsed(pb.UpdateConfigReply, answer)
        return ConfigChange(tuple(change.applied), tuple(change.needs_restart))

    async def is_refusing(self) -> bool:
        """Return whether the host refuses connections to the control port."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_MS / 1000):
                _, writer = await asyncio.open_connection(*self._host_port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        return False

    def _report(self, answer: bytes) -> Report:
        return from_message(self._parsed(pb.MemberStatus, answer))

    def _parsed(self, message: Any, answer: bytes) -> Any:
        try:
            return message.FromString(answer)
        except DecodeError as error:
            raise RemoteProtocolError(
                f"{self.target} at {self.address} answers what is no"
                f" {message.DESCRIPTOR.name}: check which program listens on its controlPort"
            ) from error

    async def _call(
        self, name: str, raw: bytes, timeout_ms: int, *, reopens: bool = False
    ) -> bytes:
        """Return the answer to a request; `reopens`: replace a connection that is late."""
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

    async def _stream(self, name: str, raw: bytes, silence_ms: int) -> AsyncGenerator[bytes, None]:
        """Yield the messages of an answer; raise MemberUnreachable after `silence_ms`."""
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
            return grpc.aio.insecure_channel(self.address, options=self._options)
        return grpc.aio.secure_channel(self.address, self._credentials, options=self._options)

    def _proven(self, name: str, raw: bytes) -> tuple[Metadata, Seal | None]:
        """Return the metadata of a call with its proof, and the seal of its answers."""
        found = self._caller.prove(name, raw)
        if found is None:
            return self._marks, None
        proof, seal = found
        return (*self._marks, (PROOF_KEY, proof)), seal

    def _is_challenged(self, error: grpc.aio.AioRpcError) -> bool:
        """Return whether a refusal has a new challenge, with which the call can be repeated."""
        challenge = dict(error.trailing_metadata() or ()).get(CHALLENGE_KEY)
        if not isinstance(challenge, bytes) or challenge == self._caller.challenge:
            return False
        self._caller.challenge = challenge
        return self._caller.has_keys

    def _opened(self, message: bytes, seal: Seal | None) -> bytes:
        """Return a received message; raise MemberUnproven if its proof is missing or wrong."""
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
        """Close a replaced channel once its calls have ended."""
        await channel.close(RETIRED_MS / 1000)
        self._replaced.discard(channel)

    def _ended(self, error: asyncio.CancelledError) -> BaseException:
        """Return the error for a call cancelled by gRPC: with its task, or its channel."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return error
        return MemberUnreachable(f"{self._place}: the connection was replaced or closed")

    @property
    def _place(self) -> str:
        return f"{self.target} at {self.address}"

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
            return WrongMember(f"{self.address}: {text}")
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
