# SPDX-License-Identifier: Apache-2.0
"""Client for the control API of one member, used by electors and administrators."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc

from cometmq.control.controlled import (
    ConfigChange,
    MemberUnproven,
    MemberUnreachable,
    Reason,
    Report,
    Target,
    WrongMember,
)
from cometmq.control.credentials import channel_credentials
from cometmq.control.electors import ELECTOR_KEY
from cometmq.control.messages import from_message, to_target
from cometmq.control.methods import METHODS, REASON_KEY, SERVICE
from cometmq.control.proof import CHALLENGE_KEY, PROOF_KEY, Caller, Seal
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.group_key import Keys
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Order
from cometmq.remoting.errors import RemoteProtocolError, SettingsError
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import TaskSet

STATUS_TIMEOUT_MS: Final = 500
LONG_ORDER_TIMEOUT_MS: Final = 10_000
"""Timeout of a call whose answer an operator waits for."""
PROBE_TIMEOUT_MS: Final = 500
ANSWER_BYTES_MAX: Final = 64 * 1024
PROOF_ATTEMPTS: Final = 3
"""The first call gets the challenge, and the challenge may change before the second."""
BACK_OFF_MS: Final = (100, 500)
"""First and longest pause between connection attempts; gRPC's default grows to two minutes."""


Metadata = tuple[tuple[str, str | bytes], ...]

OTHER_PROGRAM: Final = ("Failed parsing HTTP/2", "receiving SETTINGS", "Socket closed")
"""Parts of gRPC's error messages for a connection to a server without gRPC."""


class MemberClient:
    """Calls one member over one connection, which is reopened when necessary.

    Every call raises MemberUnreachable if the member does not answer, MemberUnproven if one end
    does not prove that it knows the group's key, WrongMember if a different member answers, and
    OrderRefused, with the member's reason, if the member refuses.
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
        """`address` is the HOST:PORT of the member's control port; requires a running event loop.

        Raise SettingsError if `address` is malformed.
        `tls_name` is the name in the members' certificates, if it differs from the host of
        `address`. If `keys` returns keys of the group, the member must prove that it knows the
        first one. `elector` is the mark of an elector (`electors.py`).
        """
        self.address = address
        self._host_port = parse_address(address)
        self.target = target
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
        self._to = to_target(target)
        self._caller = Caller(keys, target)
        self._marks = ((ELECTOR_KEY, elector),) if elector else ()

    def _open(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, options=self._options)
        return grpc.aio.secure_channel(self.address, self._credentials, options=self._options)

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
        try:
            return from_message(await self._send("GetStatus", raw, timeout_ms))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._replace()
            raise self._translated(error) from error

    async def watch(
        self, *, interval_ms: int = 500, silence_ms: int = 1_500
    ) -> AsyncIterator[Report]:
        """Yield statuses; raise MemberUnreachable if the connection fails or goes silent."""
        request = pb.WatchStatusRequest(target=self._to, interval_ms=interval_ms)
        raw = request.SerializeToString()
        stub = self._channel.unary_stream(f"/{SERVICE}/WatchStatus")
        for attempt in range(PROOF_ATTEMPTS):
            metadata, seal = self._proven("WatchStatus", raw)
            call = stub(raw, metadata=metadata)
            try:
                while True:
                    async with asyncio.timeout(silence_ms / 1000):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        raise MemberUnreachable(f"{self._place}: the member ended the stream")
                    yield from_message(pb.MemberStatus.FromString(self._opened(message, seal)))
            except TimeoutError as error:
                raise MemberUnreachable(f"{self._place}: silent for {silence_ms} ms") from error
            except grpc.aio.AioRpcError as error:
                if not self._is_challenged(error) or attempt + 1 == PROOF_ATTEMPTS:
                    raise self._translated(error) from error
            finally:
                call.cancel()

    async def order(self, order: Order, *, timeout_ms: int | None = None) -> Report:
        """Give an order; return the member's status after it took effect.

        Wait as long as the order's kind may take, unless `timeout_ms` is given.
        """
        name = type(order).__name__
        raw = METHODS[name].encode(self._to, order)
        return from_message(await self._call(name, raw, timeout_ms or order.timeout_ms))

    async def update_config(self, changes: Mapping[str, str]) -> ConfigChange:
        """Change settings; raise SettingsError if one is refused."""
        raw = pb.UpdateConfigRequest(target=self._to, changes=changes).SerializeToString()
        answer = await self._call(
            "UpdateConfig", raw, LONG_ORDER_TIMEOUT_MS, answer=pb.UpdateConfigReply
        )
        return ConfigChange(tuple(answer.applied), tuple(answer.needs_restart))

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

    async def _call(
        self, name: str, raw: bytes, timeout_ms: int, *, answer: Any = pb.MemberStatus
    ) -> Any:
        try:
            return await self._send(name, raw, timeout_ms, answer=answer)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    async def _send(
        self, name: str, raw: bytes, timeout_ms: int, *, answer: Any = pb.MemberStatus
    ) -> Any:
        stub = self._channel.unary_unary(f"/{SERVICE}/{name}")
        for attempt in range(PROOF_ATTEMPTS):
            metadata, seal = self._proven(name, raw)
            try:
                found = await stub(raw, timeout=timeout_ms / 1000, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if not self._is_challenged(error) or attempt + 1 == PROOF_ATTEMPTS:
                    raise
            else:
                return answer.FromString(self._opened(found, seal))
        raise AssertionError("the last attempt returns or raises")

    def _proven(self, name: str, raw: bytes) -> tuple[Metadata, Seal | None]:
        """Return the metadata of a call with its proof, and the seal of its answers."""
        found = self._caller.prove(name, raw)
        if found is None:
            return self._marks, None
        proof, seal = found
        return (*self._marks, (PROOF_KEY, proof)), seal

    def _is_challenged(self, error: grpc.aio.AioRpcError) -> bool:
        """Return whether the member refused a call with a challenge that was not used for it."""
        challenge = dict(error.trailing_metadata() or ()).get(CHALLENGE_KEY)
        if not isinstance(challenge, bytes) or challenge == self._caller.challenge:
            return False
        self._caller.challenge = challenge
        return self._caller.has_keys

    def _opened(self, message: bytes, seal: Seal | None) -> bytes:
        """Return a message; raise MemberUnproven if it has to be proven and is not."""
        if seal is not None and not seal.is_intact(message):
            raise MemberUnproven(
                f"{self._place} does not prove that it knows the group's key: give it this"
                " program's groupKeyFile; if it has the key, another program answers in its place"
            )
        return message

    def _replace(self) -> None:
        channel, self._channel = self._channel, self._open()
        self._replaced.add(channel)
        self._closing.spawn(self._retire(channel), name="control-channel-close")

    async def _retire(self, channel: grpc.aio.Channel) -> None:
        """Close a replaced channel once its calls have ended, at the latest after
        LONG_ORDER_TIMEOUT_MS.
        """
        await channel.close(LONG_ORDER_TIMEOUT_MS / 1000)
        self._replaced.discard(channel)

    @property
    def _place(self) -> str:
        return f"{self.target} at {self.address}"

    def _translated(self, error: grpc.aio.AioRpcError) -> Exception:
        """Translate a gRPC error; the metadata of a refusal contains its reason."""
        text = error.details() or ""
        reason = dict(error.trailing_metadata() or ()).get(REASON_KEY)
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
