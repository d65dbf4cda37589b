# SPDX-License-Identifier: Apache-2.0
"""The blocking admin client."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cometmq import client
from cometmq.client.log import PROGRAM_LOG
from cometmq.client.settings import ClientOptions
from cometmq.client.sync.loop import SyncClient
from cometmq.remoting.log import Log

T = TypeVar("T")


class AdminClient(SyncClient[client.AdminClient]):
    """Administration: `admin.call(lambda a: a.topics())` calls any method of the async client."""

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: Log = PROGRAM_LOG
    ) -> None:
        """Take the name servers from `namesrv`, or from the option of that name."""
        super().__init__(client.AdminClient(namesrv, options=options, log=log))

    def call(self, method: Callable[[client.AdminClient], Awaitable[T]]) -> T:
        """Return the result of a method of the async admin client."""

        async def call() -> T:
            return await method(self._inner)

        return self._run(call())
