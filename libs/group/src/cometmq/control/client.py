# SPDX-License-Identifier: Apache-2.0
"""Client for the control API of one member, used by electors and administrators."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from google.protobuf.message import DecodeError

from cometmq.control.channel import MemberChannel
from cometmq.control.controlled import ConfigChange, Report, Target
from cometmq.control.methods import METHODS, from_message, to_target
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.orders import Order
from cometmq.ha.proof import Keys
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.settings import TlsSettings

STATUS_TIMEOUT_MS: Final = 500
CONFIG_TIMEOUT_MS: Final = 10_000
PROBE_TIMEOUT_MS: Final = 500


class MemberClient:
    """Calls one member over one connection, which is reopened when necessary.

    Every call raises MemberUnreachable if the member does not answer, MemberUnproven if one end
    does not prove that it knows the group's key, WrongMember if a different member answers, and
    OrderRefused, with the member's reason, if the member refuses. An answer that cannot be read
    raises RemoteProtocolError.
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
        self.target = target
        self._host_port = parse_address(address)
        self._to = to_target(target)
        self._channel = MemberChannel(
            address, target, tls=tls, tls_name=tls_name, keys=keys, elector=elector
        )

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        await self._channel.close()

    async def status(self, *, timeout_ms: int = STATUS_TIMEOUT_MS) -> Report:
        """Return the member's status; if it does not answer in time, use a new connection next.

        After a partition, the old connection works again only when TCP retransmits, which may be
        seconds after a new one can be opened.
        """
        raw = pb.GetStatusRequest(target=self._to).SerializeToString()
        answer = await self._channel.call("GetStatus", raw, timeout_ms, reopens=True)
        return self._report(answer)

    async def watch(
        self, *, interval_ms: int = 500, silence_ms: int = 1_500
    ) -> AsyncIterator[Report]:
        """Yield statuses; raise MemberUnreachable if the connection fails or goes silent."""
        request = pb.WatchStatusRequest(target=self._to, interval_ms=interval_ms)
        raw = request.SerializeToString()
        async with aclosing(self._channel.stream("WatchStatus", raw, silence_ms)) as messages:
            async for message in messages:
                yield self._report(message)

    async def order(self, order: Order, *, timeout_ms: int | None = None) -> Report:
        """Send an order; return the member's status after it took effect.

        The default of `timeout_ms` is that of the order's class.
        """
        name = type(order).__name__
        raw = METHODS[name].encode(self._to, order)
        return self._report(await self._channel.call(name, raw, timeout_ms or order.timeout_ms))

    async def update_config(self, changes: Mapping[str, str]) -> ConfigChange:
        """Change settings; raise SettingsError if one is refused."""
        raw = pb.UpdateConfigRequest(target=self._to, changes=changes).SerializeToString()
        answer = await self._channel.call("UpdateConfig", raw, CONFIG_TIMEOUT_MS)
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
