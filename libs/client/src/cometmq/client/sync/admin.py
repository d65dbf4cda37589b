# SPDX-License-Identifier: Apache-2.0
"""The blocking admin client."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, NoReturn, TypeVar

from cometmq import client
from cometmq.client.application_calls import check_function, explaining
from cometmq.client.errors import InvalidArgument
from cometmq.client.log import AnyLog
from cometmq.client.settings import ClientOptions
from cometmq.client.sync.loop import SyncClient
from cometmq.remoting.spelling import closest

T = TypeVar("T")

_SERVERS: Final = {
    "broker": "a.broker(address).config()",
    "namesrv": "a.namesrv.config()",
}
"""Members that return one server, each with an example call to a method of that server."""


class AdminClient(SyncClient):
    """Calls any method of the async admin client: `admin.call(lambda a: a.topics())`.

    Methods that yield results are called with `iterate`:
    `for message in admin.iterate(lambda a: a.dead_letters("group"))`.
    """

    OPTIONS: Final = ClientOptions

    @explaining
    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: AnyLog = None
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the `namesrv` option."""
        self._inner: client.AdminClient = client.AdminClient(namesrv, options=options, log=log)

    def call(self, method: Callable[[client.AdminClient], Awaitable[T]]) -> T:
        """Return the result of a method of the async admin client."""
        return self._answer("`admin.call(lambda a: a.topics())`", method, lambda: self._inner)

    def iterate(self, method: Callable[[client.AdminClient], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the results of `read`, `dead_letters` or any other method that yields results."""
        check_function(method, "method", "admin")
        items: object = self._on_loop(lambda: method(self._inner))
        if inspect.iscoroutine(items):
            items.close()
        if not isinstance(items, AsyncIterator):
            raise InvalidArgument(
                "the method returns one result: write `admin.call(...)`, not `admin.iterate(...)`"
            )
        return self._iterate(items)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError that shows how to call a method of the async client."""
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        methods = [known for known in dir(client.AdminClient) if not known.startswith("_")]
        if name in methods:
            text = f"{text}: write {_call_of(name)}"
        elif (meant := closest(name, methods)) is not None:
            text = f"{text}: did you mean {_call_of(meant)}?"
        raise AttributeError(text, name=name, obj=self)


def _call_of(name: str) -> str:
    """Return the code that calls a member of the async admin client through the blocking one."""
    member = getattr(client.AdminClient, name)
    if name in _SERVERS:
        return f"`admin.call(lambda a: {_SERVERS[name]})`"
    way = "iterate" if inspect.isasyncgenfunction(member) else "call"
    return f"`admin.{way}(lambda a: a.{name}(...))`"
