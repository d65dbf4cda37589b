# SPDX-License-Identifier: Apache-2.0
"""Administration that waits."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cometmq import client
from cometmq.client.log import PROGRAM_LOG
from cometmq.client.settings import ClientOptions
from cometmq.client.sync.loop import SyncClient
from cometmq.remoting.log import Log

T = TypeVar("T")


class AdminClient(SyncClient[client.AdminClient]):
    """Administration: `admin.call(lambda a: a.topics())` calls any method of the other one."""

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: Log = PROGRAM_LOG
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__(client.AdminClient(namesrv, options=options, log=log))

    def call(self, method: Callable[[client.AdminClient], Awaitable[T]]) -> T:
        """Return what a method of the asynchronous admin client returns."""

        async def call() -> T:
            return await method(self._inner)

        return self._run(call())
