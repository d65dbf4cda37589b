# SPDX-License-Identifier: Apache-2.0
"""Requests to one broker: the base of all admin classes for a single broker."""

from collections.abc import Callable, Collection
from typing import Final, TypeVar

import msgspec

from cometmq.client.arguments import checked_header, whole_or
from cometmq.client.cluster.namesrv import answered, refuse_namesrv
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import RequestCodeNotSupported
from cometmq.remoting.transport.client import RemotingClient

T = TypeVar("T")

SUCCESS: Final = (ResponseCode.SUCCESS,)

OnDamage = Callable[[str, str], None]
"""Called with `message.damaged` or `messages.missing`, and a text that names the messages."""


def _ignore(_event: str, _text: str) -> None:
    """Ignore the damage."""


class BrokerCalls:
    """Sends requests to one broker. If the broker refuses a request, the call raises the
    CommandError for the response code.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        address: str,
        *,
        timeout_ms: int,
        name: str = "",
        on_damage: OnDamage = _ignore,
    ) -> None:
        """Send requests to `address`; `name` identifies the broker in error messages.

        `on_damage` is called if some messages in an answer are damaged but the others can be used.
        """
        self._remoting = remoting
        self._timeout_ms = timeout_ms
        self.address = address
        self.name = name
        self._on_damage = on_damage

    async def invoke(
        self,
        code: Code,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        ok: Collection[int] = SUCCESS,
        timeout_ms: int | None = None,
    ) -> Response:
        """Send any request in the catalogue; raise InvalidArgument for a header or timeout of the
        wrong type.
        """
        header = None if header is None else checked_header(header)
        timeout_ms = whole_or(self._timeout_ms, timeout_ms, "timeout_ms")
        try:
            return await self._remoting.invoke(
                self.address, code, header, body, timeout_ms=timeout_ms, ok=ok
            )
        except RequestCodeNotSupported:
            await refuse_namesrv(self._remoting, self.address, timeout_ms)
            raise

    async def _json(
        self,
        type_: type[T],
        code: Code,
        header: msgspec.Struct | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> T:
        response = await self.invoke(code, header, timeout_ms=timeout_ms)
        return await answered(type_, response.body, f"broker {self.name or self.address}")
