# SPDX-License-Identifier: Apache-2.0
"""The requests of a txn-checker to name servers and to the masters of brokers."""

from collections.abc import Sequence

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe


class Masters(AdminClient):
    """An admin client that also records which brokers have no master."""

    def __init__(self, *, options: ClientOptions, log: Log) -> None:
        super().__init__(options=options, log=log)
        self._masterless: set[str] = set()

    def without_master(self, name: str, _slaves: Sequence[str]) -> None:
        self._masterless.add(name)

    def take_masterless(self) -> set[str]:
        """Return and forget the brokers that lookups since the last call found without a master."""
        found, self._masterless = self._masterless, set()
        return found

    def drop(self, address: str, reason: str) -> None:
        self._running().remoting.disconnect(address, reason)


class Route:
    """Sends requests to the master of one broker, whose address changes with a failover."""

    def __init__(self, masters: Masters, name: str, address: str) -> None:
        self._masters = masters
        self._name = name
        self.address = address

    async def __call__(
        self,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        *,
        ok: tuple[ResponseCode, ...] = (ResponseCode.SUCCESS,),
        timeout_ms: int | None = None,
    ) -> Response:
        address = self.address
        broker = self._masters.broker(address, name=self._name)
        try:
            return await broker.invoke(code, header, ok=ok, timeout_ms=timeout_ms)
        except RequestTimeout as error:
            # A lost host never closes its connections, and its name may now resolve to a different
            # address.
            self._masters.drop(address, describe(error))
            raise
